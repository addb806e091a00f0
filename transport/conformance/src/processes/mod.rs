//! Items that need processes: who shares a domain, and what a death leaves behind.
//!
//! The initiator stands in this process, on a device of its own. The targets are puppets:
//! processes that share one address and do verbs on command ([`serve_puppet`]). A provider
//! implements [`ProcessBench`], whose processes call [`serve_puppet`], and runs the items of
//! [`PROCESS_ITEMS`] as it does those of [`crate::ITEMS`].

mod client;
mod domains;
mod puppet;
mod targets;

pub use puppet::serve_puppet;

use crate::check::{Verdict, equal};
use crate::connect::{End, Terms};
use crate::item::{Outcome, has_xrc, judged};
use crate::traffic::request;
use crate::{Bench, Lab, Port};
use client::Puppet;
use std::io;
use std::net::IpAddr;
use std::process::Child;
use std::sync::Arc;
use trunkline_verbs::{
    CompletionOpcode, CompletionStatus, QpNumber, QpState, QueuePair, SendOperation, SrqNumber, VerbsError,
};

/// A provider whose devices can be shared by processes.
pub trait ProcessBench: Send + Sync {
    /// The provider's name.
    fn provider(&self) -> &str;

    /// A device of this process that reaches the puppets.
    ///
    /// # Errors
    /// Why it cannot be opened; the item then fails.
    fn open_near(&self) -> Result<Port, VerbsError>;

    /// An address that the puppets of one item share.
    fn far_address(&self) -> IpAddr;

    /// Starts a process that serves as a puppet at the address, its input and output pipes.
    ///
    /// # Errors
    /// What the operating system answered.
    fn start_puppet(&self, address: IpAddr) -> io::Result<Child>;

    /// See [`Bench::xrc_violation`].
    fn xrc_violation(&self) -> &[CompletionStatus];
}

/// An item that needs processes.
#[derive(Debug, Clone, Copy)]
pub struct ProcessItem {
    /// Its number in the contract.
    pub id: &'static str,
    /// What holds among processes, in one sentence.
    pub title: &'static str,
    check: fn(&Stage<'_>) -> Verdict,
}

macro_rules! item {
    ($id:literal, $check:path, $title:literal) => {
        ProcessItem { id: $id, title: $title, check: $check }
    };
}

/// Every item there is, in the contract's order.
pub const PROCESS_ITEMS: &[ProcessItem] = &[
    item!("A1", domains::a1, "processes that open one inode have one domain"),
    item!("A3", domains::a3, "a new file at the path is a new domain for another process, too"),
    item!("A4", domains::a4, "of processes that race to make a domain one succeeds"),
    item!("A5", domains::a5, "the outcome depends on what other processes hold"),
    item!("A6", domains::a6, "a private domain is not reached from another process"),
    item!("A10", domains::a10, "an SRQ of one process and a TGT of another work together"),
    item!("A11", domains::a11, "objects of one process do not pin handles of another"),
    item!("A12", domains::a12, "a domain lives until its last process has left"),
    item!("A14", domains::a14, "a process that ends or is killed leaves no domain behind"),
    item!("B10", targets::b10, "of two processes that move one TGT one gets EINVAL"),
    item!("C4", targets::c4, "a TGT is opened by number from another process of the domain"),
    item!("C6", targets::c6, "a TGT lives on when its creator destroys its handle"),
    item!("C7", targets::c7, "a TGT lives on when its creator is killed"),
    item!("C8", targets::c8, "all processes see and change one state"),
    item!("C9", targets::c9, "an SRQ goes while another process has the TGT"),
    item!("D6", targets::d6, "the limit event goes to the SRQ's owner alone"),
    item!("F4", targets::f4, "an empty SRQ of one process holds up what was sent to another behind it"),
    item!("G1", targets::g1, "one TGT delivers to the SRQs of two processes, to each its own"),
    item!("G4", targets::g4, "the SRQ decides whose memory a message reaches"),
    item!("G8", targets::g8, "a send to a killed process ends in an error, and the others go on"),
    item!("G9", targets::g9, "an empty SRQ of another process holds the sender back"),
    item!("G10", targets::g10, "a message too long for the receive of another process ends both"),
    item!("H1", targets::h1, "an error of a TGT is told to every process that has it"),
    item!("H2", targets::h2, "and to an opener after the creator has gone"),
    item!("H3", targets::h3, "the first packet is told to every process that has the TGT"),
    item!("I2", targets::i2, "a TGT in ERR leaves the receives of all processes"),
    item!("I4", targets::i4, "what a killed process had goes, and the rest works on"),
];

/// Checks one item with processes of its own.
#[must_use]
pub fn run_process_item(bench: &dyn ProcessBench, item: &ProcessItem) -> Outcome {
    judged(|| {
        let stage = Stage::new(bench)?;
        has_xrc(stage.lab.near.device.as_ref())?;
        (item.check)(&stage)
    })
}

/// Runs the process item of this number, for a test.
///
/// # Panics
/// When it failed.
#[doc(hidden)]
pub fn assert_process_item(bench: &dyn ProcessBench, id: &str) {
    let Some(item) = PROCESS_ITEMS.iter().find(|item| item.id.eq_ignore_ascii_case(id)) else {
        panic!("the suite has no item {id} for processes");
    };
    match run_process_item(bench, item) {
        Outcome::Held => {}
        Outcome::Skipped(why) => println!("SKIPPED {} on {}: {why}", item.id, bench.provider()),
        Outcome::Failed(why) => panic!("{} ({}) on {}: {why}", item.id, item.title, bench.provider()),
    }
}

/// Where one item plays.
struct Stage<'a> {
    bench: &'a dyn ProcessBench,
    /// Both of its sides are the one device of this process.
    lab: Lab,
    far: IpAddr,
}

