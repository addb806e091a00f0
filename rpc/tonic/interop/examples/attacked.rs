//! A node that serves and calls a gRPC service, controlled by commands on standard input. Use it with `attacks run ATTACK
//! --nodes PROGRAM`.
//!
//! It supports the commands of `transport/testkit/examples/attacks/honest/node.rs` that the attacks `short-streams` and
//! `unanswered-streams` use. Handlers and calls run in one tokio runtime.

#![forbid(unsafe_code)]

#[path = "../../../../transport/testkit/examples/attacks/honest/arguments.rs"]
mod arguments;
#[path = "../../../../transport/testkit/examples/attacks/hostile_link.rs"]
mod hostile_link;
#[path = "../../../../transport/testkit/examples/attacks/honest/load.rs"]
mod load;

use arguments::NodeArguments;
use clap::Parser;
use load::Tally;
use std::error::Error;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tonic::{Request, Status};
use trunkline::Node;
use trunkline_testkit::{Input, exit_code, print_line};
use trunkline_tonic_interop::messages::{
    OutputRequest, Payload, ResponseParameters, SimpleRequest, size_of, zeros,
};
use trunkline_tonic_interop::{Interop, TestServiceClient, Transport, routes};

/// Time limit of the first call.
const FIRST: Duration = Duration::from_secs(60);

type Client = TestServiceClient<Transport>;
/// A call that nothing awaits.
type Held = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// A node of an attack.
#[derive(Debug, Parser)]
enum Cli {
    /// Runs the node until standard input is closed.
    Node(NodeArguments),
}

fn main() -> ExitCode {
    let Cli::Node(arguments) = Cli::parse();
    exit_code("attacked", serve(&arguments))
}

fn serve(arguments: &NodeArguments) -> Result<(), Box<dyn Error>> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let service = trunkline_tonic::Server::new(routes(Interop::default())).runtime(runtime.handle().clone());
    let node = arguments.builder().tokio(runtime.handle().clone()).serve(service).start()?;
    print_line(&format!("READY {}", node.local_address()));
    let mut driven =
        Driven { node, runtime, tally: Arc::default(), rushes: Arc::default(), held: Vec::new() };
    let input = Input::open();
    while let Some(line) = input.wait() {
        driven.obey(&line)?;
    }
    Ok(())
}

/// A node, and the calls that it makes on command.
struct Driven {
    node: Node,
    runtime: Runtime,
    tally: Arc<Tally>,
    rushes: Arc<AtomicBool>,
    held: Vec<Held>,
}

impl Driven {
    fn obey(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["first", server] => {
                let start = Instant::now();
                let outcome = self.runtime.block_on(unary(self.client(server), FIRST, 7, None));
                let took_us = start.elapsed().as_micros();
                print_line(&format!("FIRST us={took_us} failed={}", u8::from(outcome.is_err())));
            }
            ["load", server] => {
                let [small, large] = [self.runtime.handle().clone(), self.runtime.handle().clone()];
                let [first, second] = [self.client(server), self.client(server)];
                load::start(
                    &self.tally,
                    move |number| {
                        small.block_on(unary(first.clone(), load::LIMIT, (number % 64) as usize, None))
                    },
                    move |bytes| {
                        let (size, payload) = (bytes.len(), Some(Payload { body: bytes }));
                        large.block_on(unary(second.clone(), load::LIMIT, size, payload))
                    },
                );
                print_line("LOAD");
            }
            ["tally"] => print_line(&format!("TALLY {}", self.tally.line())),
            ["rush", server, what, count] => {
                let opens = *what == "streams";
                self.rushes.store(true, Ordering::Relaxed);
                for _ in 0..count.parse::<usize>()? {
                    self.runtime.spawn(rush(self.client(server), opens, Arc::clone(&self.rushes)));
                }
                print_line("RUSH");
            }
            ["calm"] => {
                self.rushes.store(false, Ordering::Relaxed);
                print_line("CALM");
            }
            ["open", server, count] => {
                let (client, _runtime) = (self.client(server), self.runtime.enter());
                for _ in 0..count.parse::<usize>()? {
                    let mut stream: Held = Box::pin(one(client.clone()));
                    if stream.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                        self.held.push(stream);
                    }
                }
                print_line(&format!("OPEN under_way={}", self.held.len()));
            }
            other => return Err(format!("unknown line {other:?}").into()),
        }
        Ok(())
    }

    fn client(&self, server: &str) -> Client {
        Client::new(Transport::Trunkline(trunkline_tonic::Channel::new(&self.node, server)))
    }
}

/// Makes a unary call. Returns true if the reply has the requested size.
async fn unary(
    mut client: Client,
    limit: Duration,
    size: usize,
    payload: Option<Payload>,
) -> Result<bool, Status> {
    let response_size = i32::try_from(size).unwrap_or(i32::MAX);
    let mut request = Request::new(SimpleRequest { response_size, payload, ..SimpleRequest::default() });
    request.set_timeout(limit);
    let reply = client.unary_call(request).await?.into_inner();
    Ok(size_of(reply.payload.as_ref()) == size)
}

/// Opens a stream of one item without a deadline, and reads the item.
async fn one(mut client: Client) -> Result<(), Status> {
    let response_parameters = vec![ResponseParameters { size: 8, interval_us: 0 }];
    let request = OutputRequest { response_parameters, ..OutputRequest::default() };
    let mut items = client.streaming_output_call(request).await?.into_inner();
    while items.message().await?.is_some() {}
    Ok(())
}

/// Makes calls, or opens streams of one item if `opens` is true, until `goes_on` is false.
async fn rush(client: Client, opens: bool, goes_on: Arc<AtomicBool>) {
    while goes_on.load(Ordering::Relaxed) {
        let outcome = if opens {
            one(client.clone()).await
        } else {
            unary(client.clone(), FIRST, 8, zeros(8)).await.map(drop)
        };
        if outcome.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
