//! Checks that many one-way calls of mixed sizes on an ordered client start in order and once, between two nodes of this
//! process.
//!
//! ```sh
//! cargo run --release -p trunkline --example ordered_calls -- --calls 1000000 --faults drop=0.01,seed=7
//! ```

#![expect(clippy::disallowed_methods, reason = "in real time")]

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use trunkline::{Bytes, Node, Status, block_on};

/// Sends one-way calls in order and checks the order in which their handlers start. One call of a
/// thousand has 200,000 bytes, the others 10 to 4096.
#[derive(Debug, Parser)]
struct Options {
    /// Number of calls.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    calls: u64,
    /// Calls in flight at once.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// Faults of the software device, as in TRUNKLINE_FAULTS: drop=0.01,reorder=0.01,seed=7.
    #[arg(long, value_name = "FAULTS")]
    faults: Option<String>,
    /// Poller threads of each node.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pollers: u16,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

#[trunkline::service]
trait Journal {
    /// A note.
    #[oneway]
    async fn note(&self, number: u64, body: Bytes);
}

/// Calls that have arrived so far: the number of the next call, and how many were out of order.
#[derive(Debug, Default)]
struct Seen {
    next: AtomicU64,
    wrong: AtomicU64,
}

struct Reader(Arc<Seen>);

impl Journal for Reader {
    async fn note(&self, number: u64, _: Bytes) {
        // All calls run on one poller, so the number does not change between the load and the store.
        if number == self.0.next.load(Ordering::Relaxed) {
            self.0.next.store(number + 1, Ordering::Release);
        } else {
            self.0.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the size of a call's body, in bytes.
fn body(number: u64) -> usize {
    match number % 1000 {
        500 => 200_000,
        other => 10 + usize::try_from(other * 37 % 4087).unwrap_or(0),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let seen = Arc::new(Seen::default());
    let shared = Arc::clone(&seen);
    let build = |address: &str| -> Result<_, Box<dyn Error>> {
        let builder = Node::builder().listen(address).pollers(options.pollers);
        Ok(match &options.faults {
            Some(faults) => builder.faults(faults)?,
            None => builder,
        })
    };
    let server = build("127.0.0.5:0")?.serve(JournalServer::new(Reader(shared))).start()?;
    let caller = build("127.0.0.6:0")?.start()?;
    let client = JournalClient::new(caller.channel(server.local_address()));
    let client = client.with_timeout(Duration::from_secs(120)).ordered();
    let bar = ProgressBar::new(options.calls)
        .with_style(ProgressStyle::with_template("{wide_bar} {pos}/{len} calls, {eta} left")?);
    let began = Instant::now();
    block_on(send(&client, &options, &bar))?;
    while seen.next.load(Ordering::Acquire) + seen.wrong.load(Ordering::Relaxed) < options.calls {
        if began.elapsed() > Duration::from_secs(600) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bar.finish_and_clear();
    let (in_order, wrong) = (seen.next.load(Ordering::Acquire), seen.wrong.load(Ordering::Relaxed));
    let seconds = began.elapsed().as_secs_f64();
    if options.json {
        let calls = options.calls;
        println!(
            "{}",
            serde_json::json!({"calls": calls, "in_order": in_order, "wrong": wrong, "seconds": seconds})
        );
    } else {
        println!(
            "{in_order} of {} calls in order, {wrong} at the wrong place, {seconds:.1} s",
            options.calls
        );
    }
    caller.shutdown();
    server.shutdown();
    if in_order == options.calls && wrong == 0 {
        Ok(())
    } else {
        Err("calls were lost or out of order".into())
    }
}

/// Makes all calls, a number of them at a time.
async fn send(client: &JournalClient, options: &Options, bar: &ProgressBar) -> Result<(), Status> {
    let largest = Bytes::from(vec![0x5a; 200_000]);
    let window = usize::try_from(options.window).unwrap_or(1);
    let mut calls = VecDeque::<Pin<Box<dyn Future<Output = Result<(), Status>> + '_>>>::new();
    let mut next = 0;
    poll_fn(|context| {
        loop {
            while next < options.calls && calls.len() < window {
                let mut call = Box::pin(client.note(next, largest.slice(..body(next))));
                next += 1;
                // The first poll may complete the call, because a result can be available at once.
                match call.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => bar.inc(1),
                    Poll::Ready(Err(status)) => return Poll::Ready(Err(status)),
                    Poll::Pending => calls.push_back(call),
                }
            }
            let before = calls.len();
            while let Some(oldest) = calls.front_mut() {
                match oldest.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => bar.inc(1),
                    Poll::Ready(Err(status)) => return Poll::Ready(Err(status)),
                    Poll::Pending => break,
                }
                calls.pop_front();
            }
            if next == options.calls && calls.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if calls.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
}
