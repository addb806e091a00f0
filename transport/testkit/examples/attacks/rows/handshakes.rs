//! Handshakes by strangers, by many clients at the same time, and by new nodes during calls.

use super::flooded::nothing_lost;
use crate::forge::{Dialer, Forger, message_in};
use crate::honest::{Party, PartyPair, Setup};
use crate::{Outcome, Plan};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{ICRC_LENGTH, ROCE_PORT};
use trunkline_testkit::{Claims, Folder, Hello, Numbers, Random};

/// Number of rounds. Each round measures every [`Arm`].
const ROUNDS: usize = 3;
/// Number of addresses of the strangers. Each address may have 64 unproven sessions, and all together may have 1,024.
const STRANGERS: usize = 64;
/// Maximum number of unanswered requests of a stranger, and the time after which the stranger abandons them.
const AWAITED: usize = 4;
const GIVE_UP: Duration = Duration::from_millis(100);
/// Pause of the strangers while all of them wait for answers. Without it, they would spin and take processor time from the
/// calls.
const PAUSE: Duration = Duration::from_micros(200);
/// Minimum ratio of an honest pair's call rate during the strangers' handshakes to its usual rate.
const KEPT: f64 = 0.5;
/// Time limit for a new peer with a certificate to join during the handshakes, in microseconds.
const JOIN_US: u64 = 2_000_000;
/// Memory of all unproven sessions, as in `docs/book/src/why/security.md`, and maximum overhead of the allocator, both in
/// MiB.
const MEMORY_MIB: [u64; 2] = [42, 16];
/// Time after which all unproven sessions are freed.
const AFTERMATH: Duration = Duration::from_secs(12);
/// Number of processes with clients of a server, and time limit for all clients to reconnect after the server's restart.
const PROCESSES: usize = 4;
const RETURN: Duration = Duration::from_secs(10);
/// Handshakes per second, and maximum factor by which they may increase the median call time.
const RATE: u64 = 100;
const FACTOR: f64 = 1.5;

/// The load beside the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    Quiet,
    /// Handshakes with another server, which show their cost for the machine.
    Elsewhere,
    Here,
}

/// Results of a pair's calls during an arm.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    calls_per_s: f64,
    p50_us: f64,
    p99_us: u64,
}

/// Measures the calls during each arm. Each round begins with a different arm. `beside` runs the load until the arm's end.
fn rounds(
    pair: &mut PartyPair,
    findings: &mut Claims,
    mut beside: impl FnMut(&mut PartyPair, Arm) -> Outcome<()>,
) -> Outcome<[[Measured; 3]; ROUNDS]> {
    let before = pair.client.tally()?;
    let mut all = [[Measured::default(); 3]; ROUNDS];
    for (round, measured) in all.iter_mut().enumerate() {
        for arm in 0..3 {
            let arm = [Arm::Quiet, Arm::Elsewhere, Arm::Here][(arm + round) % 3];
            let (first, start) = (pair.client.tally()?, Instant::now());
            beside(pair, arm)?;
            let last = pair.client.tally()?;
            let calls_per_s = (last["small"] - first["small"]) as f64 / start.elapsed().as_secs_f64();
            measured[arm as usize] =
                Measured { calls_per_s, p50_us: last["p50_us"] as f64, p99_us: last["p99_us"] };
            std::thread::sleep(Duration::from_secs(1));
        }
        let text = |Measured { calls_per_s, p50_us, p99_us }: &Measured| {
            format!("{calls_per_s:.0}/s, p50 {p50_us} us, p99 {p99_us} us")
        };
        let [quiet, elsewhere, here] = measured.each_ref().map(text);
        findings.note("calls", &format!("quiet {quiet}; elsewhere {elsewhere}; here {here}"));
    }
    nothing_lost(findings, &before, &pair.client.tally()?);
    Ok(all)
}

/// Returns the median over the rounds of an arm's figure divided by the figure of the quiet arm.
fn ratio(all: &[[Measured; 3]; ROUNDS], arm: Arm, figure: impl Fn(&Measured) -> f64) -> f64 {
    let mut ratios = all.each_ref().map(|arms| figure(&arms[arm as usize]) / figure(&arms[0]).max(1.0));
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2]
}

/// An address that begins handshakes and returns cookies, but sends no other answers.
struct Stranger {
    forger: Forger,
    dialer: Dialer,
    /// Unanswered requests, by comm id.
    awaited: HashMap<u32, Hello>,
    asked: Instant,
    /// Numbers of accepted and of refused sessions.
    sessions: u64,
    refused: u64,
}

