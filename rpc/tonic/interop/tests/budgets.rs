//! Buffers in tonic that grow because of a peer are charged to the peer's budget, and refused beyond it.

use bytes::Bytes;
use http_body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::{Code, Status};
use tower::util::MapResponseLayer;
use tower_service::Service as _;
use trunkline::{InProcessNetwork, Limit, Node};
use trunkline_tonic::{Channel, Server};
use trunkline_tonic_interop::messages::{Empty, InputRequest, OutputRequest, ResponseParameters, zeros};
use trunkline_tonic_interop::{Interop, TestServiceClient, routes};

const MIB: usize = 1 << 20;
/// Number of zeros in a message of 1 MiB, which gzip compresses to about 1 kB.
const ZEROS: i32 = (1 << 20) - 64;
/// The budget of each peer: 7 MiB, and stream windows.
const BUDGET: Limit = Limit { per_peer: 8 * MIB, in_all: 64 * MIB };
const STREAMS: usize = 20;

type Serve = fn(Server) -> trunkline::stub::Service;

const SERVED: [Serve; 2] = [|server| server.runtime(Handle::current()), Server::on_pollers];

async fn node(network: &InProcessNetwork) -> Node {
    let node = Node::builder().in_process(network).decoded_bytes(BUDGET);
    node.start_async().await.unwrap()
}

async fn serve(network: &InProcessNetwork, service: Interop, serve: Serve) -> Node {
    let node = Node::builder().in_process(network).decoded_bytes(BUDGET).tokio(Handle::current());
    node.serve(serve(Server::new(routes(service)))).start_async().await.unwrap()
}

/// Returns the number of bytes charged for decoded arguments on a node.
fn charged(node: &Node) -> usize {
    let budgets = node.report().budgets;
    let decoded = budgets.iter().find(|budget| budget.name == "bytes of decoded arguments").unwrap();
    usize::try_from(decoded.used).unwrap()
}

async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let wait = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), wait).await.is_ok(), "{what}");
}

