//! Arguments and results of every shape and size arrive unchanged.

use crate::common::{Events, Reporter};
use crate::common::{events, fresh_address, node, pair, pattern, shared_pattern};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trunkline::{Bytes, CallError, Code, Node, Origin, Reason, Status, block_on};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Nothing,
    Pair(i64, f64),
    Tree { name: String, below: Vec<Self> },
}

/// A service with methods of every supported shape.
#[trunkline::service]
trait Zoo {
    /// Takes no arguments and returns an empty result.
    async fn nothing(&self) -> Result<(), Status>;
    /// Returns a type other than `Result`.
    async fn plain(&self, left: u64, right: u64) -> u64;
    /// Has no result type.
    async fn plain_nothing(&self, text: String);
    /// Returns a type other than `Result`, which is sent without encoding.
    async fn plain_bytes(&self) -> Bytes;
    /// Takes and returns types of every shape that serde supports.
    async fn shapes(&self, shapes: BTreeMap<u8, Shape>) -> Result<BTreeMap<u8, Shape>, Status>;
    /// Takes several `Bytes`. Only the last is sent without encoding.
    async fn join(&self, first: Bytes, number: u8, second: Bytes, third: Bytes) -> Result<Bytes, Status>;
    /// Takes `Bytes` before its last argument.
    async fn early(&self, body: Bytes, number: u64) -> Result<(Bytes, u64), Status>;
    /// Returns an optional value.
    async fn optional(&self, there: bool) -> Result<Option<Bytes>, Status>;
    /// Takes an optional argument.
    async fn given(&self, bytes: Option<Bytes>) -> Result<Option<usize>, Status>;
    /// Returns a large value without encoding.
    async fn back(&self, bytes: Bytes) -> Result<Bytes, Status>;
    /// Returns a large encoded value.
    async fn back_coded(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Status>;
    /// Takes the maximum of twelve arguments.
    #[allow(clippy::too_many_arguments, reason = "the test needs this many arguments")]
    async fn twelve(
        &self,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
        g: u8,
        h: u8,
        i: u8,
        j: u8,
        k: u8,
        l: u8,
    ) -> Result<Vec<u8>, Status>;
    /// Is one-way.
    #[oneway]
    async fn note(&self, text: String, body: Bytes);
}

struct Keeper(Reporter<(String, Bytes)>);

impl Zoo for Keeper {
    async fn nothing(&self) -> Result<(), Status> {
        Ok(())
    }
    async fn plain(&self, left: u64, right: u64) -> u64 {
        left - right
    }
    async fn plain_nothing(&self, text: String) {
        self.0.tell((text, Bytes::new()));
    }
    async fn plain_bytes(&self) -> Bytes {
        Bytes::from_static(b"plain")
    }
    async fn shapes(&self, mut shapes: BTreeMap<u8, Shape>) -> Result<BTreeMap<u8, Shape>, Status> {
        shapes.remove(&0);
        Ok(shapes)
    }
    async fn join(&self, first: Bytes, number: u8, second: Bytes, third: Bytes) -> Result<Bytes, Status> {
        Ok([&first[..], &[number], &second, &third].concat().into())
    }
    async fn early(&self, body: Bytes, number: u64) -> Result<(Bytes, u64), Status> {
        Ok((body, number))
    }
    async fn optional(&self, there: bool) -> Result<Option<Bytes>, Status> {
        Ok(there.then(Bytes::new))
    }
    async fn given(&self, bytes: Option<Bytes>) -> Result<Option<usize>, Status> {
        Ok(bytes.map(|bytes| bytes.len()))
    }
    async fn back(&self, bytes: Bytes) -> Result<Bytes, Status> {
        Ok(bytes)
    }
    async fn back_coded(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Status> {
        Ok(bytes)
    }
    async fn twelve(
        &self,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
        g: u8,
        h: u8,
        i: u8,
        j: u8,
        k: u8,
        l: u8,
    ) -> Result<Vec<u8>, Status> {
        Ok(vec![a, b, c, d, e, f, g, h, i, j, k, l])
    }
    async fn note(&self, text: String, body: Bytes) {
        self.0.tell((text, body));
    }
}

/// Starts a server and a client node. Returns both nodes, the client, and the arguments of one-way calls.
fn zoo() -> (Node, Node, ZooClient, Events<(String, Bytes)>) {
    let (reporter, reported) = events();
    let (server, node) = pair(ZooServer::new(Keeper(reporter)));
    let client = ZooClient::connect(&node, server.local_address()).unwrap();
    (server, node, client, reported)
}

#[test]
fn methods_of_every_shape_can_be_called() {
    let (_server, _node, client, reported) = zoo();
    block_on(async {
        assert_eq!(client.nothing().await, Ok(()));
        assert_eq!(client.plain(9, 4).await, Ok(5));
        assert_eq!(client.plain_nothing("quiet".into()).await, Ok(()));
        assert_eq!(reported.next(), ("quiet".to_owned(), Bytes::new()));
        assert_eq!(client.plain_bytes().await.unwrap(), &b"plain"[..]);
        let tree = Shape::Tree { name: "root".into(), below: vec![Shape::Nothing, Shape::Pair(-3, 0.5)] };
        let shapes = BTreeMap::from([(0, Shape::Nothing), (1, tree.clone())]);
        assert_eq!(client.shapes(shapes).await, Ok(BTreeMap::from([(1, tree)])));
        let joined = client.join("ab".into(), b'-', Bytes::new(), "cd".into()).await;
        assert_eq!(joined.unwrap(), &b"ab-cd"[..]);
        assert_eq!(client.early("body".into(), 77).await, Ok(("body".into(), 77)));
        assert_eq!(client.optional(true).await, Ok(Some(Bytes::new())), "empty is not none");
        assert_eq!(client.optional(false).await, Ok(None));
        assert_eq!(client.given(Some("four".into())).await, Ok(Some(4)));
        assert_eq!(client.given(None).await, Ok(None));
        assert_eq!(
            client.twelve(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12).await,
            Ok(vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
        );
    });
}

#[test]
fn one_way_call_arrives_and_does_not_wait_for_its_handler() {
    let (_server, _node, client, reported) = zoo();
    block_on(client.note("hello".into(), shared_pattern(100_000, 3))).unwrap();
    assert_eq!(reported.next(), ("hello".to_owned(), shared_pattern(100_000, 3)));
    assert!(reported.is_empty(), "it arrived once");
}

#[test]
fn large_values_are_sent_in_both_directions() {
    let (_server, _node, client, _told) = zoo();
    // Sizes near the thresholds between transfer methods.
    for length in [0, 1, 1023, 1025, 4090, 4096, 4097, 16 << 10, (16 << 10) + 1, 1 << 20, 8 << 20] {
        let sent = shared_pattern(length, 1);
        let back = block_on(client.back(sent.clone())).unwrap();
        assert!(back == sent, "{length} bytes came back as {}", back.len());
        let coded = block_on(client.back_coded(sent.to_vec())).unwrap();
        assert!(coded == sent, "{length} encoded bytes came back as {}", coded.len());
    }
}

#[test]
fn kept_large_replies_are_unchanged_by_later_replies() {
    let (_server, _node, client, _told) = zoo();
    let kept: Vec<_> = (0..20).map(|seed| (seed, shared_pattern(300_000, seed))).collect();
    let answers: Vec<_> =
        kept.iter().map(|(_, bytes)| block_on(client.back(bytes.clone())).unwrap()).collect();
    for ((seed, sent), back) in kept.iter().zip(&answers) {
        assert!(sent == back, "answer {seed} was changed while it was kept");
    }
}

#[test]
fn oversized_request_names_size_and_limit() {
    let server = node().serve(ZooServer::new(Keeper(events().0))).start().unwrap();
    let small = node().max_message_bytes(100_000).start().unwrap();
    let client = ZooClient::connect(&small, server.local_address()).unwrap();
    for outcome in [
        block_on(client.back(shared_pattern(100_001, 0))).map(|_| ()),
        block_on(client.back_coded(pattern(100_001, 0))).map(|_| ()),
    ] {
        let status = outcome.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(!status.may_have_run());
        assert!(status.message().contains("the limit of 100000 (setting max_message_bytes)"), "{status}");
        assert!(status.message().contains("1000"), "{status}");
    }
    assert_eq!(block_on(client.nothing()), Ok(()), "the trunk still works");
}

/// The first call is sent before the client has received the server's limit.
#[test]
fn first_call_above_limit_of_server_names_limit() {
    let small = node().max_message_bytes(100_000).serve(ZooServer::new(Keeper(events().0)));
    let (small, node) = (small.start().unwrap(), node().start().unwrap());
    let client = ZooClient::connect(&node, small.local_address()).unwrap();
    let status = block_on(client.back(shared_pattern(100_001, 0))).unwrap_err();
    let told = (status.code(), status.reason(), status.may_have_run());
    assert_eq!(told, (Code::ResourceExhausted, Some(Reason::TooLarge), false), "{status}");
    assert!(status.message().contains("limit of 100000"), "{status}");
    assert_eq!(block_on(client.nothing()), Ok(()), "the session is up");
}

#[test]
fn oversized_answer_names_size_and_limit() {
    let limit = 100_000;
    let server = node().max_message_bytes(limit).serve(SprawlServer::new(Sprawling)).start().unwrap();
    let node = node().start().unwrap();
    let client = SprawlClient::connect(&node, server.local_address()).unwrap();
    for (outcome, size) in [
        (block_on(client.bytes(200_000)).map(|_| ()), "2000"),
        (block_on(client.coded(200_000)).map(|_| ()), "2000"),
        (block_on(client.error(200_000)), "2000"),
    ] {
        let status = outcome.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.may_have_run(), "the handler did run");
        assert!(status.message().contains("100000"), "{status}");
        assert!(status.message().contains(size), "{status}");
    }
    assert_eq!(block_on(client.bytes(3)).unwrap().len(), 3);
}

/// Replies of any size.
#[trunkline::service]
trait Sprawl {
    async fn bytes(&self, length: usize) -> Result<Bytes, Status>;
    async fn coded(&self, length: usize) -> Result<Vec<u8>, Status>;
    async fn error(&self, length: usize) -> Result<(), Status>;
}

struct Sprawling;

impl Sprawl for Sprawling {
    async fn bytes(&self, length: usize) -> Result<Bytes, Status> {
        Ok(shared_pattern(length, 0))
    }
    async fn coded(&self, length: usize) -> Result<Vec<u8>, Status> {
        Ok(pattern(length, 0))
    }
    async fn error(&self, length: usize) -> Result<(), Status> {
        Err(Status::aborted("a").with_details(shared_pattern(length, 0)))
    }
}

/// An application error type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Refusal {
    Shut,
    Full { left: u64, names: Vec<String> },
}

/// Aliases for `Status` and `Result`.
type Trouble = Status;
mod own {
    pub(super) type Result<T> = std::result::Result<T, super::Refusal>;
}
mod plain {
    pub(super) type Result<T> = std::result::Result<T, trunkline::Status>;
}

#[trunkline::service(name = "tests.Own", version = 7)]
trait OwnErrors {
    async fn refuse(&self, names: Vec<String>) -> Result<u8, Refusal>;
    async fn shut(&self, really: bool) -> own::Result<Bytes>;
    async fn panic(&self) -> Result<Option<Bytes>, Refusal>;
    async fn trouble(&self) -> Result<(), Trouble>;
    async fn plain(&self) -> plain::Result<u8>;
}

/// The same service, for clients that expect a status or another type as the error.
mod mistaken {
    #[trunkline::service(name = "tests.Own", version = 7)]
    pub(super) trait OwnErrors {
        async fn refuse(&self, names: Vec<String>) -> Result<u8, trunkline::Status>;
        async fn shut(&self, really: bool) -> Result<trunkline::Bytes, (u8, u8)>;
    }
}

struct Refusing;

impl OwnErrors for Refusing {
    async fn refuse(&self, names: Vec<String>) -> Result<u8, Refusal> {
        Err(Refusal::Full { left: 3, names })
    }
    async fn shut(&self, really: bool) -> own::Result<Bytes> {
        if really { Err(Refusal::Shut) } else { Ok("open".into()) }
    }
    async fn panic(&self) -> Result<Option<Bytes>, Refusal> {
        panic!("a handler panics on purpose");
    }
    async fn trouble(&self) -> Result<(), Trouble> {
        Err(Status::aborted("trouble").with_cause("the disk is full").with_details("details"))
    }
    async fn plain(&self) -> plain::Result<u8> {
        Err(Status::not_found("plain"))
    }
}

fn full(names: &[&str]) -> CallError<Refusal> {
    CallError::Handler(Refusal::Full {
        left: 3,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    })
}

#[test]
fn error_type_of_service_arrives_unchanged() {
    let (server, node) = pair(OwnErrorsServer::new(Refusing));
    let client = OwnErrorsClient::connect(&node, server.local_address()).unwrap();
    let refused = block_on(client.refuse(vec!["a".into(), "b".into()]));
    assert_eq!(refused, Err(full(&["a", "b"])));
    assert!(refused.unwrap_err().may_have_run());
    assert_eq!(block_on(client.shut(true)), Err(CallError::Handler(Refusal::Shut)));
    assert_eq!(block_on(client.shut(false)), Ok("open".into()));
    // An error that the handler did not return is a status.
    let Err(CallError::Status(status)) = block_on(client.panic()) else { panic!("a status") };
    assert_eq!((status.origin(), status.reason()), (Origin::Peer, Some(Reason::Panicked)), "{status}");
    // Aliases are treated like the types for which they stand.
    let status: Status = block_on(client.trouble()).unwrap_err();
    assert_eq!((status.message(), status.origin()), ("trouble", Origin::Handler));
    assert_eq!(
        (status.causes(), &status.details()[..]),
        (&["the disk is full".to_owned()][..], &b"details"[..])
    );
    assert_eq!(block_on(client.plain()), Err(Status::not_found("plain")));
}

#[test]
fn unknown_error_type_is_bad_reply() {
    let (server, node) = pair(OwnErrorsServer::new(Refusing));
    let client = mistaken::OwnErrorsClient::connect(&node, server.local_address()).unwrap();
    let status = block_on(client.refuse(Vec::new())).unwrap_err();
    assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::BadReply)), "{status}");
    assert!(status.may_have_run() && status.message().contains("error of the service's own"), "{status}");
    let Err(CallError::Status(status)) = block_on(client.shut(true)) else { panic!("it has another shape") };
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::OtherShape), false), "{status}");
}

#[test]
fn service_may_be_declared_inside_function_and_may_be_empty() {
    #[trunkline::service]
    trait Inner {
        async fn double(&self, number: u32) -> u32;
    }
    #[trunkline::service]
    trait Empty {}
    struct Doubling;
    impl Inner for Doubling {
        async fn double(&self, number: u32) -> u32 {
            2 * number
        }
    }
    impl Empty for Doubling {}
    let server = node().serve(InnerServer::new(Doubling)).serve(EmptyServer::new(Doubling)).start().unwrap();
    let node = node().start().unwrap();
    let client = InnerClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.double(21)), Ok(42));
}

#[test]
fn duplicate_service_is_refused_at_start() {
    let error = Node::builder()
        .listen(fresh_address())
        .serve(SprawlServer::new(Sprawling))
        .serve(SprawlServer::new(Sprawling))
        .start()
        .unwrap_err();
    assert!(matches!(&error, trunkline::StartError::DuplicateService("Sprawl")), "{error}");
    assert!(error.to_string().contains("name ="), "the remedy: {error}");
}
