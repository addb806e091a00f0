//! Items that require several processes. They check that processes share a domain, and the state after a process has died.
//!
//! The initiator is in this process, on a separate device. The targets are *puppets*: processes that share one address and
//! execute verbs on command ([`serve_puppet`]). A provider implements [`ProcessBench`] and starts processes that call
//! [`serve_puppet`]. It runs [`PROCESS_ITEMS`] in the same way as [`crate::ITEMS`].

mod client;
mod domains;
mod puppet;
mod targets;

pub use client::Puppet;
pub use puppet::serve_puppet;

use crate::check::{Verdict, equal};
use crate::connect::{End, Terms};
use crate::item::{Outcome, has_xrc, judged};
use crate::tests_macro::pass;
use crate::traffic::request;
use crate::{Bench, Lab, Port};
use std::io;
use std::net::IpAddr;
use std::process::Child;
use std::sync::Arc;
use trunkline_verbs::{
    CompletionOpcode, CompletionStatus, QpNumber, QpState, QueuePair, SendOperation, SrqNumber, VerbsError,
};

/// A provider whose devices several processes can share.
pub trait ProcessBench: Bench {
    /// Opens a device in this process from which the puppets can be reached.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened, which fails the item.
    fn open_near(&self) -> Result<Port, VerbsError>;

    /// Returns the address that the puppets of one item share.
    fn far_address(&self) -> IpAddr;

    /// Starts a puppet process at the address, with pipes as its standard input and output.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    fn start_puppet(&self, address: IpAddr) -> io::Result<Child>;
}

/// An item that requires several processes.
#[derive(Debug, Clone, Copy)]
pub struct ProcessItem {
    /// Number in the contract.
    pub id: &'static str,
    /// Property that is checked between processes, as one sentence.
    pub title: &'static str,
    check: fn(&Stage<'_>) -> Verdict,
}

macro_rules! item {
    ($id:literal, $check:path, $title:literal) => {
        ProcessItem { id: $id, title: $title, check: $check }
    };
}

/// All items, in the order of the contract.
pub const PROCESS_ITEMS: &[ProcessItem] = &[
    item!("A1", domains::a1, "processes that open one inode share one domain"),
    item!("A3", domains::a3, "a new file at the path is a new domain in another process too"),
    item!("A4", domains::a4, "of processes that race to create a domain exactly one succeeds"),
    item!("A5", domains::a5, "the outcome of an open depends on the handles of other processes"),
    item!("A6", domains::a6, "a private domain cannot be reached from another process"),
    item!("A10", domains::a10, "an SRQ of one process and a TGT of another work together"),
    item!("A11", domains::a11, "objects of one process do not pin handles of another"),
    item!("A12", domains::a12, "a domain lives until the last process closes its handle"),
    item!("A14", domains::a14, "a process that exits or is killed leaves no domain"),
    item!("B10", targets::b10, "of two processes that move one TGT, one gets EINVAL"),
    item!("C4", targets::c4, "a TGT can be opened by number in another process of the domain"),
    item!("C6", targets::c6, "a TGT survives when its creator destroys its handle"),
    item!("C7", targets::c7, "a TGT survives when its creator is killed"),
    item!("C8", targets::c8, "all processes see and change one state"),
    item!("C9", targets::c9, "an SRQ can be destroyed while another process has the TGT"),
    item!("D6", targets::d6, "the limit event goes to the SRQ's owner alone"),
    item!("F4", targets::f4, "an empty SRQ of one process delays later messages to another process"),
    item!("G1", targets::g1, "one TGT delivers to the SRQs of two processes, each message to the named one"),
    item!("G4", targets::g4, "the SRQ decides which process's memory a message can access"),
    item!("G8", targets::g8, "a send to a killed process ends in an error, and the other processes continue"),
    item!("G9", targets::g9, "an empty SRQ of another process holds the sender back"),
    item!(
        "G10",
        targets::g10,
        "a message that is too long for the receive of another process ends send and receive in errors"
    ),
    item!("H1", targets::h1, "an error of a TGT is reported to every process with a handle"),
    item!("H2", targets::h2, "an error of a TGT is reported after the creator has destroyed its handle"),
    item!("H3", targets::h3, "the first packet is reported to every process with a handle of the TGT"),
    item!("I2", targets::i2, "a TGT in ERR does not flush the receives of any process"),
    item!("I4", targets::i4, "the objects of a killed process are released, and the others keep working"),
];

/// Checks one item with several processes.
#[must_use]
pub fn run_process_item(bench: &dyn ProcessBench, item: &ProcessItem) -> Outcome {
    judged(|| {
        let stage = Stage::new(bench)?;
        has_xrc(stage.lab.near.device.as_ref())?;
        (item.check)(&stage)
    })
}

/// Runs the process item with the number `id`, for a test.
///
/// # Panics
/// Panics if the item failed.
#[doc(hidden)]
pub fn assert_process_item(bench: &dyn ProcessBench, id: &str) {
    let Some(item) = PROCESS_ITEMS.iter().find(|item| item.id.eq_ignore_ascii_case(id)) else {
        panic!("the suite has no item {id} for processes");
    };
    pass(bench, (item.id, item.title), run_process_item(bench, item));
}

/// The test bed of one item.
struct Stage<'a> {
    bench: &'a dyn ProcessBench,
    /// A lab in this process. Both its sides are one device.
    lab: Lab,
    far: IpAddr,
}

