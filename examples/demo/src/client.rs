//! Client side: fetches the tree, compares it with the disk, makes small calls and prints a report.

use crate::cli::Demo;
use crate::failure::Failure;
use crate::log;
use crate::progress::Progress;
use crate::report::Report;
use crate::service::{Entry, PIECE, TreeClient};
use crate::signals::Stop;
use hdrhistogram::Histogram;
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Node, block_on};

/// Number of files that are fetched concurrently.
const FETCHERS: usize = 4;

pub(crate) fn run(demo: &Demo, server: SocketAddr, stop: &Stop) -> Result<u8, Failure> {
    if let Some(path) = &demo.json {
        // Check before the work starts that the report can be written.
        File::options().append(true).create(true).open(path).map_err(Failure::file(path))?;
    }
    let node = demo.node(demo.client_address)?.start().map_err(|error| Failure::Start(error.to_string()))?;
    let outcome = work(demo, &node, server, stop);
    node.shutdown();
    let report = outcome?;
    match writeln!(io::stdout(), "{report}") {
        // A pipe closed by its reader, such as `head`, is not an error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    if let Some(path) = &demo.json {
        std::fs::write(path, format!("{:#}\n", report.json())).map_err(Failure::file(path))?;
    }
    Ok(u8::from(report.mismatches > 0))
}

fn work(demo: &Demo, node: &Node, server: SocketAddr, stop: &Stop) -> Result<Report, Failure> {
    let client = TreeClient::new(node.channel(server));
    let listing = list(&client)?;
    let fetched = fetch(demo, &client, &listing, stop)?;
    let called = call(demo, &client, stop)?;
    let wire = block_on(client.wire()).map_err(Failure::call("asking for the server's counters"))?;
    Ok(Report {
        node: node.report(),
        files: listing.len() as u64,
        bytes: fetched.bytes,
        mismatches: fetched.mismatches,
        fetch: fetched.time,
        latencies: called.histogram,
        called: called.time,
        in_flight: demo.in_flight,
        pollers: demo.pollers,
        wire,
        faults: demo.faults(),
    })
}

fn list(client: &TreeClient) -> Result<Vec<Entry>, Failure> {
    let mut listing: Vec<Entry> = Vec::new();
    loop {
        let first = u32::try_from(listing.len()).unwrap_or(u32::MAX);
        let page = block_on(client.list(first)).map_err(Failure::call("listing the tree"))?;
        if page.is_empty() {
            return Ok(listing);
        }
        listing.extend(page);
    }
}

/// Totals over all fetched files.
#[derive(Debug, Default)]
struct Fetched {
    bytes: u64,
    mismatches: u64,
    time: Duration,
}

fn fetch(demo: &Demo, client: &TreeClient, listing: &[Entry], stop: &Stop) -> Result<Fetched, Failure> {
    let root = demo.root();
    let progress = Progress::bytes("files", listing.iter().map(|entry| entry.bytes).sum());
    let (next, bytes) = (AtomicU32::new(0), AtomicU64::new(0));
    let mismatches = Mutex::new(0);
    let start = Instant::now();
    workers(FETCHERS, || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = listing.get(usize::try_from(number).unwrap_or(usize::MAX)) else {
                return Ok(());
            };
            if stop.asked() {
                return Err(Failure::Stopped);
            }
            let (digest, length) = fetch_one(client, number, &progress)?;
            bytes.fetch_add(length, Ordering::Relaxed);
            let path = below(&root, &entry.path)?;
            if digest != digest_of(&path).map_err(Failure::file(&path))? {
                log::line(format_args!("demo client: {} differs from the disk", path.display()));
                *mismatches.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            }
        }
    })?;
    progress.done();
    Ok(Fetched {
        bytes: bytes.into_inner(),
        mismatches: mismatches.into_inner().unwrap_or_else(PoisonError::into_inner),
        time: start.elapsed(),
    })
}

type Digest = [u8; 32];

fn fetch_one(client: &TreeClient, file: u32, progress: &Progress) -> Result<(Digest, u64), Failure> {
    let mut hash = Sha256::new();
    let mut offset = 0;
    loop {
        let piece = block_on(client.read(file, offset, PIECE)).map_err(Failure::call("fetching a file"))?;
        hash.update(&piece);
        offset += piece.len() as u64;
        progress.add(piece.len() as u64);
        if piece.len() < PIECE as usize {
            return Ok((hash.finalize().into(), offset));
        }
    }
}

fn digest_of(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// Returns the path of a listed file on this side's disk. Rejects a path that leaves `root`, because the listing comes
/// from a peer.
fn below(root: &Path, path: &[u8]) -> Result<std::path::PathBuf, Failure> {
    let path = Path::new(OsStr::from_bytes(path));
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        Ok(root.join(path))
    } else {
        Err(Failure::file(path)(io::Error::other("the server named a path outside of the tree")))
    }
}

/// Latencies of the small calls.
#[derive(Debug)]
struct Called {
    histogram: Histogram<u64>,
    time: Duration,
}

fn call(demo: &Demo, client: &TreeClient, stop: &Stop) -> Result<Called, Failure> {
    let progress = Progress::calls("calls", demo.calls);
    let next = AtomicU64::new(0);
    let all = Mutex::new(histogram());
    let start = Instant::now();
    workers(usize::try_from(demo.in_flight).unwrap_or(1), || {
        let mut own = histogram();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= demo.calls {
                break;
            }
            if number.is_multiple_of(256) {
                if stop.asked() {
                    return Err(Failure::Stopped);
                }
                progress.add(256.min(demo.calls - number));
            }
            let begin = Instant::now();
            let returned = block_on(client.ping(number)).map_err(Failure::call("a small call"))?;
            own.saturating_record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
            if returned != number {
                return Err(Failure::WrongAnswer);
            }
        }
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.add(&own).map_err(|_| Failure::WrongAnswer)
    })?;
    let time = start.elapsed();
    progress.done();
    Ok(Called { histogram: all.into_inner().unwrap_or_else(PoisonError::into_inner), time })
}

/// Returns a histogram from 1 ns to 60 s with three significant digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// Runs `work` on `count` threads and returns the first failure.
fn workers(count: usize, work: impl Fn() -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(&work)).collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        outcomes.into_iter().try_for_each(|outcome| {
            outcome.unwrap_or_else(|_| Err(io::Error::other("a worker thread panicked").into()))
        })
    })
}
