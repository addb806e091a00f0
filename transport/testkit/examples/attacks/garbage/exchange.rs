//! The two exchanges of a run. They consist of four processes, and their two victims share an address.

use super::flood::{Flood, Way};
use super::forge::Forge;
use crate::Outcome;
use crate::forge::Tap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use trunkline_testkit::{Numbers, Process, Random, fresh_ip, same_program};
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey};

/// Time limit for all lines to work again after the flood.
const BOUND: Duration = Duration::from_secs(30);
/// Pause between the end of the flood and the new connections.
const REST: Duration = Duration::from_millis(500);
/// Time limit of a wait for an answer. It allows for a loaded machine.
const ANSWER: Duration = Duration::from_secs(60);
/// Ports of the two exchanges. Each also uses the next port.
const PORTS: [u16; 2] = [7, 9];

/// The `status` answers of all sides.
pub(super) struct All(pub(super) Vec<Numbers>);

impl All {
    pub(super) fn sum(&self, name: &str) -> u64 {
        self.0.iter().map(|side| side.get(name).copied().unwrap_or(0)).sum()
    }

    pub(super) fn rounds(&self) -> u64 {
        self.sum("attacked_rounds") + self.sum("bystander_rounds")
    }
}

/// Two exchanges whose victims share an address, with the means to impersonate the victims' peers.
pub(super) struct Exchanges {
    /// In this order: the first victim, which holds port 4791; its peer; the second victim; its peer.
    sides: Vec<Process>,
    pub(super) ways: Vec<Way>,
    pub(super) forge: Forge,
    pub(super) victim: IpAddr,
}

impl Exchanges {
    pub(super) fn start(scratch: &Path, random: &mut Random) -> Outcome<Self> {
        let (victim, peers) = (IpAddr::from(fresh_ip()), [fresh_ip(), fresh_ip()].map(IpAddr::from));
        let mut exchanges = Self { sides: Vec::new(), ways: Vec::new(), forge: Forge::default(), victim };
        for (peer, port) in peers.into_iter().zip(PORTS) {
            let capture = scratch.join(format!("{port}.pcap"));
            let pair = [node(victim, peer, port, None)?, node(peer, victim, port, Some(&capture))?];
            for (mut side, is_victim) in pair.into_iter().zip([true, false]) {
                let (bystanders, forbidden) = ready(&mut side)?;
                exchanges.forge.protect(bystanders);
                exchanges.forge.forbidden.extend(forbidden.into_iter().filter(|_| is_victim));
                exchanges.sides.push(side);
            }
            let mut tap = Tap::open(&capture, peer, victim)?;
            tap.follow(|seen| exchanges.forge.learn_ids(seen))?;
            tap.forget();
            exchanges.ways.push(Way::new(tap, peer, random)?);
        }
        Ok(exchanges)
    }

    pub(super) fn status(&mut self) -> Outcome<All> {
        Ok(All(self.sides.iter_mut().map(|side| side.numbers("status")).collect::<Result<_, _>>()?))
    }

    /// Returns the sum of both victims' counters.
    pub(super) fn counters(&mut self) -> Outcome<Numbers> {
        let mut sum = self.sides[0].numbers("counters")?;
        for (name, value) in self.sides[2].numbers("counters")? {
            *sum.entry(name).or_default() += value;
        }
        Ok(sum)
    }

    /// Returns true if packets can be sent from the ports of the victims' peers.
    pub(super) fn can_forge_ports(&self) -> bool {
        self.ways.iter().all(|way| way.raw.is_some())
    }

    /// Returns the number of forged packets that the kernel accepted.
    pub(super) fn sent(&self) -> u64 {
        self.ways.iter().map(Way::sent).sum()
    }

    pub(super) fn memory_kib(&self) -> Outcome<Vec<[u64; 2]>> {
        Ok(self.sides.iter().map(Process::resident_kib).collect::<Result<_, _>>()?)
    }

    /// Reconnects the lines whose QPs forged packets may name, and waits until all lines work. Returns the time taken, or
    /// `None` if a line does not work within the time limit.
    pub(super) fn settle(&mut self, flood: Flood) -> Outcome<Option<Duration>> {
        if flood == Flood::Right {
            // Packets of the flood that are still queued must not count against the new connections.
            std::thread::sleep(REST);
            self.status()?;
            for side in &mut self.sides {
                side.tell("renew")?;
            }
        }
        let start = Instant::now();
        let mut up = None;
        let mut first = self.status()?;
        while start.elapsed() < BOUND {
            let now = self.status()?;
            if up.is_none() && now.sum("attacked_down") + now.sum("bystander_down") == 0 {
                up = Some(start.elapsed());
                if flood == Flood::Right {
                    // Errors of the closed connections must not count either.
                    for side in &mut self.sides {
                        side.ask("forgive")?;
                    }
                    first = self.status()?;
                    continue;
                }
            }
            let went_on = |name: &str| now.sum(name) >= first.sum(name) + 50;
            if up.is_some() && went_on("attacked_rounds") && went_on("bystander_rounds") {
                return Ok(up);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(None)
    }
}

/// Starts a process for one side of an exchange.
fn node(own: IpAddr, peer: IpAddr, port: u16, capture: Option<&Path>) -> Outcome<Process> {
    let mut arguments = vec!["exchange".to_owned(), own.to_string(), peer.to_string(), port.to_string()];
    arguments.extend(capture.map(|path| path.display().to_string()));
    let name = format!("the side at {own}, port {port}");
    Ok(Process::start(name, same_program().args(arguments))?.with_bound(ANSWER))
}

/// Waits until a side is ready. Returns the QPs that forged packets must not name, and the memory to which attacked
/// connections have no access rights.
fn ready(side: &mut Process) -> Outcome<(Vec<u32>, Vec<RemoteAddress>)> {
    let (mut bystanders, mut forbidden) = (Vec::new(), Vec::new());
    loop {
        let line = side.line()?;
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["READY"] => return Ok((bystanders, forbidden)),
            ["BYSTANDER", number] => bystanders.push(number.parse()?),
            ["FORBIDDEN", rkey, address] => {
                let address = IoAddress(address.parse()?);
                forbidden.push(RemoteAddress { address, rkey: Rkey(rkey.parse()?) });
            }
            _ => {}
        }
    }
}