impl Stranger {
    fn new(plan: &Plan, victim: SocketAddr) -> Outcome<Self> {
        let ip = plan.address(false);
        let hello = Hello { has_handshake: plan.identities, is_rc: !plan.is_xrc(), ..Hello::new(0, 0) };
        Ok(Self {
            forger: Forger::bind(SocketAddr::new(ip, ROCE_PORT))?,
            dialer: Dialer { claimed: ip, victim, hello },
            awaited: HashMap::new(),
            asked: Instant::now(),
            sessions: 0,
            refused: 0,
        })
    }

    /// Sends the request of another node, and repeats the requests for which cookies have arrived.
    fn turn(&mut self, random: &mut Random) -> Outcome<()> {
        let mut proven = Vec::new();
        let Self { forger, awaited, sessions, refused, .. } = self;
        forger.receive(|packet| match message_in(&packet[..packet.len().saturating_sub(ICRC_LENGTH)]) {
            Some(CmMessage::Rej(rej)) => {
                let Some(hello) = awaited.remove(&rej.remote_id) else { return };
                match Hello::cookie_in(&rej.private) {
                    Some(cookie) => proven.push(Hello { cookie, ..hello }),
                    None => *refused += 1,
                }
            }
            Some(CmMessage::Rep(rep)) => *sessions += u64::from(awaited.remove(&rep.remote_id).is_some()),
            _ => {}
        });
        for hello in proven {
            self.send(hello, random)?;
        }
        if self.asked.elapsed() > GIVE_UP {
            self.awaited.clear();
        }
        if self.awaited.len() >= AWAITED {
            return Ok(());
        }
        let port = 1024 + u16::try_from(self.forger.sent % 60_000)?;
        let hello = Hello { port, epoch: random.next() | 1, cookie: [0; 16], ..self.dialer.hello.clone() };
        self.send(hello, random)
    }

    fn send(&mut self, hello: Hello, random: &mut Random) -> Outcome<()> {
        self.dialer.hello = hello;
        self.asked = Instant::now();
        let (id, request) = self.dialer.repeat(random);
        self.awaited.insert(id, self.dialer.hello.clone());
        self.forger.send(&request, self.dialer.port_of_victim())
    }
}

/// Begins handshakes and never finishes them, while calls are made.
pub(crate) fn unproven(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    let other = Setup::new(&pair.folder, plan).far(plan).start()?;
    let strangers = (0..STRANGERS).map(|_| Stranger::new(plan, server));
    let mut strangers = strangers.collect::<Result<Vec<_>, _>>()?;
    let mut newcomers =
        (0..ROUNDS).map(|_| Setup::new(&pair.folder, plan).start()).collect::<Result<Vec<_>, _>>()?;
    let mut joins = Vec::new();
    let over = plan.over() / 2;
    let settled = (pair.server.process.numbers("qps")?, pair.server.process.resident_kib()?[0] >> 10);
    let counters = pair.server.process.numbers("counters")?;
    let all = rounds(&mut pair, findings, |pair, arm| {
        for stranger in &mut strangers {
            stranger.dialer.victim = if arm == Arm::Here { server } else { other.address };
        }
        let ends = AtomicBool::new(arm == Arm::Quiet);
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let mut random = Random::from_entropy();
                while !ends.load(Ordering::Relaxed) {
                    let sent = strangers.iter().map(|one| one.forger.sent).sum::<u64>();
                    strangers
                        .iter_mut()
                        .try_for_each(|one| one.turn(&mut random))
                        .map_err(|e| e.to_string())?;
                    if sent == strangers.iter().map(|one| one.forger.sent).sum::<u64>() {
                        std::thread::sleep(PAUSE);
                    }
                }
                Ok::<_, String>(())
            });
            std::thread::sleep(over);
            if arm == Arm::Here {
                joins.extend(newcomers.pop().map(|mut newcomer| newcomer.first(pair.server.address)));
            }
            ends.store(true, Ordering::Relaxed);
            Ok(flood.join().expect("the flood does not panic")?)
        })
    })?;
    let sum = |of: fn(&Stranger) -> u64| strangers.iter().map(of).sum::<u64>();
    let [sent, sessions, refused] =
        [sum(|one| one.forger.sent), sum(|one| one.sessions), sum(|one| one.refused)];
    findings.note("flood", &format!("{sent} requests sent, {sessions} sessions begun, {refused} refused"));
    findings.claim(sessions > 0, "reaches-the-server", &format!("{sessions} sessions begun"));
    let rate = |measured: &Measured| measured.calls_per_s;
    let [kept, elsewhere] = [Arm::Here, Arm::Elsewhere].map(|arm| ratio(&all, arm, rate));
    let measured =
        format!("x{kept:.2} of the calls a second, at least x{KEPT}; flood elsewhere x{elsewhere:.2}");
    findings.timed(plan.strict, kept >= KEPT, "calls-kept", &measured);
    let slowest = joins.iter().map(|join| join.as_ref().map_or(u64::MAX, |us| *us)).max().unwrap_or(u64::MAX);
    findings.claim(slowest <= JOIN_US, "newcomers-join", &format!("{joins:?} us, at most {JOIN_US}"));
    let grown = pair.server.most_mib()?.saturating_sub(settled.1);
    let [memory, slack] = MEMORY_MIB;
    findings.claim(
        grown <= memory + slack,
        "memory",
        &format!("{grown} MiB more, at most {memory} + {slack}"),
    );
    std::thread::sleep(AFTERMATH);
    let left = pair.server.process.numbers("qps")?;
    findings.claim(left == settled.0, "nothing-left", &format!("QPs {left:?}, before {:?}", settled.0));
    let now = pair.server.process.numbers("counters")?;
    let more = |name: &str| now[name].saturating_sub(counters[name]);
    let grown: Vec<String> =
        now.keys().filter(|name| more(name) > 0).map(|name| format!("{name} {}", more(name))).collect();
    findings.note("counters", &grown.join(", "));
    findings.claim(
        more("sessions_proven") == ROUNDS as u64,
        "none-proven",
        &format!("{} sessions proven", more("sessions_proven")),
    );
    Ok(())
}

