//! Forged connection requests.

use super::flooded::{ROUNDS, compare, nothing_lost, unbound};
use crate::forge::{Caught, Dialer, Forger, Sink, Tap, message_in, paced, version_of};
use crate::honest::{PartyPair, Setup};
use crate::{Outcome, Plan};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_testkit::{Claims, Folder, Hello, Random, fresh_ip};

/// Number of addresses from which requests claim to come.
const ADDRESSES: usize = 16;
/// Number of packets in the flood of `lockout`, and its duration.
const LOCKOUT: (u64, Duration) = (21_000, Duration::from_secs(7));
/// Time limit for a new honest peer to join.
const JOIN: Duration = Duration::from_secs(1);
/// Time after which a peer counts as unable to join.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Maximum ratio of the bytes sent to claimed addresses to the bytes received from the strangers.
const GAIN: f64 = 1.2;
/// Time after a request within which all packets caused by it are sent.
const ECHO: Duration = Duration::from_secs(5);
/// Pause after each forged request of `restart`, in which its effects occur.
const PAUSE: Duration = Duration::from_millis(20);
/// Numbers of pollers of the nodes that `amplify` attacks.
const POLLERS: [u16; 3] = [1, 8, 32];

/// An attacker who claims arbitrary addresses and receives the packets sent to their UDP port 4791.
struct Strangers {
    forgers: Vec<Forger>,
    sinks: Vec<Sink>,
    dialers: Vec<Dialer>,
    got: Caught,
}

impl Strangers {
    fn new(count: usize, victim: SocketAddr, plan: &Plan, random: &mut Random) -> Outcome<Self> {
        let version = version_of(fresh_ip().into(), victim, plan.is_xrc(), random)?;
        let ips: Vec<IpAddr> = (0..count).map(|_| fresh_ip().into()).collect();
        let dialer = |ip: &IpAddr| Dialer::new(*ip, victim, plan.is_xrc(), version);
        Ok(Self {
            forgers: ips.iter().map(|ip| Forger::at(*ip)).collect::<Result<_, _>>()?,
            sinks: ips.iter().map(|ip| Sink::at(*ip)).collect::<Result<_, _>>()?,
            dialers: ips.iter().map(dialer).collect(),
            got: Caught::default(),
        })
    }

    /// Sends a request from one of the addresses to the victim, or to `instead` if it is given.
    fn one(&mut self, number: u64, instead: Option<SocketAddr>, random: &mut Random) -> Outcome<()> {
        let at = usize::try_from(number)? % self.forgers.len();
        let dialer = &mut self.dialers[at];
        // Each request has another listener port, as if it came from another node.
        dialer.hello.port = 1024 + u16::try_from(number / self.forgers.len() as u64 % 60_000)?;
        let request = dialer.request(random);
        self.forgers[at].send(&request, instead.unwrap_or(dialer.port_of_victim()))?;
        if number.is_multiple_of(10) {
            self.collect();
        }
        Ok(())
    }

    /// Counts the packets sent to the claimed addresses.
    fn collect(&mut self) {
        let caught = self.sinks.iter().map(Sink::caught).chain(self.forgers.iter().map(Forger::caught));
        for Caught { packets, bytes, .. } in caught {
            self.got.packets += packets;
            self.got.bytes += bytes;
        }
    }

    fn sent(&self) -> (u64, u64) {
        self.forgers.iter().fold((0, 0), |sum, forger| (sum.0 + forger.sent, sum.1 + forger.sent_bytes))
    }
}

/// Floods a node with requests while the node has a session.
pub(crate) fn storm(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut random = Random::from_entropy();
    let mut pair = PartyPair::start(plan, false)?;
    let victim = pair.server.address;
    let mut strangers = Strangers::new(ADDRESSES, victim, plan, &mut random)?;
    let nowhere = unbound(victim)?;
    let count = plan.rate * plan.seconds / ROUNDS;
    let (mut joins, mut real) = (Vec::new(), (0, 0));
    let mut newcomer = Setup::new(&pair.folder, plan).start()?;
    compare(&mut pair, plan, findings, |pair, is_real| {
        let before = strangers.sent();
        let over = plan.over() / u32::try_from(ROUNDS)?;
        let half = count / 2;
        paced(half, over / 2, |number| strangers.one(number, (!is_real).then_some(nowhere), &mut random))?;
        if is_real && joins.is_empty() {
            newcomer.process.tell(&format!("first {}", pair.server.address))?;
        }
        paced(count - half, over / 2, |number| {
            strangers.one(number, (!is_real).then_some(nowhere), &mut random)
        })?;
        if is_real && joins.is_empty() {
            let answer = newcomer.process.after("FIRST us=")?;
            joins.push(answer.split(' ').next().unwrap_or_default().parse::<u64>()?);
        }
        let after = strangers.sent();
        if is_real {
            real = (real.0 + after.0 - before.0, real.1 + after.1 - before.1);
        }
        Ok(())
    })?;
    std::thread::sleep(ECHO);
    strangers.collect();
    joined(findings, Duration::from_micros(joins[0]));
    gained(findings, "gain", real, &strangers.got);
    Ok(())
}

