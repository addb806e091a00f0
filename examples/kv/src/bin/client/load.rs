//! Load of puts and gets that checks every value against earlier puts.
//!
//! Each worker has separate keys. A get must return the value of the last successful put, or the value of a failed put
//! that may have run, even if that put takes effect later. Any other value is wrong. The load therefore checks what the
//! statuses of failed calls state.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use trunkline::{Bytes, Code, Node, Status};
use trunkline_example_kv::KvClient;

/// Number of keys per worker.
const KEYS: u64 = 16;
/// One in this many values has a size of [`LARGE_BYTES`], and the others have 100 bytes.
const LARGE_EVERY: u64 = 16;
const LARGE_BYTES: usize = 40_000;
/// Interval between two lines of progress.
const PRINT_EVERY: Duration = Duration::from_millis(500);

/// Numbers of calls, by outcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    ok: u64,
    unavailable: u64,
    /// Calls that failed with `DeadlineExceeded`.
    late: u64,
    /// Calls that failed with any other code.
    other: u64,
    /// Calls that returned a wrong value.
    wrong: u64,
    last_error: String,
}

impl Totals {
    /// Returns true if calls succeeded, and no call returned a wrong value or failed with another code.
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

    fn print(&self, json: bool, since: Instant, node: &Node) {
        let seconds = since.elapsed().as_secs_f64();
        let Self { ok, unavailable, late, other, wrong, last_error } = self;
        let report = node.report();
        let incarnations = report.incarnations;
        let device = if report.removed_since.is_some() { "away" } else { "there" };
        let text = if json {
            let last_error = last_error.escape_default();
            format!(
                "{{\"seconds\":{seconds:.1},\"ok\":{ok},\"unavailable\":{unavailable},\"late\":{late},\
                 \"other\":{other},\"wrong\":{wrong},\"device\":\"{device}\",\"incarnations\":{incarnations},\
                 \"last_error\":\"{last_error}\"}}"
            )
        } else {
            format!(
                "{seconds:6.1} s  ok {ok}  unavailable {unavailable}  late {late}  other {other}  wrong {wrong}  \
                 device {incarnations} {device}  {last_error}"
            )
        };
        // The error is ignored, because the load continues even if the output is closed.
        let _closed = writeln!(std::io::stdout(), "{text}");
    }
}

/// Values that a key may have.
#[derive(Debug, Default)]
struct Expected {
    /// Version of the last successful put; `None` if there was none.
    settled: Option<u64>,
    /// Versions of failed puts that may have run or may still run.
    perhaps: Vec<u64>,
}

struct Worker<'a> {
    client: KvClient,
    name: String,
    keys: HashMap<u64, Expected>,
    totals: Totals,
    shared: &'a Mutex<Totals>,
}

/// Pause of a worker after a call that has not reached the server.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs `workers` concurrently for `length`, and prints progress twice a second.
pub(crate) fn run(node: &Node, client: &KvClient, workers: u64, length: Duration, json: bool) -> Totals {
    let start = Instant::now();
    let shared = Mutex::new(Totals::default());
    // The number is random, so that each run uses different keys.
    let run = RandomState::new().hash_one(std::process::id());
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers)
            .map(|number| {
                let (shared, name) = (&shared, format!("load/{run:016x}/{number}"));
                let client = client.clone();
                scope.spawn(move || {
                    let mut worker =
                        Worker { client, name, keys: HashMap::new(), totals: Totals::default(), shared };
                    trunkline::block_on(worker.work(start + length));
                })
            })
            .collect();
        while started.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(PRINT_EVERY);
            totals(&shared).print(json, start, node);
        }
    });
    totals(&shared)
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
            if self.totals.unavailable > 0 {
                // Calls fail immediately until the next attempt to connect.
                std::thread::sleep(PAUSE);
            }
        }
    }

    async fn put(&mut self, key: u64, version: u64) {
        let expected = self.keys.entry(key).or_default();
        let known = expected.settled.is_some();
        let certain = expected.perhaps.is_empty();
        match self.client.put(format!("{}/{key}", self.name), value(&self.name, version)).await {
            Ok(was_there) => {
                // It is known whether the key existed before, unless a failed put may have run.
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

/// Returns the value for a version. Different versions have different values.
fn value(name: &str, version: u64) -> Bytes {
    let length = if version.is_multiple_of(LARGE_EVERY) { LARGE_BYTES } else { 100 };
    let text = format!("{name}#{version};");
    text.bytes().cycle().take(length).collect::<Vec<_>>().into()
}

/// Creates a client of the server with this time limit for each call.
pub(crate) fn client(node: &Node, server: &str, timeout: Duration) -> KvClient {
    KvClient::new(node.channel(server)).with_timeout(timeout)
}
