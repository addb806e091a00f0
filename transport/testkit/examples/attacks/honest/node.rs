//! An honest node, driven by lines on its input.
//!
//! | line | answer |
//! |---|---|
//! | `first SERVER` | `FIRST us=`: time of the first call to a server |
//! | `turns SERVER COUNT` | `TURNS failed=`: each poller has made this number of calls, one poller after the other |
//! | `hold SERVER COUNT` | `HOLD under_way=`: calls that do not end by themselves are under way |
//! | `flood SERVER COUNT BYTES` | `FLOOD under_way=`: further calls, each with these bytes both ways |
//! | `rush SERVER WHAT COUNT` | `RUSH`: this number of tasks on its poller makes `calls`, `long` calls or opens `streams` until `calm` |
//! | `calm` | `CALM` |
//! | `open SERVER COUNT` | `OPEN under_way=`: opens streams without a deadline |
//! | `load SERVER` | `LOAD`: calls are made from now on |
//! | `tally` | `TALLY` with the numbers of the load |
//! | `counters` | `COUNTERS` of the device |
//! | `qps` | `QPS ini= tgt=` |

use super::arguments::NodeArguments;
use super::load::{self, Tally};
use super::service::{Handler, HonestClient, HonestLocal, HonestServer};
use crate::Outcome;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;
use trunkline::{Bytes, Node, PollerContext, PollerIndex, Status, Streaming, block_on};
use trunkline_testkit::{Input, bytes_of, print_line};

/// Texts of a call whose arguments take long to decode.
const LONG_TEXTS: usize = 2_000;
/// Time limit of a held call.
const HELD: Duration = Duration::from_secs(600);
/// Time limit of a first call.
const FIRST: Duration = Duration::from_secs(60);

/// Time without sending after which a poller has no use for its credit.
const IDLE: Duration = Duration::from_millis(200);

/// A call that is not awaited.
type Held = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// Runs the node until its input ends.
pub(crate) fn serve(arguments: &NodeArguments) -> Outcome<()> {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .with_writer(std::io::stderr)
        .init();
    let node = arguments.builder().serve(HonestServer::new(Handler)).start()?;
    print_line(&format!("READY {}", node.local_address()));
    let mut driven = Driven {
        node,
        pollers: arguments.pollers,
        tally: Arc::default(),
        rushes: Arc::default(),
        held: Vec::new(),
    };
    let input = Input::open();
    while let Some(line) = input.wait() {
        driven.obey(&line)?;
    }
    Ok(())
}

/// A node and the calls that it was told to make.
struct Driven {
    node: Node,
    pollers: u16,
    tally: Arc<Tally>,
    rushes: Arc<AtomicBool>,
    held: Vec<Held>,
}

