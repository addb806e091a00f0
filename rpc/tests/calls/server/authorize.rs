//! Authorization of calls, which happens before their arguments are READ or decoded.

use crate::common::{Events, Reporter, events, until};
use crate::logged::Logged;
use serde::{Deserialize, Deserializer, Serialize};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline::policy::PolicyFile;
use trunkline::{
    Authorize, Bytes, CallOptions, Channel, Code, InProcessNetwork, IncomingCall, Metadata, Node, Origin,
    Reason, Status, Stream, Streaming, block_on, stream,
};
use trunkline_testkit::Folder;

/// Length of an argument that the server READs, in bytes.
const LARGE: usize = 200 << 10;

/// Number of decoded values of [`Seen`].
static DECODED: AtomicUsize = AtomicUsize::new(0);

/// A text that counts its decodings.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Seen(String);

impl<'de> Deserialize<'de> for Seen {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        DECODED.fetch_add(1, Ordering::Relaxed);
        String::deserialize(decoder).map(Self)
    }
}

#[trunkline::service(name = "tests.Guarded")]
trait Guarded {
    async fn see(&self, text: Seen) -> usize;
    async fn store(&self, text: String) -> usize;
    async fn raw(&self, tag: u8, bytes: Bytes) -> usize;
    #[oneway]
    async fn tell(&self, text: String);
    async fn repeat(&self, text: String) -> Result<impl Stream<Item = Result<u8, Status>>, Status>;
    async fn upload(&self, items: Streaming<String>) -> Result<usize, Status>;
}

