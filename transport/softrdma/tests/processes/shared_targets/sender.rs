//! The INI that is connected to the shared TGT, in the process of the test.

use crate::common::node::{Node, post_to, steps};
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_softrdma::device::SoftOptions;
use trunkline_verbs::{
    CompletionStatus, Lkey, Mtu, Psn, QpModify, QpNumber, QpType, QueuePair, SendData, SendOperation, Sge,
    SrqNumber,
};

const MEMORY: usize = 1 << 20;

/// First PSN that a puppet's TGT expects.
const FIRST_PSN: Psn = Psn::new(0xff_fffd);

pub(crate) struct Sender {
    pub(crate) node: Node,
    pub(crate) ini: Arc<dyn QueuePair>,
    far: IpAddr,
    tgt: QpNumber,
}

impl Sender {
    fn bring_up(&self) {
        let [init, rtr, rts] = steps(self.far, self.tgt, Mtu::Mtu1024);
        for step in [init, rtr, QpModify { sq_psn: Some(FIRST_PSN), ..rts }] {
            self.ini.modify(&step).unwrap();
        }
    }

    pub(crate) fn new(options: SoftOptions, far: IpAddr, tgt: u32) -> Self {
        let node = Node::open(options, MEMORY);
        let (ini, tgt) = (node.qp(QpType::XrcIni), QpNumber::new(tgt));
        let sender = Self { node, ini, far, tgt };
        sender.bring_up();
        sender
    }

    /// Replaces the INI with a new one.
    pub(crate) fn reconnect(&mut self) {
        self.ini = self.node.qp(QpType::XrcIni);
        self.bring_up();
    }

    pub(crate) fn number(&self) -> u32 {
        self.ini.number().get()
    }

    /// Writes a word at an offset of the sender's memory.
    pub(crate) fn fill(&self, offset: usize, word: u64) {
        self.node.memory.write(offset, &word.to_le_bytes()).unwrap();
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        self.node.memory.read(offset, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    pub(crate) fn post(&self, srq: SrqNumber, operation: SendOperation, offset: usize, length: u32) {
        let scatter = [self.node.sge(offset, length)];
        post_to(&*self.ini, operation, SendData::Gather(&scatter), srq);
    }

    /// Sends a message that begins with a word. Up to 64 outstanding messages have separate memory.
    pub(crate) fn send(&self, srq: SrqNumber, word: u64, length: u32) {
        let offset = usize::try_from(word % 64).unwrap() * 16_384;
        self.fill(offset, word);
        self.post(srq, SendOperation::Send, offset, length);
    }

    /// Sends only the first packet of a message, since the rest is in memory that is not registered.
    pub(crate) fn send_first_packet_only(&self, srq: SrqNumber) {
        let good = self.node.sge(0, 1024);
        let bad = Sge { lkey: Lkey(good.lkey.0 ^ 0x100), ..self.node.sge(1024, 1024) };
        post_to(&*self.ini, SendOperation::Send, SendData::Gather(&[good, bad]), srq);
    }

    /// Returns the status of the oldest request's completion.
    pub(crate) fn completed(&self) -> CompletionStatus {
        self.node.completion().status
    }
}