/// Kills a server that has many clients, and starts it again.
pub(crate) fn back(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    let setup = Setup::new(&folder, plan).pollers(plan.pollers);
    let mut server = setup.start()?;
    let processes = (0..PROCESSES).map(|_| Setup::new(&folder, plan).start());
    let mut processes = processes.collect::<Result<Vec<_>, _>>()?;
    let each = plan.clients / PROCESSES;
    let start = Instant::now();
    let made = all(&mut processes, &format!("crowd {} {each}", server.address))?;
    let made = made.iter().map(|one| one["nodes"]).sum::<u64>();
    findings.note("clients", &format!("{made} of {} made in {:.1?}", plan.clients, start.elapsed()));
    server.process.kill()?;
    processes.iter_mut().try_for_each(|one| one.process.tell("again"))?;
    let start = Instant::now();
    server = setup.start()?;
    let served = start.elapsed();
    for one in &mut processes {
        one.process.after("AGAIN")?;
    }
    let took = start.elapsed();
    let counters = server.process.numbers("counters")?;
    let measured = format!(
        "{made} clients in {took:.1?}, of these {served:.1?} until the server listened, at most {RETURN:?}; {} \
         handshakes begun, {} failed, {} sessions proven",
        counters["handshakes_begun"], counters["handshakes_failed"], counters["sessions_proven"]
    );
    findings.claim(took <= RETURN && counters["sessions_proven"] >= made, "all-return", &measured);
    Ok(())
}

/// Sends a line to all nodes before it reads their answers, and returns the answers.
fn all(parties: &mut [Party], line: &str) -> Outcome<Vec<Numbers>> {
    parties.iter_mut().try_for_each(|party| party.process.tell(line))?;
    let word = line.split(' ').next().unwrap_or_default().to_uppercase();
    let answers = parties.iter_mut().map(|party| {
        let answer = party.process.after(&word)?;
        let pairs = answer.split_whitespace().filter_map(|pair| pair.split_once('='));
        Ok(pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
    });
    answers.collect()
}

/// Opens sessions from new nodes while calls are made.
pub(crate) fn newcomers(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let other = Setup::new(&pair.folder, plan).start()?;
    let mut churner = Setup::new(&pair.folder, plan).start()?;
    let (mut made, mut failed, mut lasted) = (0, 0, Duration::ZERO);
    let measured = rounds(&mut pair, findings, |pair, arm| {
        let server = if arm == Arm::Here { pair.server.address } else { other.address };
        let start = Instant::now();
        if arm != Arm::Quiet {
            churner.process.ask(&format!("churn {server} {RATE}"))?;
        }
        std::thread::sleep(plan.over() / 2);
        let counts = churner.process.numbers("churned")?;
        if arm == Arm::Here {
            (made, failed, lasted) =
                (made + counts["sessions"], failed + counts["failed"], lasted + start.elapsed());
        }
        Ok(())
    })?;
    let rate = made as f64 / lasted.as_secs_f64();
    let told = format!("{rate:.0} handshakes a second, wanted {RATE}; {failed} of {made} failed");
    findings.claim(failed == 0 && rate >= 0.9 * RATE as f64, "rate", &told);
    let p50 = |measured: &Measured| measured.p50_us;
    let [here, elsewhere] = [Arm::Here, Arm::Elsewhere].map(|arm| ratio(&measured, arm, p50));
    let told = format!("x{here:.2} of the median, at most x{FACTOR}; at another server x{elsewhere:.2}");
    findings.timed(plan.strict, here <= FACTOR, "round-trips", &told);
    Ok(())
}