struct Handler(Reporter<&'static str>);

impl Guarded for Handler {
    async fn see(&self, text: Seen) -> usize {
        self.0.tell("see");
        text.0.len()
    }

    async fn store(&self, text: String) -> usize {
        self.0.tell("store");
        text.len()
    }

    async fn raw(&self, _: u8, bytes: Bytes) -> usize {
        self.0.tell("raw");
        bytes.len()
    }

    async fn tell(&self, _: String) {
        self.0.tell("tell");
    }

    async fn repeat(&self, _: String) -> Result<impl Stream<Item = Result<u8, Status>>, Status> {
        self.0.tell("repeat");
        Ok(stream::channel(1).1)
    }

    async fn upload(&self, _: Streaming<String>) -> Result<usize, Status> {
        self.0.tell("upload");
        Ok(0)
    }
}

/// The same service with a different argument.
mod other {
    #[trunkline::service(name = "tests.Guarded")]
    pub(super) trait Guarded {
        async fn store(&self, number: u64) -> usize;
        #[oneway]
        async fn missing(&self);
    }
}

struct Rig {
    server: Node,
    node: Node,
    channel: Channel,
    ran: Events<&'static str>,
}

fn rig(authorize: impl Authorize) -> Rig {
    let (reporter, ran) = events();
    let network = InProcessNetwork::new();
    let builder = Node::builder().in_process(&network).serve(GuardedServer::new(Handler(reporter)));
    let server = builder.authorize(authorize).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let channel = node.channel(server.local_address());
    Rig { server, node, channel, ran }
}

fn by_token(call: &IncomingCall<'_>) -> Result<(), Status> {
    assert_eq!(
        (call.service(), call.path()),
        ("tests.Guarded", format!("/tests.Guarded/{}", call.method()).into())
    );
    match call.metadata().get("token") {
        Some("good") => Ok(()),
        Some(_) => Err(Status::permission_denied("another token")),
        None => Err(Status::unauthenticated("no token")),
    }
}

fn token(token: &str, padding: usize) -> CallOptions {
    let mut metadata = Metadata::new();
    metadata.insert("padding", &"p".repeat(padding)).unwrap();
    metadata.insert("token", token).unwrap();
    CallOptions::new().metadata(metadata)
}

fn counted(node: &Node, name: &str) -> u64 {
    node.report().counter(name).unwrap()
}

#[track_caller]
fn refused(status: &Status, code: Code) {
    let told = (status.code(), status.reason(), status.origin(), status.may_have_run());
    assert_eq!(told, (code, Some(Reason::Unauthorised), Origin::Peer, false), "{status}");
}

#[test]
fn refused_call_is_not_decoded() {
    let rig = rig(by_token);
    let client = GuardedClient::new(rig.channel.clone());
    assert_eq!(block_on(client.with(&token("good", 0)).see(Seen("abc".into()))), Ok(3));
    assert_eq!(rig.ran.next(), "see");
    let before = DECODED.load(Ordering::Relaxed);
    // The caller uses the method's number after the first call.
    refused(&block_on(client.see(Seen("abc".into()))).unwrap_err(), Code::Unauthenticated);
    let bad = token("bad", 0);
    refused(&block_on(client.with(&bad).see(Seen("abc".into()))).unwrap_err(), Code::PermissionDenied);
    assert_eq!((DECODED.load(Ordering::Relaxed), counted(&rig.server, "requests_unauthorised")), (before, 2));
    assert!(rig.ran.is_empty());
}

#[test]
fn large_arguments_of_refused_call_are_not_read() {
    let rig = rig(by_token);
    let client = GuardedClient::new(rig.channel.clone());
    let (text, bytes) = ("t".repeat(LARGE), Bytes::from(vec![1; LARGE]));
    for options in [CallOptions::new(), token("bad", 0), token("bad", 3000)] {
        let client = client.with(&options);
        assert_eq!(block_on(client.store(text.clone())).unwrap_err().reason(), Some(Reason::Unauthorised));
        assert_eq!(block_on(client.raw(1, bytes.clone())).unwrap_err().reason(), Some(Reason::Unauthorised));
        let opened = block_on(async { client.repeat(text.clone()).await.map(drop) });
        assert_eq!(opened.unwrap_err().reason(), Some(Reason::Unauthorised));
        block_on(client.tell(text.clone())).unwrap();
    }
    until("all are refused", || (counted(&rig.server, "requests_unauthorised") == 12).then_some(()));
    assert_eq!(counted(&rig.node, "read_responses_sent"), 0);
    // Metadata that does not fit into the announcement is sent with the arguments.
    let padded = token("bad", 6000);
    refused(&block_on(client.with(&padded).store(text.clone())).unwrap_err(), Code::PermissionDenied);
    assert!(counted(&rig.node, "read_responses_sent") > 0);
    assert!(rig.ran.is_empty());
    for padding in [0, 3000, 6000] {
        assert_eq!(block_on(client.with(&token("good", padding)).store(text.clone())), Ok(LARGE));
        assert_eq!(block_on(client.with(&token("good", padding)).raw(1, bytes.clone())), Ok(LARGE));
    }
}

#[test]
fn each_call_is_authorised_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let rig = rig(move |call: &IncomingCall<'_>| {
        assert!(!call.is_one_way() || call.method() == "tell");
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let client = GuardedClient::new(rig.channel.clone());
    for (calls, bytes) in [(1, 1), (2, LARGE), (3, 1), (4, LARGE)] {
        assert_eq!(block_on(client.store("t".repeat(bytes))), Ok(bytes));
        assert_eq!(asked.load(Ordering::Relaxed), calls);
    }
    assert_eq!(counted(&rig.server, "requests_unauthorised"), 0);
}

#[test]
fn refusal_reveals_neither_shape_nor_version() {
    let rig = rig(by_token);
    let client = other::GuardedClient::new(rig.channel.clone());
    let status = block_on(client.store(7)).unwrap_err();
    refused(&status, Code::Unauthenticated);
    let allowed = token("good", 0);
    let status = block_on(client.with(&allowed).store(7)).unwrap_err();
    assert_eq!(status.reason(), Some(Reason::OtherShape), "{status}");
}

#[test]
fn unauthorized_one_way_calls_and_streams_are_refused() {
    let warnings = Logged::by_all();
    let rig = rig(|_: &IncomingCall<'_>| Err(Status::permission_denied("not one-way, not streamed")));
    let client = GuardedClient::new(rig.channel.clone());
    block_on(client.tell("small".into())).unwrap();
    until("it is counted", || (counted(&rig.server, "requests_unauthorised") == 1).then_some(()));
    until("its failure is counted", || (counted(&rig.server, "one_way_requests_failed") == 1).then_some(()));
    until("it is logged", || (warnings.count("not one-way, not streamed") > 0).then_some(()));
    let opened = block_on(async { client.repeat("small".into()).await.map(drop) });
    refused(&opened.unwrap_err(), Code::PermissionDenied);
    let (items, sent) = stream::channel(4);
    let upload = client.upload(sent);
    let _closed = block_on(items.send("item".to_owned()));
    refused(&block_on(upload).unwrap_err(), Code::PermissionDenied);
    assert!(rig.ran.is_empty());
    // Authorization does not apply to methods that the server does not have.
    block_on(other::GuardedClient::new(rig.channel.clone()).missing()).unwrap();
    until("it is counted", || (counted(&rig.server, "one_way_requests_not_served") == 1).then_some(()));
}

#[test]
fn panic_ends_only_its_call() {
    let rig = rig(|call: &IncomingCall<'_>| match call.metadata().get("token") {
        Some("panic") => panic!("as it should"),
        _ => Ok(()),
    });
    let client = GuardedClient::new(rig.channel.clone());
    for bytes in [1, LARGE] {
        let status = block_on(client.with(&token("panic", 0)).store("t".repeat(bytes))).unwrap_err();
        let told = (status.code(), status.reason(), status.may_have_run());
        assert_eq!(told, (Code::Internal, Some(Reason::Panicked), false), "{status}");
    }
    assert_eq!(counted(&rig.node, "read_responses_sent"), 0);
    assert_eq!(block_on(client.store("t".repeat(LARGE))), Ok(LARGE));
}

#[test]
fn policy_file_is_enforced_and_reread_after_change() {
    let log = Logged::by_all();
    let folder = Folder::new().unwrap();
    let path = folder.join("policy.toml");
    let replace = |text: &str| {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &path).unwrap();
    };
    let allowing = |call| format!("[[allow]]\npeers = ['unproven']\ncalls = ['/tests.Guarded/{call}']\n");
    replace(&allowing("raw"));
    let policy = PolicyFile::open(&path).unwrap();
    let rig = rig(policy.clone());
    let client = GuardedClient::new(rig.channel.clone());
    let raw = || block_on(client.raw(1, Bytes::from_static(b"a")));
    let store = || block_on(client.store("a".to_owned()));
    assert_eq!(raw(), Ok(1));
    let status = store().unwrap_err();
    refused(&status, Code::PermissionDenied);
    let told = ": the policy of the server does not allow unproven to call /tests.Guarded/store";
    assert!(status.message().ends_with(told), "{status}");
    let cause = "policy: unproven called /tests.Guarded/store: no rule allows it";
    until("the cause is logged", || (log.count(cause) == 1).then_some(()));
    assert!(!policy.reload(), "it has not changed");

    let warnings = |cause: &str| {
        let lines = log.lines();
        lines.iter().filter(|line| line.contains(path.to_str().unwrap()) && line.contains(cause)).count()
    };
    for (text, cause) in [(Some("[[allow]]"), "line 1: missing field `peers`"), (None, "No such file")] {
        match text {
            Some(text) => replace(text),
            None => fs::remove_file(&path).unwrap(),
        }
        assert_eq!((policy.reload(), policy.reload(), warnings(cause)), (false, false, 1), "{cause}");
        assert_eq!((raw(), store().is_err()), (Ok(1), true), "the earlier policy stays in force");
    }
    assert!(PolicyFile::open(&path).is_err());
    replace(&allowing("store"));
    assert!(policy.reload());
    assert_eq!((store(), raw().unwrap_err().code()), (Ok(1), Code::PermissionDenied));
}
