//! A connection initiated by this side. It works in rounds, compares every byte, and reconnects.
//!
//! A round consists of a WRITE, a READ of the same memory, a READ of read-only memory, a fetch-and-add, and a SEND with
//! immediate.

use super::group::{Group, READ_ONLY, SLOT, read_only_bytes};
use super::served::{Grant, Hello, WINDOW, message};
use crate::Outcome;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::SoftDevice;
use trunkline_testkit::{Random, bytes_of, key};
use trunkline_verbs::{
    Access, CmChannel, CmId, CmIdNumber, Completion, CompletionStatus, ConnectParameters, Device,
    EndpointRequest, EndpointSide, Memory, MemoryRegion, PortSpace, QpType, QueuePair, RemoteAddress,
    SendData, SendFlags, SendOperation, SendRequest, Sge,
};

/// Number of work requests in a round.
const REQUESTS: u64 = 5;
/// Maximum length of a WRITE, in bytes. The counter follows the written memory.
const LONGEST: usize = 8000;
/// Offset of the counter in the peer's window.
const COUNTER: u64 = (WINDOW - 8) as u64;
/// Offsets in the line's own memory.
const SOURCE: usize = 0;
const SINK: usize = 8192;
const FIXED: usize = 16_384;
const COUNT: usize = FIXED + READ_ONLY;
const OUT: usize = COUNT + 64;
const OWN: usize = OUT + SLOT;
/// Time after which a round is considered stuck.
const HANGS: Duration = Duration::from_secs(20);
/// Pause between rounds, so that the exchange leaves processor time for the flood.
const REST: Duration = Duration::from_micros(500);
/// A duration that is longer than any run.
const NEVER: Duration = Duration::from_secs(3600);
/// `timeout` of 268 ms. A side that is delayed for a second on a loaded machine is then not considered dead.
const ACK_TIMEOUT: u8 = 16;
/// Pause between attempts to connect, so that rejected attempts do not cause too many requests.
const PAUSE: Duration = Duration::from_millis(20);

/// Numbers of rounds and of broken connections so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Rounds in which every byte was correct.
    pub(super) rounds: u64,
    /// Rounds with at least one wrong byte.
    pub(super) wrong: u64,
    /// Connections that broke.
    pub(super) broken: u64,
    /// Connections that were re-established.
    pub(super) reconnected: u64,
    /// Longest time between the loss of a connection and the next connection.
    pub(super) longest_ms: u128,
}

#[derive(Debug)]
enum Stage {
    /// Disconnected until this time.
    Down(Instant),
    Connecting(Link),
    Up(Link, Grant),
}

#[derive(Debug)]
struct Link {
    id: Arc<dyn CmId>,
    qp: Arc<dyn QueuePair>,
}

/// A line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) index: u64,
    pub(super) tally: Tally,
    hello: Hello,
    qp_type: QpType,
    remote: SocketAddr,
    stage: Stage,
    /// Number of connections so far. It distinguishes completions of earlier connections.
    generation: u64,
    round: u64,
    written: (usize, usize),
    outstanding: u64,
    posted: Instant,
    /// Start of the next round; `None` during a round.
    rests_until: Option<Instant>,
    broke: Option<Instant>,
    own: Arc<dyn MemoryRegion>,
    random: Random,
}

impl Line {
    pub(super) fn new(
        index: u64,
        group: &Group,
        bystander: bool,
        qp_type: QpType,
        remote: SocketAddr,
        seed: u64,
    ) -> Outcome<Self> {
        let own = group.pd.register(Memory::zeroed(OWN)?, Access::LOCAL_WRITE)?;
        let mut random = Random(seed);
        let hello = Hello { bystander, nonce: random.next() };
        let now = Instant::now();
        Ok(Self {
            index,
            tally: Tally::default(),
            hello,
            qp_type,
            remote,
            stage: Stage::Down(now),
            generation: 0,
            round: 0,
            written: (0, 0),
            outstanding: 0,
            posted: now,
            rests_until: None,
            broke: None,
            own,
            random,
        })
    }