/// Waits until each call has been refused because of the node's budget or has been charged 1 MiB. Returns the number of
/// charged calls.
async fn held(node: &Node, calls: &mut JoinSet<Status>) -> usize {
    let all = calls.len();
    let mut refused = 0;
    until("all are charged or refused", || {
        while let Some(status) = calls.try_join_next() {
            let status = status.unwrap();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("budget of bytes of decoded arguments"), "{status}");
            refused += 1;
        }
        refused + charged(node) / MIB == all
    })
    .await;
    all - refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_streams_are_charged_for_inflated_requests() {
    for of_server in SERVED {
        let network = InProcessNetwork::new();
        let server = serve(&network, Interop::default(), of_server).await;
        let [peer, other] = [node(&network).await, node(&network).await];
        let client = |node| TestServiceClient::new(Channel::new(node, server.local_address()));
        let mut calls = JoinSet::new();
        for _ in 0..STREAMS {
            let mut client = client(&peer).send_compressed(Gzip);
            let requests = tokio_stream::once(InputRequest { payload: zeros(ZEROS) });
            let requests = requests.chain(tokio_stream::pending());
            calls.spawn(async move { client.streaming_input_call(requests).await.unwrap_err() });
        }
        assert_eq!(held(&server, &mut calls).await, 7);
        // Small calls of this peer and of other peers succeed.
        for node in [&peer, &other] {
            client(node).empty_call(Empty {}).await.unwrap();
        }
        calls.shutdown().await;
        until("the charges are released", || charged(&server) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_streams_are_charged_for_inflated_responses() {
    let network = InProcessNetwork::new();
    let server = serve(&network, Interop::default(), Server::on_pollers).await;
    let node = node(&network).await;
    let mut calls = JoinSet::new();
    for _ in 0..STREAMS {
        let channel = Channel::new(&node, server.local_address());
        let mut client = TestServiceClient::new(channel).accept_compressed(Gzip);
        let response_parameters = vec![ResponseParameters { size: ZEROS, interval_us: 0 }];
        let request = OutputRequest { response_parameters, ..OutputRequest::default() };
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        calls.spawn(async move {
            let mut responses = client.full_duplex_call(requests).await.unwrap().into_inner();
            loop {
                if let Err(status) = responses.message().await {
                    return status;
                }
            }
        });
    }
    assert_eq!(held(&node, &mut calls).await, 7);
    calls.shutdown().await;
    until("the charges are released", || charged(&node) == 0).await;
}

/// A body that announces a 1 MiB message and never sends it.
struct Announced(Option<Bytes>);

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.take().map_or(Poll::Pending, |frame| Poll::Ready(Some(Ok(Frame::data(frame)))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_length_of_incomplete_message_is_charged() {
    for encoding in ["identity", "gzip"] {
        let network = InProcessNetwork::new();
        let server = serve(&network, Interop::default(), Server::on_pollers).await;
        let node = node(&network).await;
        let mut calls = JoinSet::new();
        for _ in 0..STREAMS {
            let mut channel = Channel::new(&node, server.local_address());
            // A gzip message needs two buffers.
            let prefix: [u8; 5] = if encoding == "gzip" { [1, 0, 4, 0, 0] } else { [0, 0, 16, 0, 0] };
            let body = Announced(Some(Bytes::copy_from_slice(&prefix)));
            let request = http::Request::post("/grpc.testing.TestService/StreamingInputCall")
                .header("grpc-encoding", encoding)
                .body(tonic::body::Body::new(body))
                .unwrap();
            calls.spawn(async move {
                let response = channel.call(request).await.unwrap();
                Status::from_header_map(response.headers()).unwrap()
            });
        }
        assert_eq!(held(&server, &mut calls).await, 7, "{encoding}");
        calls.shutdown().await;
        until("the charges are released", || charged(&server) == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_idle_plain_streams_open_on_one_channel() {
    const OPEN: usize = 5000;
    let (network, service) = (InProcessNetwork::new(), Interop::default());
    let server = Server::new(routes(service.clone())).on_pollers();
    let server = Node::builder().in_process(&network).tokio(Handle::current()).serve(server);
    let server = server.start_async().await.unwrap();
    let node = Node::builder().in_process(&network).start_async().await.unwrap();
    let client = TestServiceClient::new(Channel::new(&node, server.local_address()));
    let mut streams = Vec::new();
    for _ in 0..OPEN {
        let response_parameters = vec![ResponseParameters { size: 1000, interval_us: 0 }];
        let request = OutputRequest { response_parameters, ..OutputRequest::default() };
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let mut responses = client.clone().full_duplex_call(requests).await.unwrap().into_inner();
        assert!(responses.message().await.unwrap().is_some());
        streams.push(responses);
    }
    assert_eq!(service.running(), OPEN);
}

/// A response body that counts its bytes.
struct Counted {
    body: tonic::body::Body,
    bytes: Arc<AtomicUsize>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(task);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.bytes.fetch_add(frame.data_ref().map_or(0, Bytes::len), Relaxed);
        }
        frame
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_of_one_peer_are_bounded_and_delay_no_other_peer() {
    const DOWNLOADS: usize = 200;
    let (network, bytes) = (InProcessNetwork::new(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&bytes);
    let layer = MapResponseLayer::new(move |response: http::Response<tonic::body::Body>| {
        let bytes = Arc::clone(&counter);
        response.map(|body| tonic::body::Body::new(Counted { body, bytes }))
    });
    let server = Server::new(routes(Interop::default())).layer(layer).runtime(Handle::current());
    let server = Node::builder().in_process(&network).serve(server).start_async().await.unwrap();
    let [peer, other] = [node(&network).await, node(&network).await];
    let download = async |node| {
        let response_parameters = vec![ResponseParameters { size: 32 << 10, interval_us: 0 }; 64];
        let request = OutputRequest { response_parameters, ..OutputRequest::default() };
        let mut client = TestServiceClient::new(Channel::new(node, server.local_address()));
        client.streaming_output_call(request).await.unwrap().into_inner()
    };
    let mut unread = Vec::new();
    for _ in 0..DOWNLOADS {
        unread.push(download(&peer).await);
    }
    let mut before = usize::MAX;
    while before != bytes.load(Relaxed) {
        before = bytes.load(Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Half of 64 MiB, and the pieces and windows of each download.
    assert!(bytes.load(Relaxed) < 120 * MIB, "{} bytes", bytes.load(Relaxed));
    // Downloads that are read continue.
    for mut responses in [download(&other).await, unread.pop().unwrap()] {
        for _ in 0..64 {
            assert!(responses.message().await.unwrap().is_some());
        }
    }
}
