//! The processes of a scenario, the streams between them, and the checks of the streams.

use crate::Outcome;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trunkline_testkit::{Claims, Folder, Numbers, Process, fresh_ip, same_program};

/// Time limit of every wait, for a loaded machine.
const BOUND: Duration = Duration::from_secs(20);
/// Time within which a surviving stream must continue. A lost message is sent again within the ACK timeout,
/// 134 ms, and port 4791 or a TGT is taken over within 100 ms. The rest is a reserve for a loaded machine.
const RECOVERY_MS: u64 = 2000;
/// `IBV_WC_RETRY_EXC_ERR` and `IBV_WC_REM_INV_RD_REQ_ERR`.
pub(super) const RETRY_EXCEEDED: u64 = 12;
pub(super) const UNKNOWN_SRQ: u64 = 15;

/// A stream from a sender to a member's SRQ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    number: u64,
}

/// A receiving process with its SRQ.
pub(super) struct Member {
    pub(super) process: Process,
    pub(super) srq: u32,
}

/// A host whose processes share an address, and the addresses of two peers.
pub(super) struct Testbed {
    pub(super) claims: Claims,
    /// Number of senders started so far.
    senders: usize,
    host: Ipv4Addr,
    pub(super) peer: Ipv4Addr,
    pub(super) other_peer: Ipv4Addr,
    /// The file of the XRC domain that members share.
    file: PathBuf,
    _folder: Folder,
}

impl Testbed {
    pub(super) fn new(scenario: &str) -> Outcome<Self> {
        let folder = Folder::new()?;
        let file = folder.join("domain");
        std::fs::write(&file, b"")?;
        let claims = Claims::new(format!("deaths-{scenario}"), false);
        let (host, peer, other_peer) = (fresh_ip(), fresh_ip(), fresh_ip());
        Ok(Self { claims, senders: 0, host, peer, other_peer, file, _folder: folder })
    }

    /// Checks that a stream worked, and has ended with this status.
    pub(super) fn has_failed_with(&mut self, ended: &Numbers, status: u64) {
        self.claims.claim(
            ended["failed"] == status && ended["completed"] > 0,
            "told",
            &format!(
                "{} messages before; status {} after {} ms",
                ended["completed"], ended["failed"], ended["failed_ms"]
            ),
        );
    }

    /// Starts a process at the host's address, in the file's domain if `shares` is set.
    pub(super) fn member(&self, name: &str, shares: bool) -> Outcome<Member> {
        let mut arguments = vec!["receive".to_owned(), self.host.to_string()];
        if shares {
            arguments.push(self.file.display().to_string());
        }
        let mut process = start(name, &arguments)?;
        let srq = process.after("SRQ")?.parse()?;
        Ok(Member { process, srq })
    }

    pub(super) fn sender(&mut self, address: Ipv4Addr) -> Outcome<Process> {
        self.senders += 1;
        let first = 1000 * self.senders;
        start("the sender", &["send".to_owned(), address.to_string(), first.to_string()])
    }

    /// Creates an INI at the sender and a TGT for it at `creator`.
    pub(super) fn pair(
        &self,
        sender: &mut Process,
        from: Ipv4Addr,
        creator: &mut Member,
    ) -> Outcome<(Stream, u32)> {
        let answer = sender.ask("ini")?;
        let (number, qpn) = answer.split_once(' ').ok_or("not an INI")?;
        let tgt = creator.process.ask(&format!("create {from} {qpn}"))?.parse()?;
        Ok((Stream { number: number.parse()? }, tgt))
    }

    pub(super) fn start(&self, sender: &mut Process, stream: Stream, tgt: u32, srq: u32) -> Outcome<()> {
        sender.ask(&format!("connect {} {} {tgt} {srq}", stream.number, self.host))?;
        Ok(())
    }

    /// Starts a stream through the member's own TGT.
    pub(super) fn stream(
        &self,
        sender: &mut Process,
        from: Ipv4Addr,
        member: &mut Member,
    ) -> Outcome<Stream> {
        let (stream, tgt) = self.pair(sender, from, member)?;
        self.start(sender, stream, tgt, member.srq)?;
        Ok(stream)
    }

    /// Checks that a stream continued: more messages after the mark, none lost, duplicated or wrong.
    pub(super) fn goes_on(
        &mut self,
        name: &str,
        sender: &mut Process,
        member: &mut Member,
        stream: Stream,
        before: u64,
    ) -> Outcome<()> {
        let sent = stream.at(sender)?;
        // Acknowledged messages are in the member's CQ, which it may not have polled yet.
        let received = stream.wait(&mut member.process, |got| got["received"] >= sent["completed"])?;
        let holds = sent["failed"] == 0
            && sent["completed"] > before
            && sent["gap_ms"] < RECOVERY_MS
            && received["wrong"] == 0
            && received["received"] >= sent["completed"];
        let measured = format!(
            "{before} messages before, {} after, longest gap {} ms, {} wrong, status {}",
            sent["completed"].saturating_sub(before),
            sent["gap_ms"],
            received["wrong"],
            sent["failed"],
        );
        self.claims.claim(holds, name, &measured);
        Ok(())
    }
}

impl Stream {
    pub(super) fn at(self, process: &mut Process) -> Outcome<Numbers> {
        Ok(process.numbers(&format!("stream {}", self.number))?)
    }

    pub(super) fn completed(self, sender: &mut Process) -> Outcome<u64> {
        Ok(self.at(sender)?["completed"])
    }

    /// Waits until it has failed; returns its status and the time until then.
    pub(super) fn failure(self, sender: &mut Process) -> Outcome<Numbers> {
        self.wait(sender, |numbers| numbers["failed"] != 0)
    }

    /// Waits until a message was acknowledged beyond `count`.
    pub(super) fn beyond(self, sender: &mut Process, count: u64) -> Outcome<Numbers> {
        self.wait(sender, |numbers| numbers["completed"] > count || numbers["failed"] != 0)
    }

    fn wait(self, sender: &mut Process, until: impl Fn(&Numbers) -> bool) -> Outcome<Numbers> {
        let start = Instant::now();
        loop {
            let numbers = self.at(sender)?;
            if until(&numbers) || start.elapsed() > BOUND {
                return Ok(numbers);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Time limit of a wait for an answer, for a loaded machine.
const ANSWER: Duration = Duration::from_secs(60);

/// Starts this program again with another role.
fn start(name: &str, arguments: &[String]) -> Outcome<Process> {
    Ok(Process::start(name, same_program().args(arguments))?.with_bound(ANSWER))
}