/// Opens the one device for both sides of a [`Lab`].
struct NearOnly<'a>(&'a dyn ProcessBench);

impl Bench for NearOnly<'_> {
    fn provider(&self) -> &str {
        self.0.provider()
    }

    fn link(&self) -> &str {
        "between processes"
    }

    fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
        let port = self.0.open_near()?;
        Ok([port.clone(), port])
    }

    fn xrc_violation(&self) -> &[CompletionStatus] {
        self.0.xrc_violation()
    }
}

impl<'a> Stage<'a> {
    fn new(bench: &'a dyn ProcessBench) -> Verdict<Self> {
        Ok(Self { bench, lab: Lab::new(&NearOnly(bench))?, far: bench.far_address() })
    }

    /// A further process at the far address.
    fn puppet(&self, name: &'static str) -> Verdict<Puppet> {
        Puppet::adopt(name, self.bench.start_puppet(self.far)?)
    }

    /// Two of them.
    fn two(&self) -> Verdict<(Puppet, Puppet)> {
        Ok((self.puppet("the first process")?, self.puppet("the second process")?))
    }

    /// Connects a fresh INI with a TGT that a puppet has a handle of.
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

    /// Sends 8 bytes to an SRQ and waits until they were taken.
    fn send(&self, ini: &Arc<dyn QueuePair>, srq: u32) -> Verdict {
        self.post(ini, srq)?;
        self.lab.succeeds("a send", &self.lab.near.cq, SEND, CompletionOpcode::Send)?;
        Ok(())
    }

    /// Sends 8 bytes to an SRQ.
    fn post(&self, ini: &Arc<dyn QueuePair>, srq: u32) -> Verdict {
        let data = [self.lab.near.piece(0, 8)];
        Ok(ini.post_send(&[request(SEND, SendOperation::Send, &data, SrqNumber::new(srq))])?)
    }

    /// The next send, which must end like this.
    fn ends(&self, what: &str, status: CompletionStatus) -> Verdict {
        self.lab.ends(what, &self.lab.near.cq, SEND, status)?;
        Ok(())
    }

    /// The next send, which must end as one to no SRQ does (contract G7).
    fn is_a_violation(&self, what: &str) -> Verdict<CompletionStatus> {
        let ended = self.lab.next(what, &self.lab.near.cq)?;
        equal("which send ended", ended.wr_id, SEND)?;
        let due = &self.lab.xrc_violation;
        crate::check::check(due.contains(&ended.status), || format!("{what} ended with {:?}", ended.status))?;
        Ok(ended.status)
    }
}

/// The number of each send.
const SEND: u64 = 42;