    pub(super) const fn is_bystander(&self) -> bool {
        self.hello.bystander
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(..))
    }

    pub(super) fn qp_number(&self) -> Option<u32> {
        match &self.stage {
            Stage::Up(link, _) | Stage::Connecting(link) => Some(link.qp.number().get()),
            Stage::Down(_) => None,
        }
    }

    pub(super) fn id(&self) -> Option<CmIdNumber> {
        match &self.stage {
            Stage::Up(link, _) | Stage::Connecting(link) => Some(link.id.number()),
            Stage::Down(_) => None,
        }
    }

    /// Connects when the pause has ended, and checks that the line is not stuck.
    pub(super) fn drive(
        &mut self,
        device: &SoftDevice,
        group: &Group,
        channel: &Arc<dyn CmChannel>,
        now: Instant,
    ) -> Outcome<()> {
        match &self.stage {
            Stage::Down(at) if *at <= now => self.connect(device, group, channel)?,
            Stage::Up(..) if self.rests_until.is_some_and(|at| at <= now) => self.start_round(),
            Stage::Up(..) | Stage::Connecting(_) if now > self.posted + HANGS => {
                eprintln!("line {} hangs", self.index);
                self.break_off();
            }
            _ => {}
        }
        Ok(())
    }

    fn connect(&mut self, device: &SoftDevice, group: &Group, channel: &Arc<dyn CmChannel>) -> Outcome<()> {
        let side = EndpointSide::Active { remote: self.remote, source: None };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: self.qp_type };
        let id = device.connection_manager().create_endpoint(&request, channel)?;
        let qp = group.qp(device, self.qp_type)?;
        id.attach(Arc::clone(&qp))?;
        self.hello.nonce = self.random.next();
        let private_data = self.hello.to_bytes();
        id.connect(&ConnectParameters {
            private_data,
            ack_timeout: ACK_TIMEOUT,
            ..ConnectParameters::default()
        })?;
        self.generation += 1;
        self.posted = Instant::now();
        self.stage = Stage::Connecting(Link { id, qp });
        Ok(())
    }

    /// Handles the peer's acceptance.
    pub(super) fn established(&mut self, private_data: &[u8]) {
        let Some(grant) = Grant::parse(private_data) else { return self.break_off() };
        self.stage = match std::mem::replace(&mut self.stage, Stage::Down(self.posted)) {
            Stage::Connecting(link) => Stage::Up(link, grant),
            other => other,
        };
        if let Some(broke) = self.broke.take() {
            self.tally.reconnected += 1;
            self.tally.longest_ms = self.tally.longest_ms.max(broke.elapsed().as_millis());
        }
        self.round = 0;
        self.outstanding = 0;
        self.start_round();
    }

    /// Handles the end of the connection, or a failure to establish it.
    pub(super) fn break_off(&mut self) {
        let was_up = self.is_up();
        // A bystander does not reconnect, because forged packets may name its next QP.
        let again = Instant::now() + if was_up && self.is_bystander() { NEVER } else { PAUSE };
        match std::mem::replace(&mut self.stage, Stage::Down(again)) {
            Stage::Up(link, _) | Stage::Connecting(link) => {
                let _over = link.id.disconnect();
                let _left = link.id.detach();
                let _gone = link.qp.destroy();
            }
            Stage::Down(_) => {}
        }
        if was_up {
            self.tally.broken += 1;
            self.broke = Some(Instant::now());
        }
    }

    /// Ends the connection, so that the line reconnects.
    pub(super) fn renew(&mut self) {
        if self.is_up() {
            self.break_off();
        }
        self.broke = Some(Instant::now());
    }

    fn start_round(&mut self) {
        self.rests_until = None;
        if self.post_round().is_err() {
            self.break_off();
        }
    }

    fn post_round(&mut self) -> Outcome<()> {
        let length = 1 + self.random.below(LONGEST);
        let offset = self.random.below(LONGEST - length + 1);
        let sent = 16 + self.random.below(SLOT - 16 + 1);
        self.written = (offset, length);
        let Stage::Up(link, grant) = &self.stage else { return Ok(()) };
        let memory = self.own.memory();
        memory.write(SOURCE, &bytes_of(key(&[self.hello.nonce, self.round]), length))?;
        memory.write(OUT, &message(self.hello.nonce, self.round, sent))?;
        let at = |offset: usize, length: usize| -> Outcome<[Sge; 1]> {
            Ok([Sge {
                address: memory.address(offset),
                length: u32::try_from(length)?,
                lkey: self.own.lkey(),
            }])
        };
        let plus = |remote: RemoteAddress, bytes: u64| RemoteAddress {
            address: remote.address.plus(bytes),
            rkey: remote.rkey,
        };
        let target = plus(grant.window, offset as u64);
        let [low, ..] = [u32::try_from(self.round & 0xffff_ffff)?];
        let work = [
            (SendOperation::RdmaWrite(target), at(SOURCE, length)?),
            (SendOperation::RdmaRead(target), at(SINK, length)?),
            (SendOperation::RdmaRead(grant.read_only), at(FIXED, READ_ONLY)?),
            (SendOperation::FetchAdd { remote: plus(grant.window, COUNTER), add: 1 }, at(COUNT, 8)?),
            (SendOperation::SendWithImmediate(low), at(OUT, sent)?),
        ];
        let wr_id = self.index << 32 | self.generation & 0xffff_ffff;
        let requests = work.each_ref().map(|(operation, gather)| SendRequest {
            wr_id,
            operation: *operation,
            data: SendData::Gather(gather),
            flags: SendFlags::SIGNALED,
            remote_srq: grant.srq,
        });
        link.qp.post_send(&requests)?;
        self.outstanding = REQUESTS;
        self.posted = Instant::now();
        Ok(())
    }

    /// Handles a completion of this line.
    pub(super) fn complete(&mut self, completion: &Completion) -> Outcome<()> {
        if completion.wr_id & 0xffff_ffff != self.generation & 0xffff_ffff || !self.is_up() {
            return Ok(()); // a completion of an earlier connection
        }
        if completion.status != CompletionStatus::Success {
            if self.is_bystander() {
                eprintln!("bystander {}: {}", self.index, completion.status.explain());
            }
            self.break_off();
            return Ok(());
        }
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            if self.is_right()? {
                self.tally.rounds += 1;
            } else {
                self.tally.wrong += 1;
            }
            self.round += 1;
            self.rests_until = Some(Instant::now() + REST);
        }
        Ok(())
    }

    fn is_right(&self) -> Outcome<bool> {
        let memory = self.own.memory();
        let mut read = vec![0; self.written.1];
        memory.read(SINK, &mut read)?;
        let mut fixed = vec![0; READ_ONLY];
        memory.read(FIXED, &mut fixed)?;
        Ok(read == bytes_of(key(&[self.hello.nonce, self.round]), read.len())
            && fixed == read_only_bytes()
            && memory.load(COUNT)? == self.round)
    }
}
