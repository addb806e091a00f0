//! An honest node, driven by lines on its input.
//!
//! | line | answer |
//! |---|---|
//! | `first SERVER` | `FIRST us=`: the time of the first call to a server |
//! | `each SERVER` | `EACH us= failed=`: the time until each poller has called, and how many could not |
//! | `hold SERVER COUNT` | `HOLD under_way=`: calls that do not end by themselves are under way |
//! | `load SERVER` | `LOAD`: calls go on from now on |
//! | `tally` | `TALLY` with the numbers of the load |
//! | `counters` | `COUNTERS` with those of the device |
//! | `qps` | `QPS ini= tgt=` |

use super::load::{self, Tally};
use super::service::{Handler, HonestClient, HonestLocal, HonestServer};
use crate::Outcome;
use clap::Args;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tracing_subscriber::filter::LevelFilter;
use trunkline::{Connections, Node, PollerIndex, ProviderChoice, block_on};
use trunkline_testkit::{Input, print_line};
use trunkline_transport::NodeOptions;

/// Time limit of a held call.
const HELD: Duration = Duration::from_secs(600);
/// Time limit of a first call.
const FIRST: Duration = Duration::from_secs(60);

/// What `attacks node` is called with.
#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    /// Where it listens.
    pub(super) listen: SocketAddr,
    /// Its kind of connections.
    #[arg(long, default_value = "xrc")]
    pub(super) connections: Connections,
    /// Its pollers.
    #[arg(long, default_value_t = 1)]
    pub(super) pollers: u16,
    /// Receives that each of its pollers keeps posted.
    #[arg(long, default_value_t = 512)]
    pub(super) depth: u32,
}

/// Runs the node until its input ends.
pub(crate) fn serve(arguments: &NodeArguments) -> Outcome<()> {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .with_writer(std::io::stderr)
        .init();
    let options = NodeOptions::new().srq_depth(arguments.depth);
    let node = Node::builder()
        .transport(options)
        .listen(arguments.listen)
        .provider(ProviderChoice::Soft)
        .connections(arguments.connections)
        .pollers(arguments.pollers)
        .serve(HonestServer::new(|| Handler))
        .start()?;
    print_line(&format!("READY {}", node.local_address()));
    let tally = Arc::new(Tally::default());
    let mut held = Vec::new();
    let input = Input::open();
    while let Some(line) = input.wait() {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["first", server] => {
                let start = Instant::now();
                let client = HonestClient::connect(&node, *server)?;
                let outcome = block_on(client.with_timeout(FIRST).echo(7));
                let took_us = start.elapsed().as_micros();
                print_line(&format!("FIRST us={took_us} failed={}", u8::from(outcome.is_err())));
            }
            ["each", server] => {
                let server: SocketAddr = server.parse()?;
                let start = Instant::now();
                let failed = each(&node, arguments.pollers, server);
                print_line(&format!("EACH us={} failed={failed}", start.elapsed().as_micros()));
            }
            ["hold", server, count] => {
                let client = HonestClient::connect(&node, *server)?.with_timeout(HELD);
                for _ in 0..count.parse::<usize>()? {
                    let client = client.clone();
                    let mut call = Box::pin(async move { client.hold().await });
                    // Polled once, it is under way.
                    if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                        held.push(call);
                    }
                }
                print_line(&format!("HOLD under_way={}", held.len()));
            }
            ["load", server] => {
                load::start(&HonestClient::connect(&node, *server)?, &tally);
                print_line("LOAD");
            }
            ["tally"] => print_line(&format!("TALLY {}", tally.line())),
            ["qps"] => {
                let report = node.report();
                print_line(&format!("QPS ini={} tgt={}", report.ini, report.tgt));
            }
            ["counters"] => {
                let counters = node.report().counters;
                let pairs: Vec<String> =
                    counters.iter().map(|counter| format!("{}={}", counter.name, counter.value)).collect();
                print_line(&format!("COUNTERS {}", pairs.join(" ")));
            }
            other => return Err(format!("unknown line {other:?}").into()),
        }
    }
    Ok(())
}

/// Calls a server from each poller; returns how many could not.
fn each(node: &Node, pollers: u16, server: SocketAddr) -> usize {
    let calls: Vec<_> = (0..pollers)
        .map(|poller| {
            node.run_on(PollerIndex(poller), move |context| async move {
                HonestLocal::connect(&context, server)?.with_timeout(FIRST).echo(u64::from(poller)).await
            })
        })
        .collect();
    calls.into_iter().map(block_on).filter(|outcome| !matches!(outcome, Ok(Ok(_)))).count()
}
