//! An honest node, controlled by lines on standard input.
//!
//! | line | answer |
//! |---|---|
//! | `first SERVER` | `FIRST us=`: time of the first call to a server |
//! | `turns SERVER COUNT` | `TURNS failed=`: each poller has made COUNT calls, one poller after the other |
//! | `hold SERVER COUNT` | `HOLD under_way=`: COUNT calls that do not end by themselves are in flight |
//! | `flood SERVER COUNT BYTES` | `FLOOD under_way=`: COUNT further calls, each with BYTES bytes in both directions |
//! | `rush SERVER WHAT COUNT` | `RUSH`: COUNT tasks on one poller repeat `calls`, `long` calls or `streams` until `calm` |
//! | `calm` | `CALM` |
//! | `crowd SERVER COUNT` | `CROWD nodes= most_us=`: COUNT new nodes have each called a server |
//! | `again` | `AGAIN p50_us= most_us=`: all nodes of the crowd have called again |
//! | `churn SERVER RATE` | `CHURN`: opens RATE sessions per second, each from a new node |
//! | `churned` | `CHURNED sessions= failed=`: `churn` has ended |
//! | `open SERVER COUNT` | `OPEN under_way=`: opens COUNT streams without a deadline |
//! | `load SERVER` | `LOAD`: starts continuous calls |
//! | `balance CONNECT SERVER...` | `BALANCE`: starts the calls of `load`, balanced over these servers, with CONNECT `fast` or `wait` |
//! | `tally` | `TALLY` and the statistics of the load |
//! | `counters` | `COUNTERS` of the device |
//! | `qps` | `QPS ini= tgt=` |

use super::arguments::NodeArguments;
use super::certificates::{NAME, identify};
use super::load::{self, Tally};
use super::service::{Handler, HonestClient, HonestLocal, HonestServer};
use crate::Outcome;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;
use trunkline::{
    Bytes, CallOptions, Connect, Node, NodeBuilder, Policy, PollerContext, PollerIndex, Status, Streaming,
    Target, block_on,
};
use trunkline_testkit::{Input, bytes_of, fresh_address, print_line};

/// Number of texts in a call whose arguments take a long time to decode.
const LONG_TEXTS: usize = 2_000;
/// Time limit of a held call.
const HELD: Duration = Duration::from_secs(600);
/// Time limit of the first call.
const FIRST: Duration = Duration::from_secs(60);

/// Pause before a failed call is repeated.
const PAUSE: Duration = Duration::from_millis(10);
/// Time without sends after which a poller releases its credit.
const IDLE: Duration = Duration::from_millis(200);