fn joined(findings: &mut Claims, took: Duration) {
    findings.claim(took <= JOIN, "newcomer-joins", &format!("within {took:?}"));
}

fn gained(findings: &mut Claims, name: &str, sent: (u64, u64), got: &Caught) {
    let gain = got.bytes as f64 / sent.1.max(1) as f64;
    let measured = format!(
        "{} requests ({} bytes) drew {} packets ({} bytes): x{gain:.2}",
        sent.0, sent.1, got.packets, got.bytes
    );
    findings.claim(gain <= GAIN, name, &measured);
}

/// Forges requests from the peer of a live session, as if the peer had restarted.
pub(crate) fn restart(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut random = Random::from_entropy();
    let mut pair = PartyPair::start(plan, plan.identities)?;
    let (server, client) = (pair.server.address, pair.client.address);
    let version = version_of(plan.address(false), server, plan.is_xrc(), &mut random)?;
    let sessions = pair.sessions()?;
    let before = pair.client.tally()?;
    // Each side's listener can be attacked from the other side's address.
    let sides = [(client, server, 1), (server, client, plan.pollers)];
    let mut cookies = 0;
    for (claimed, victim, pollers) in sides.into_iter().take(if plan.far.is_some() { 1 } else { 2 }) {
        let mut forger = Forger::at(claimed.ip())?;
        for number in 0..20 {
            let mut dialer = Dialer::new(claimed.ip(), victim, plan.is_xrc(), version);
            dialer.hello.pollers = pollers;
            dialer.hello.has_handshake = plan.identities && number % 2 == 0;
            forger.send(&dialer.request(&mut random), dialer.port_of_victim())?;
            std::thread::sleep(PAUSE);
            let cookie =
                if plan.identities { cookie_in(&pair.capture, victim.ip(), claimed.ip())? } else { None };
            if let Some(cookie) = cookie {
                dialer.hello.cookie = cookie;
                forger.send(&dialer.repeat(&mut random).1, dialer.port_of_victim())?;
                std::thread::sleep(PAUSE);
                cookies += 1;
            }
        }
    }
    // On a single host, the nodes drop packets from the attacker's port.
    if plan.far.is_some() {
        findings.claim(cookies == 20, "address-proved", &format!("20 requests drew {cookies} cookies"));
    }
    std::thread::sleep(ECHO);
    nothing_lost(findings, &before, &pair.client.tally()?);
    let now = pair.sessions()?;
    findings.claim(now == sessions, "session-lives", &format!("{} more sessions came up", now - sessions));
    Ok(())
}

/// Returns the last cookie sent by a node from one address to another, according to the node's capture.
fn cookie_in(capture: &Path, from: IpAddr, to: IpAddr) -> Outcome<Option<[u8; 16]>> {
    let mut cookie = None;
    Tap::open(capture, from, to)?.follow(|seen| {
        let is_between = seen.headers.source.ip() == from && seen.headers.destination.ip() == to;
        if is_between
            && seen.is_management()
            && let Some(CmMessage::Rej(rej)) = message_in(seen.body())
        {
            cookie = Hello::cookie_in(&rej.private).or(cookie);
        }
    })?;
    Ok(cookie)
}

/// Floods a node with requests, and then starts a new peer.
pub(crate) fn lockout(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut random = Random::from_entropy();
    let folder = Folder::new()?;
    let victim = Setup::new(&folder, plan).pollers(plan.pollers).start()?;
    let mut newcomer = Setup::new(&folder, plan).start()?;
    let mut strangers = Strangers::new(ADDRESSES, victim.address, plan, &mut random)?;
    let (count, over) = LOCKOUT;
    paced(count, over, |number| strangers.one(number, None, &mut random))?;
    let start = Instant::now();
    while newcomer.first(victim.address).is_err() && start.elapsed() < GIVE_UP {}
    joined(findings, start.elapsed());
    Ok(())
}

/// Forges one request, and measures the packets sent to the claimed address.
pub(crate) fn amplify(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut random = Random::from_entropy();
    for pollers in POLLERS {
        let folder = Folder::new()?;
        let victim = Setup::new(&folder, plan).pollers(pollers).start()?;
        let mut strangers = Strangers::new(1, victim.address, plan, &mut random)?;
        strangers.one(0, None, &mut random)?;
        std::thread::sleep(ECHO);
        strangers.collect();
        gained(findings, &format!("{pollers}-pollers"), strangers.sent(), &strangers.got);
    }
    Ok(())
}