impl<'a> Stage<'a> {
    fn new(bench: &'a dyn ProcessBench) -> Verdict<Self> {
        let near = bench.open_near()?;
        Ok(Self { bench, lab: Lab::with(bench, [near.clone(), near])?, far: bench.far_address() })
    }

    /// Starts another process at the far address.
    fn puppet(&self, name: &'static str) -> Verdict<Puppet> {
        Puppet::adopt(name, self.bench.start_puppet(self.far)?)
    }

    /// Starts two processes at the far address.
    fn two(&self) -> Verdict<(Puppet, Puppet)> {
        Ok((self.puppet("the first process")?, self.puppet("the second process")?))
    }

    /// Connects a new INI to a TGT for which a puppet holds a handle.
    fn join(
        &self,
        puppet: &mut Puppet,
        name: &str,
        number: u32,
        terms: &Terms,
    ) -> Verdict<Arc<dyn QueuePair>> {
        let near = &self.lab.near;
        let ini = near.new_ini()?;
        puppet.does(&format!("up {name} {} {}", near.address, ini.number().get()))?;
        let end = End { side: near, qp: &ini, other: self.far.into(), peer: QpNumber::new(number) };
        end.bring_to(QpState::ReadyToSend, terms)?;
        Ok(ini)
    }

    /// Sends 8 bytes to an SRQ and waits for the completion.
    fn send(&self, ini: &Arc<dyn QueuePair>, srq: u32) -> Verdict {
        self.post(ini, srq)?;
        self.lab.succeeds("a send", &self.lab.near.cq, SEND, CompletionOpcode::Send)?;
        Ok(())
    }

    /// Posts a send of 8 bytes to an SRQ.
    fn post(&self, ini: &Arc<dyn QueuePair>, srq: u32) -> Verdict {
        let data = [self.lab.near.piece(0, 8)];
        Ok(ini.post_send(&[request(SEND, SendOperation::Send, &data, SrqNumber::new(srq))])?)
    }

    /// Waits for the completion of the next send, which must have the given status.
    fn ends(&self, what: &str, status: CompletionStatus) -> Verdict {
        self.lab.ends(what, &self.lab.near.cq, SEND, status)?;
        Ok(())
    }

    /// Waits for the completion of the next send, which must fail in the same way as a send to an unknown SRQ (contract
    /// G7).
    fn is_a_violation(&self, what: &str) -> Verdict<CompletionStatus> {
        let ended = self.lab.next(what, &self.lab.near.cq)?;
        equal("which send ended", ended.wr_id, SEND)?;
        let due = &self.lab.xrc_violation;
        crate::check::check(due.contains(&ended.status), || format!("{what} ended with {:?}", ended.status))?;
        Ok(ended.status)
    }
}

/// Work request id of every send.
const SEND: u64 = 42;