/// A call that nothing awaits.
type Held = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// Runs the node until the end of its input.
pub(crate) fn serve(arguments: &NodeArguments, certificates: Option<&Path>) -> Outcome<()> {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .with_writer(std::io::stderr)
        .init();
    let node = builder(arguments, certificates).serve(HonestServer::new(Handler)).start()?;
    print_line(&format!("READY {}", node.local_address()));
    let mut driven = Driven {
        node,
        arguments: arguments.clone(),
        certificates: certificates.map(Path::to_owned),
        crowd: Vec::new(),
        churn: Churn::default(),
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

/// A node, and the calls that it makes on command.
struct Driven {
    node: Node,
    arguments: NodeArguments,
    certificates: Option<PathBuf>,
    /// The nodes of the crowd, each with a client.
    crowd: Vec<(Node, HonestClient)>,
    churn: Churn,
    tally: Arc<Tally>,
    rushes: Arc<AtomicBool>,
    held: Vec<Held>,
}

impl Driven {
    /// Makes a call from each node of the crowd, and repeats it until it succeeds. Returns the sorted times, in
    /// microseconds.
    fn call_until_answered(&self) -> Vec<u128> {
        let start = Instant::now();
        let call = |client: &HonestClient| {
            while block_on(client.echo(7)).is_err() {
                std::thread::sleep(PAUSE);
            }
            start.elapsed().as_micros()
        };
        let mut took: Vec<u128> = std::thread::scope(|scope| {
            let calls: Vec<_> =
                self.crowd.iter().map(|(_, client)| scope.spawn(move || call(client))).collect();
            calls.into_iter().filter_map(|call| call.join().ok()).collect()
        });
        took.sort_unstable();
        took
    }

    fn client(&self, server: &str) -> Outcome<HonestClient> {
        client(&self.node, server, self.certificates.as_deref())
    }

    /// Starts continuous small and large calls.
    fn load(&self, client: HonestClient, connect: Connect) {
        let options = CallOptions::new().timeout(load::LIMIT).connect(connect);
        let (small, of_small, large) = (client.clone(), options.clone(), client);
        load::start(
            &self.tally,
            move |number| block_on(small.with(&of_small).echo(number)).map(|back| back == number),
            move |bytes| block_on(large.with(&options).mirror(bytes.clone())).map(|back| back == bytes),
        );
    }

    fn obey(&mut self, line: &str) -> Outcome<()> {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["first", server] => {
                let start = Instant::now();
                let client = self.client(server)?;
                let outcome = block_on(client.with_timeout(FIRST).echo(7));
                let took_us = start.elapsed().as_micros();
                print_line(&format!("FIRST us={took_us} failed={}", u8::from(outcome.is_err())));
            }
            ["turns", server, count] => {
                let failed = turns(&self.node, self.arguments.pollers, server.parse()?, count.parse()?);
                print_line(&format!("TURNS failed={failed}"));
            }
            ["hold", server, count] => {
                let client = self.client(server)?.with_timeout(HELD);
                for _ in 0..count.parse::<usize>()? {
                    let client = client.clone();
                    keep(&mut self.held, Box::pin(async move { client.hold().await }));
                }
                print_line(&format!("HOLD under_way={}", self.held.len()));
            }
            ["flood", server, count, bytes] => {
                let client = self.client(server)?.with_timeout(HELD);
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
                    // The task continues after its handle is dropped.
                    drop(self.node.run_on(PollerIndex(0), rushing));
                }
                print_line("RUSH");
            }
            ["calm"] => {
                self.rushes.store(false, Ordering::Relaxed);
                print_line("CALM");
            }
            ["open", server, count] => {
                let client = self.client(server)?;
                for _ in 0..count.parse::<usize>()? {
                    let client = client.clone();
                    keep(&mut self.held, Box::pin(async move { client.one().await.map(drop) }));
                }
                print_line(&format!("OPEN under_way={}", self.held.len()));
            }
            ["load", server] => {
                self.load(self.client(server)?, Connect::FailFast);
                print_line("LOAD");
            }
            ["balance", connect, servers @ ..] => {
                let servers = servers
                    .iter()
                    .map(|server| server.parse::<SocketAddr>())
                    .collect::<Result<Vec<_>, _>>()?;
                let channel = self.node.channel(target(servers, self.certificates.as_deref()));
                let connect = if *connect == "wait" { Connect::Wait } else { Connect::FailFast };
                self.load(HonestClient::new(channel.balanced(Policy::RoundRobin)), connect);
                print_line("BALANCE");
            }
            ["tally"] => print_line(&format!("TALLY {}", self.tally.line())),
            ["qps"] => {
                let report = self.node.report();
                print_line(&format!("QPS ini={} tgt={}", report.ini, report.tgt));
            }
            ["counters"] => {
                let report = self.node.report();
                let counters = report.counters.iter().chain(&report.device_counters);
                let pairs: Vec<String> =
                    counters.map(|counter| format!("{}={}", counter.name, counter.value)).collect();
                print_line(&format!("COUNTERS {}", pairs.join(" ")));
            }
            ["crowd", server, count] => {
                for _ in 0..count.parse::<usize>()? {
                    self.crowd.push(another(&self.arguments, self.certificates.as_deref(), server)?);
                }
                let took = self.call_until_answered();
                print_line(&format!("CROWD nodes={} most_us={}", took.len(), took[took.len() - 1]));
            }
            ["again"] => {
                let took = self.call_until_answered();
                print_line(&format!(
                    "AGAIN p50_us={} most_us={}",
                    took[took.len() / 2],
                    took[took.len() - 1]
                ));
            }
            ["churn", server, rate] => {
                let period = Duration::from_secs(1) / rate.parse::<u32>()?;
                let (arguments, certificates) = (self.arguments.clone(), self.certificates.clone());
                let server = (*server).to_owned();
                self.churn.start(period, move || another(&arguments, certificates.as_deref(), &server));
                print_line("CHURN");
            }
            ["churned"] => print_line(&format!("CHURNED {}", self.churn.end())),
            other => return Err(format!("unknown line {other:?}").into()),
        }
        Ok(())
    }
}

