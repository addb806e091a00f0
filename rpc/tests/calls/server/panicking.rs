//! Values of the program that panic on a poller's thread outside handlers. The call ends as usual, and the node continues.

use crate::common::{Guard, LIMIT, Reporter, events, node, pair};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use trunkline::{Bytes, CallOptions, Code, Status, block_on};

#[trunkline::service(name = "tests.Panicking", version = 1)]
trait Panicking {
    async fn reply(&self, bytes: u32) -> Result<Bytes, Status>;
    async fn fail(&self) -> Result<(), Status>;
    async fn length(&self, body: Bytes) -> Result<usize, Status>;
}

/// An owner of bytes that reports its drop and then panics.
struct Owner {
    bytes: Vec<u8>,
    _dropped: Guard,
}

impl Owner {
    fn bytes(length: usize, reporter: &Reporter<&'static str>) -> Bytes {
        Bytes::from_owner(Self { bytes: vec![7; length], _dropped: Guard(reporter.clone()) })
    }
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        panic!("an owner of bytes panics on purpose");
    }
}

struct Service {
    reporter: Reporter<&'static str>,
    panics: bool,
}

impl Panicking for Service {
    async fn reply(&self, bytes: u32) -> Result<Bytes, Status> {
        Ok(Owner::bytes(bytes as usize, &self.reporter))
    }
    async fn fail(&self) -> Result<(), Status> {
        Err(Status::aborted("on purpose").with_details(Owner::bytes(3, &self.reporter)))
    }
    async fn length(&self, body: Bytes) -> Result<usize, Status> {
        Ok(body.len())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.reporter.tell("service");
        if self.panics {
            panic!("a service panics on purpose");
        }
    }
}

/// A small length, a medium length, and a length that requires an announcement.
const LENGTHS: [u32; 3] = [10, 10_000, 1_000_000];

#[test]
fn panicking_owners_of_bytes_end_neither_calls_nor_nodes() {
    let (reporter, dropped) = events();
    let makes = reporter.clone();
    let service = PanickingServer::new(Service { reporter: makes, panics: false });
    let (server, node) = pair(service);
    let client = PanickingClient::connect(&node, server.local_address()).unwrap();
    for length in LENGTHS {
        let reply = block_on(client.reply(length));
        assert_eq!(reply.map(|bytes| bytes.len()), Ok(length as usize));
        assert_eq!(dropped.next(), "dropped", "the body of a reply of {length} bytes");
        let argument = Owner::bytes(length as usize, &reporter);
        assert_eq!(block_on(client.length(argument)), Ok(length as usize));
        assert_eq!(dropped.next(), "dropped", "an argument of {length} bytes");
    }
    let failed = block_on(client.fail()).unwrap_err();
    assert_eq!((failed.code(), &failed.details()[..]), (Code::Aborted, &[7; 3][..]));
    assert_eq!(dropped.next(), "dropped", "the details of a status");
    // One call is refused on the poller, and another expires in the queue.
    let silent = crate::common::fresh_address();
    let _unread = std::net::UdpSocket::bind((silent.ip(), trunkline_softrdma::link::ROCE_PORT)).unwrap();
    let nowhere = PanickingClient::connect(&node, silent).unwrap();
    let waits =
        CallOptions::new().connect(trunkline::Connect::Wait).timeout(std::time::Duration::from_millis(50));
    let refused = block_on(nowhere.length(Owner::bytes(100 << 20, &reporter))).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(dropped.next(), "dropped", "a refused argument");
    let late = block_on(nowhere.with(&waits).length(Owner::bytes(10, &reporter))).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert_eq!(dropped.next(), "dropped", "an argument that never left");
    assert_eq!(block_on(client.length(Bytes::new())), Ok(0), "both nodes go on");
}

/// A waker that unparks a thread and then panics.
struct Rude(thread::Thread);

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
        panic!("a waker panics on purpose");
    }
}

#[test]
fn panicking_waker_ends_neither_call_nor_node() {
    let (reporter, _) = events();
    let (server, node) = pair(PanickingServer::new(Service { reporter, panics: false }));
    let client = PanickingClient::connect(&node, server.local_address()).unwrap();
    for length in 0..3 {
        let mut call = pin!(client.length(vec![0; length].into()));
        let waker = Waker::from(Arc::new(Rude(thread::current())));
        let begun = std::time::Instant::now();
        let outcome = loop {
            match call.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => thread::park_timeout(LIMIT),
            }
            assert!(begun.elapsed() < LIMIT, "the call ends");
        };
        assert_eq!(outcome, Ok(length));
    }
}

#[test]
fn panic_in_service_drop_does_not_block_shutdown() {
    let (reporter, dropped) = events();
    let makes = reporter.clone();
    let first = PanickingServer::new(Service { reporter: makes, panics: true });
    let server = node().serve(first).start().unwrap();
    server.shutdown();
    assert_eq!(dropped.next(), "service");
}