impl Driven {
    fn obey(&mut self, line: &str) -> Outcome<()> {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["first", server] => {
                let start = Instant::now();
                let client = HonestClient::connect(&self.node, *server)?;
                let outcome = block_on(client.with_timeout(FIRST).echo(7));
                let took_us = start.elapsed().as_micros();
                print_line(&format!("FIRST us={took_us} failed={}", u8::from(outcome.is_err())));
            }
            ["turns", server, count] => {
                let failed = turns(&self.node, self.pollers, server.parse()?, count.parse()?);
                print_line(&format!("TURNS failed={failed}"));
            }
            ["hold", server, count] => {
                let client = HonestClient::connect(&self.node, *server)?.with_timeout(HELD);
                for _ in 0..count.parse::<usize>()? {
                    let client = client.clone();
                    keep(&mut self.held, Box::pin(async move { client.hold().await }));
                }
                print_line(&format!("HOLD under_way={}", self.held.len()));
            }
            ["flood", server, count, bytes] => {
                let client = HonestClient::connect(&self.node, *server)?.with_timeout(HELD);
                let bytes = Bytes::from(bytes_of(1, bytes.parse()?));
                for _ in 0..count.parse::<usize>()? {
                    let (client, bytes) = (client.clone(), bytes.clone());
                    keep(&mut self.held, Box::pin(async move { client.mirror(bytes).await.map(drop) }));
                }
                self.held.retain_mut(is_pending);
                print_line(&format!("FLOOD under_way={}", self.held.len()));
            }
            ["rush", server, what, count] => {
                let (server, what) = (server.parse()?, Rush::named(what));
                self.rushes.store(true, Ordering::Relaxed);
                for _ in 0..count.parse::<usize>()? {
                    let rushes = Arc::clone(&self.rushes);
                    let rushing = move |context| rush(context, server, what, rushes);
                    // The task goes on without its handle.
                    drop(self.node.run_on(PollerIndex(0), rushing));
                }
                print_line("RUSH");
            }
            ["calm"] => {
                self.rushes.store(false, Ordering::Relaxed);
                print_line("CALM");
            }
            ["open", server, count] => {
                let client = HonestClient::connect(&self.node, *server)?;
                for _ in 0..count.parse::<usize>()? {
                    let client = client.clone();
                    keep(&mut self.held, Box::pin(async move { client.one().await.map(drop) }));
                }
                print_line(&format!("OPEN under_way={}", self.held.len()));
            }
            ["load", server] => {
                let client = HonestClient::connect(&self.node, *server)?.with_timeout(load::LIMIT);
                let (small, large) = (client.clone(), client);
                load::start(
                    &self.tally,
                    move |number| block_on(small.echo(number)).map(|back| back == number),
                    move |bytes| block_on(large.mirror(bytes.clone())).map(|back| back == bytes),
                );
                print_line("LOAD");
            }
            ["tally"] => print_line(&format!("TALLY {}", self.tally.line())),
            ["qps"] => {
                let report = self.node.report();
                print_line(&format!("QPS ini={} tgt={}", report.ini, report.tgt));
            }
            ["counters"] => {
                let counters = self.node.report().counters;
                let pairs: Vec<String> =
                    counters.iter().map(|counter| format!("{}={}", counter.name, counter.value)).collect();
                print_line(&format!("COUNTERS {}", pairs.join(" ")));
            }
            other => return Err(format!("unknown line {other:?}").into()),
        }
        Ok(())
    }
}

/// Kind of calls that a busy node makes.
#[derive(Debug, Clone, Copy)]
enum Rush {
    Calls,
    /// Calls whose arguments take long to decode.
    LongCalls,
    Streams,
}

impl Rush {
    fn named(name: &str) -> Self {
        match name {
            "streams" => Self::Streams,
            "long" => Self::LongCalls,
            _ => Self::Calls,
        }
    }
}

/// Makes calls or opens streams of one item, until it is told to stop.
async fn rush(context: PollerContext, server: SocketAddr, what: Rush, goes_on: Arc<AtomicBool>) {
    let Ok(client) = HonestLocal::connect(&context, server) else { return };
    while goes_on.load(Ordering::Relaxed) {
        let outcome = match what {
            Rush::Calls => client.echo(1).await.map(drop),
            Rush::LongCalls => client.count(vec![String::new(); LONG_TEXTS]).await.map(drop),
            Rush::Streams => read(client.one().await).await,
        };
        if outcome.is_err() {
            trunkline::yield_now().await;
        }
    }
}

async fn read(items: Result<Streaming<u64>, Status>) -> Result<(), Status> {
    let mut items = items?;
    while items.message().await?.is_some() {}
    Ok(())
}

/// Polls a call, and keeps it if it is under way after that.
fn keep(held: &mut Vec<Held>, mut call: Held) {
    if is_pending(&mut call) {
        held.push(call);
    }
}

fn is_pending(call: &mut Held) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Calls a server several times from each poller, and from the next poller when the last is idle. Returns the
/// number of pollers that could not.
fn turns(node: &Node, pollers: u16, server: SocketAddr, count: u64) -> usize {
    let calls = (0..pollers).map(|poller| {
        let outcome = block_on(node.run_on(PollerIndex(poller), move |context| async move {
            let client = HonestLocal::connect(&context, server)?.with_timeout(FIRST);
            for number in 0..count {
                client.echo(number).await?;
            }
            Ok::<_, Status>(())
        }));
        std::thread::sleep(IDLE);
        outcome
    });
    calls.filter(|outcome| !matches!(outcome, Ok(Ok(())))).count()
}