/// Returns the builder of a node with these arguments and the certificate in the folder.
fn builder(arguments: &NodeArguments, certificates: Option<&Path>) -> NodeBuilder {
    certificates.into_iter().fold(arguments.builder(), identify)
}

/// Starts another node with the same arguments at an unused loopback address. Returns the node and a client for a server.
fn another(
    arguments: &NodeArguments,
    certificates: Option<&Path>,
    server: &str,
) -> Outcome<(Node, HonestClient)> {
    let mut arguments = arguments.clone();
    arguments.listen = fresh_address();
    let node = builder(&arguments, certificates).start()?;
    let client = client(&node, server, certificates)?.with_timeout(FIRST);
    Ok((node, client))
}

/// Returns a client for a server.
fn client(node: &Node, server: &str, certificates: Option<&Path>) -> Outcome<HonestClient> {
    let server: SocketAddr = server.parse()?;
    Ok(HonestClient::new(node.channel(target(server, certificates))))
}

/// Returns a target that expects the name in the certificates. If there are none, the target expects no name.
fn target(servers: impl Into<Target>, certificates: Option<&Path>) -> Target {
    certificates.into_iter().fold(servers.into(), |target, _| target.named(NAME))
}

/// Opens sessions from new nodes at a constant rate.
#[derive(Debug, Default)]
struct Churn {
    goes_on: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(u64, u64)>>,
}

impl Churn {
    /// Number of threads that create nodes in turn.
    const THREADS: u32 = 16;

    fn start(
        &mut self,
        period: Duration,
        new: impl Fn() -> Outcome<(Node, HonestClient)> + Clone + Send + 'static,
    ) {
        self.goes_on.store(true, Ordering::Relaxed);
        for number in 0..Self::THREADS {
            let (goes_on, new) = (Arc::clone(&self.goes_on), new.clone());
            self.threads.push(std::thread::spawn(move || {
                let (mut due, mut sessions, mut failed) = (Instant::now() + period * number, 0, 0);
                while goes_on.load(Ordering::Relaxed) {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    due += period * Self::THREADS;
                    let outcome: Outcome<u64> =
                        new().and_then(|(_node, client)| Ok(block_on(client.echo(1))?));
                    sessions += 1;
                    failed += u64::from(outcome.inspect_err(|error| eprintln!("churn: {error}")).is_err());
                }
                (sessions, failed)
            }));
        }
    }

    fn end(&mut self) -> String {
        self.goes_on.store(false, Ordering::Relaxed);
        let counts = self.threads.drain(..).map(|thread| thread.join().unwrap_or_default());
        let (sessions, failed) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        format!("sessions={sessions} failed={failed}")
    }
}

/// The kind of calls that a busy node makes.
#[derive(Debug, Clone, Copy)]
enum Rush {
    Calls,
    /// Calls whose arguments take a long time to decode.
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

/// Makes calls or opens streams of one item until `goes_on` is false.
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

/// Polls a call once, and keeps it if it is still in flight.
fn keep(held: &mut Vec<Held>, mut call: Held) {
    if is_pending(&mut call) {
        held.push(call);
    }
}

fn is_pending(call: &mut Held) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Makes `count` calls to a server from each poller, one poller after the other. A poller starts when the previous one is
/// idle. Returns the number of pollers with failed calls.
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
