//! Load for a while: puts and gets, every answer checked against what was put.
//!
//! Each worker has keys that nobody else writes. A put that was answered is what a get must see; a
//! put that failed and may have run may be seen instead, also later. So what the statuses say is put
//! to the test: an answer that fits none of them is wrong.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use trunkline::{Bytes, Code, Node, Status};
use trunkline_example_kv::KvClient;

/// Keys of one worker.
const KEYS: u64 = 16;
/// One value in so many is large, the others are short.
const LARGE_EVERY: u64 = 16;
const LARGE_BYTES: usize = 40_000;
/// How often a line tells how it goes.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// What is counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    ok: u64,
    /// Calls that could not be made, or whose answer never came.
    unavailable: u64,
    /// Calls whose time was up.
    late: u64,
    /// Failures of any other kind.
    other: u64,
    /// Answers that cannot be.
    wrong: u64,
    last_error: String,
}

impl Totals {
    /// Whether all went as the statuses said.
    pub(crate) fn is_sound(&self) -> bool {
        self.wrong == 0 && self.other == 0 && self.ok > 0
    }

    fn failed(&mut self, status: &Status) {
        match status.code() {
            Code::Unavailable => self.unavailable += 1,
            Code::DeadlineExceeded => self.late += 1,
            _ => self.other += 1,
        }
        self.last_error = status.to_string();
    }

    fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.unavailable += other.unavailable;
        self.late += other.late;
        self.other += other.other;
        self.wrong += other.wrong;
        if !other.last_error.is_empty() {
            self.last_error.clone_from(&other.last_error);
        }
    }

    fn tell(&self, json: bool, since: Instant, node: &Node) {
        let seconds = since.elapsed().as_secs_f64();
        let Self { ok, unavailable, late, other, wrong, last_error } = self;
        let report = node.report();
        let incarnations = report.incarnations;
        let device = if report.removed_since.is_some() { "away" } else { "there" };
        if json {
            let last_error = last_error.escape_default();
            println!(
                "{{\"seconds\":{seconds:.1},\"ok\":{ok},\"unavailable\":{unavailable},\"late\":{late},\
                 \"other\":{other},\"wrong\":{wrong},\"device\":\"{device}\",\"incarnations\":{incarnations},\
                 \"last_error\":\"{last_error}\"}}"
            );
        } else {
            println!(
                "{seconds:6.1} s  ok {ok}  unavailable {unavailable}  late {late}  other {other}  wrong {wrong}  \
                 device {incarnations} {device}  {last_error}"
            );
        }
    }
}

/// What a key may hold.
#[derive(Debug, Default)]
struct Expected {
    /// The last value that was answered for; `None`: it was never put.
    settled: Option<u64>,
    /// Values that may have been put, or may yet be.
    perhaps: Vec<u64>,
}

struct Worker<'a> {
    client: KvClient,
    name: String,
    keys: HashMap<u64, Expected>,
    totals: Totals,
    shared: &'a Mutex<Totals>,
}

/// Runs `workers` at once for so long, and tells how it goes twice a second.
pub(crate) fn run(
    node: &Node,
    client: &(impl Fn() -> Result<KvClient, Status> + Sync),
    workers: u64,
    length: Duration,
    json: bool,
) -> Result<Totals, Status> {
    let start = Instant::now();
    let shared = Mutex::new(Totals::default());
    let run = unique();
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers)
            .map(|number| {
                let (shared, name) = (&shared, format!("load/{run:016x}/{number}"));
                scope.spawn(move || {
                    let client = client()?;
                    let mut worker =
                        Worker { client, name, keys: HashMap::new(), totals: Totals::default(), shared };
                    trunkline::block_on(worker.work(start + length));
                    Ok(())
                })
            })
            .collect();
        while started.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(TELL_EVERY);
            totals(&shared).tell(json, start, node);
        }
        started.into_iter().try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    })?;
    Ok(totals(&shared))
}

fn totals(shared: &Mutex<Totals>) -> Totals {
    shared.lock().map(|totals| totals.clone()).unwrap_or_default()
}

impl Worker<'_> {
    async fn work(&mut self, until: Instant) {
        let mut version = 0;
        while Instant::now() < until {
            version += 1;
            self.totals = Totals::default();
            let key = version % KEYS;
            self.put(key, version).await;
            self.get(version / 2 % KEYS).await;
            if let Ok(mut shared) = self.shared.lock() {
                shared.add(&self.totals);
            }
        }
    }

    async fn put(&mut self, key: u64, version: u64) {
        let expected = self.keys.entry(key).or_default();
        let known = expected.settled.is_some();
        let certain = expected.perhaps.is_empty();
        match self.client.put(format!("{}/{key}", self.name), value(&self.name, version)).await {
            Ok(was_there) => {
                // Whether it was there is known only while no other put may have come first.
                if certain && was_there != known {
                    self.totals.wrong += 1;
                }
                self.totals.ok += 1;
                expected.settled = Some(version);
            }
            Err(status) => {
                if status.may_have_run() {
                    expected.perhaps.push(version);
                }
                self.totals.failed(&status);
            }
        }
    }

    async fn get(&mut self, key: u64) {
        match self.client.get(format!("{}/{key}", self.name)).await {
            Ok(found) => {
                self.totals.ok += 1;
                let expected = self.keys.entry(key).or_default();
                let fits = |version: &u64| found.as_ref() == Some(&value(&self.name, *version));
                let right = match (&found, expected.settled) {
                    (None, None) => true,
                    _ => expected.settled.iter().chain(&expected.perhaps).any(fits),
                };
                if !right {
                    self.totals.wrong += 1;
                }
            }
            Err(status) => self.totals.failed(&status),
        }
    }
}

/// The value of a version: no two are alike.
fn value(name: &str, version: u64) -> Bytes {
    let length = if version.is_multiple_of(LARGE_EVERY) { LARGE_BYTES } else { 100 };
    let text = format!("{name}#{version};");
    text.bytes().cycle().take(length).collect::<Vec<_>>().into()
}

/// So that the keys of two runs differ.
fn unique() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// A client of the server with its time-out, for [`run`].
pub(crate) fn connect(node: &Node, server: SocketAddr, timeout: Duration) -> Result<KvClient, Status> {
    Ok(KvClient::connect(node, server)?.with_timeout(timeout))
}
