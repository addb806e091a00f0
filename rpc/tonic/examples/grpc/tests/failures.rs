//! A server that is killed, drained and started again while others call it: no call hangs, and all have the right codes.
//!
//! In real time: the server is a process.

use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status, Streaming};
use trunkline::Node;
use trunkline::stream::{Sender, channel};
use trunkline_example_grpc::messages::{Journey, Name, Note, Point};
use trunkline_example_grpc::{GreeterClient, RouteGuideClient};
use trunkline_testkit::{Process, fresh_ip};
use trunkline_tonic::Channel;

/// Time after which a call has hung.
const BOUND: Duration = Duration::from_secs(120);
/// Tasks that call all the time.
const CALLERS: usize = 8;
/// Points that do not fit into the window of a stream, so that the handler has read some of them.
const POINTS: u32 = 10_000;
const START: Point = Point { east: 10, north: 20 };

/// Starts a server. Returns its address, too.
fn start(address: SocketAddr) -> (Process, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grpc-server"));
    let mut process = Process::start("grpc-server", command.arg(address.to_string())).expect("it starts");
    let address = process.after("listening ").expect("the address").parse().unwrap();
    (process, address)
}

/// Tasks that call the greeter all the time, and the outcomes of their calls.
struct Load {
    outcomes: Arc<Mutex<BTreeMap<i32, usize>>>,
    has_ended: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(channel: &Channel) -> Self {
        let mut load = Self { outcomes: Arc::default(), has_ended: Arc::default(), tasks: Vec::new() };
        for _ in 0..CALLERS {
            let (outcomes, has_ended) = (Arc::clone(&load.outcomes), Arc::clone(&load.has_ended));
            let mut client = GreeterClient::new(channel.clone());
            load.tasks.push(tokio::spawn(async move {
                while !has_ended.load(Ordering::Relaxed) {
                    let mut request = Request::new(Name { name: "trunk".into() });
                    request.set_timeout(BOUND);
                    let code = client.greet(request).await.map_or_else(|status| status.code(), |_| Code::Ok);
                    *outcomes.lock().unwrap().entry(code.into()).or_default() += 1;
                    if code != Code::Ok {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }));
        }
        load
    }

    /// Waits for this number of further calls that end with a code.
    async fn more(&self, calls: usize, code: Code) {
        let count = || self.outcomes.lock().unwrap().get(&code.into()).copied().unwrap_or_default();
        let wanted = count() + calls;
        let wait = async {
            while count() < wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(BOUND, wait).await;
        assert!(waited.is_ok(), "{code:?}: {:?}", self.outcomes.lock().unwrap());
    }

    /// Ends the tasks. Each call has succeeded or found the server unavailable.
    async fn end(self) {
        self.has_ended.store(true, Ordering::Relaxed);
        for task in self.tasks {
            ended(task).await.unwrap();
        }
        let outcomes = self.outcomes.lock().unwrap();
        let expected = [Code::Ok, Code::Unavailable].map(i32::from);
        assert!(outcomes.keys().eq(&expected), "{outcomes:?}");
    }
}

/// Waits for the end of something that must not hang.
async fn ended<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("it ends")
}

/// A stream in both directions and one from the client, both open.
struct Streams {
    notes: Sender<Note>,
    answers: Streaming<Note>,
    points: Sender<Point>,
    journey: JoinHandle<Result<Journey, Status>>,
}

impl Streams {
    async fn open(channel: &Channel) -> Self {
        let mut guide = RouteGuideClient::new(channel.clone());
        let (notes, receiver) = channel_of_one();
        let answers = ended(guide.talk(receiver)).await.unwrap().into_inner();
        let (points, receiver) = channel_of_one();
        let record = async move { Ok(guide.record(receiver).await?.into_inner()) };
        let mut streams = Self { notes, answers, points, journey: tokio::spawn(record) };
        streams.talk().await;
        for _ in 0..POINTS {
            ended(streams.points.send(START)).await.unwrap();
        }
        streams
    }

    async fn talk(&mut self) {
        ended(self.notes.send(Note { at: Some(START), text: "ducks".into() })).await.unwrap();
        ended(self.answers.message()).await.unwrap().unwrap();
    }
}

fn channel_of_one<T>() -> (Sender<T>, trunkline::stream::Receiver<T>) {
    channel(1)
}

async fn client(server: SocketAddr) -> (Node, Channel) {
    let node = Node::builder().listen(SocketAddr::new(server.ip(), 0)).start_async().await.unwrap();
    let channel = Channel::new(&node, server);
    (node, channel)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_ends_its_calls_as_unavailable() {
    let (mut server, address) = start(SocketAddr::new(fresh_ip().into(), 0));
    let (node, channel) = client(address).await;
    let load = Load::start(&channel);
    load.more(100, Code::Ok).await;
    let mut streams = Streams::open(&channel).await;
    server.kill().unwrap();
    assert_eq!(ended(streams.answers.message()).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(ended(streams.journey).await.unwrap().unwrap_err().code(), Code::Unavailable);
    load.more(CALLERS, Code::Unavailable).await;

    let (_server, _) = start(address);
    load.more(100, Code::Ok).await;
    Streams::open(&channel).await;
    load.end().await;
    node.shutdown_async().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_server_finishes_its_calls_and_refuses_others() {
    let (mut server, address) = start(SocketAddr::new(fresh_ip().into(), 0));
    let (node, channel) = client(address).await;
    let load = Load::start(&channel);
    load.more(100, Code::Ok).await;
    let mut streams = Streams::open(&channel).await;
    server.signal(Signal::SIGTERM);
    load.more(CALLERS, Code::Unavailable).await;
    streams.talk().await;
    streams.notes.finish();
    assert_eq!(ended(streams.answers.message()).await.unwrap(), None);
    streams.points.finish();
    assert_eq!(ended(streams.journey).await.unwrap().unwrap().points, POINTS);
    let status = server.wait(BOUND).expect("it ends");
    assert!(status.success(), "{status}");

    let (_server, _) = start(address);
    load.more(100, Code::Ok).await;
    load.end().await;
    node.shutdown_async().await;
}
