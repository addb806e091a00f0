//! Metadata in requests and responses, for all kinds of calls.

use crate::common::{Events, Reporter, events};
use trunkline::{
    Bytes, CallError, CallOptions, Code, Context, InProcessNetwork, Metadata, Node, PollerContext, Reason,
    ResponseMetadata, Status, block_on,
};

#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("refused by the service")]
struct Own;

#[trunkline::service]
trait Tags {
    /// Returns the metadata of its call, and also sends it back as initial and trailing metadata.
    async fn echo(&self, cx: &Context, text: String) -> String;
    async fn raw(&self, cx: &Context, body: Bytes) -> Bytes;
    async fn fail(&self, cx: &Context) -> Result<(), Status>;
    async fn fail_own(&self, cx: &Context) -> Result<(), Own>;
    async fn panic(&self, cx: &Context);
    #[blocking]
    async fn block(&self, cx: &Context) -> String;
    #[oneway]
    async fn tell(&self, cx: &Context);
    /// Sends `bytes` bytes of response metadata.
    async fn big(&self, cx: &Context, bytes: u32) -> Result<(), Status>;
    /// Calls `echo` on this node through a local client.
    async fn forward(&self, cx: &Context) -> Result<String, Status>;
}

struct Echo(Reporter<Metadata>);

fn token(metadata: &Metadata) -> String {
    metadata.get("token").unwrap_or("none").to_owned()
}

/// Sends the metadata of a call back to the caller.
fn send_back(cx: &Context) -> String {
    cx.set_initial_metadata(cx.metadata().clone());
    cx.set_trailing_metadata(one("trailer", "t"));
    token(cx.metadata())
}

impl Tags for Echo {
    async fn echo(&self, cx: &Context, text: String) -> String {
        format!("{} {text}", send_back(cx))
    }

    async fn raw(&self, cx: &Context, body: Bytes) -> Bytes {
        send_back(cx);
        // The future completes in a later poll.
        trunkline::yield_now().await;
        body
    }

    async fn fail(&self, cx: &Context) -> Result<(), Status> {
        send_back(cx);
        Err(Status::not_found("no").with_details("details").with_metadata(one("of-status", "s")))
    }

    async fn fail_own(&self, cx: &Context) -> Result<(), Own> {
        send_back(cx);
        Err(Own)
    }

    async fn panic(&self, cx: &Context) {
        send_back(cx);
        panic!("as it should");
    }

    async fn block(&self, cx: &Context) -> String {
        send_back(cx)
    }

    async fn tell(&self, cx: &Context) {
        send_back(cx);
        self.0.tell(cx.metadata().clone());
    }

    async fn big(&self, cx: &Context, bytes: u32) -> Result<(), Status> {
        cx.set_initial_metadata(sized(bytes as usize));
        Ok(())
    }

    async fn forward(&self, cx: &Context) -> Result<String, Status> {
        let poller = PollerContext::current().expect("a handler runs on a poller");
        let itself: std::net::SocketAddr = cx.metadata().get("address").unwrap_or_default().parse()?;
        let local = TagsLocal::connect(&poller, itself)?;
        let (received, metadata) = (ResponseMetadata::new(), one("token", "nested"));
        let options = CallOptions::new().metadata(metadata).response_metadata(&received);
        let text = local.with(&options).echo("local".into()).await?;
        let without = local.echo("plain".into()).await?;
        Ok(format!("{text}, {}, {without}", token(&received.initial())))
    }
}

fn one(key: &str, value: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert(key, value).unwrap();
    metadata
}

/// Returns metadata of the given size, in bytes.
fn sized(bytes: usize) -> Metadata {
    let metadata = one("k", &"v".repeat(bytes - 4));
    assert_eq!(metadata.size(), bytes);
    metadata
}

struct Rig {
    server: Node,
    _node: Node,
    client: TagsClient,
    told: Events<Metadata>,
}

fn rig() -> Rig {
    let (reporter, told) = events();
    let network = InProcessNetwork::new();
    let server = Node::builder().in_process(&network).serve(TagsServer::new(Echo(reporter))).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let client = TagsClient::new(node.channel(server.local_address()));
    Rig { server, _node: node, client, told }
}

/// Makes all kinds of calls, with metadata that may exceed one frame.
fn exchange(rig: &Rig, mut sent: Metadata) {
    sent.append("token", "secret").unwrap();
    sent.append("token", "second").unwrap();
    sent.append_bin("any-bin", &[0, 1, 255]).unwrap();
    let received = ResponseMetadata::new();
    let options = CallOptions::new().metadata(sent.clone()).response_metadata(&received);
    let with = rig.client.with(&options);
    let check = |trailing: &Metadata| {
        assert_eq!((received.initial(), received.trailing()), (sent.clone(), trailing.clone()));
        assert_eq!(received.initial().get_all("token").collect::<Vec<_>>(), ["secret", "second"]);
        // Each call replaces the stored response metadata.
        block_on(rig.client.with(&CallOptions::new().response_metadata(&received)).big(4)).unwrap();
        assert_eq!((received.initial().size(), received.trailing().is_empty()), (4, true));
    };
    let trailer = one("trailer", "t");
    for text in ["short".to_owned(), "long ".repeat(1000), "large ".repeat(20_000)] {
        assert_eq!(block_on(with.echo(text.clone())), Ok(format!("secret {text}")));
        check(&trailer);
    }
    for body in [Bytes::new(), Bytes::from_static(b"body"), vec![7; 5000].into(), vec![8; 200_000].into()] {
        assert_eq!(block_on(with.raw(body.clone())), Ok(body));
        check(&trailer);
    }
    let status = block_on(with.fail()).unwrap_err();
    let mut of_failure = trailer.clone();
    of_failure.extend(&one("of-status", "s"));
    assert_eq!((status.code(), &status.details()[..]), (Code::NotFound, &b"details"[..]));
    assert_eq!(status.metadata(), &of_failure);
    assert!(!format!("{status:?} {status} {options:?}").contains("secret"));
    check(&of_failure);
    assert!(matches!(block_on(with.fail_own()), Err(CallError::Handler(Own))));
    check(&trailer);
    let status = block_on(with.panic()).unwrap_err();
    assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Panicked)));
    check(&trailer);
    assert_eq!(block_on(with.block()), Ok("secret".to_owned()));
    check(&trailer);
    block_on(with.tell()).unwrap();
    assert_eq!(rig.told.next(), sent);
    assert!(received.initial().is_empty(), "a one-way call has no response");
    // Calls without options follow calls with metadata.
    assert_eq!(block_on(rig.client.echo("plain".into())), Ok("none plain".to_owned()));
}

#[test]
fn metadata_is_sent_both_ways_with_all_kinds_of_calls() {
    let rig = rig();
    exchange(&rig, Metadata::new());
    exchange(&rig, sized(8192 - 200));
}

#[test]
fn metadata_is_carried_by_local_calls_and_not_inherited_by_nested_calls() {
    let rig = rig();
    let mut metadata = one("address", &rig.server.local_address().to_string());
    metadata.insert("token", "outer").unwrap();
    let options = CallOptions::new().metadata(metadata);
    let outcome = block_on(rig.client.with(&options).forward());
    assert_eq!(outcome, Ok("nested local, nested, none plain".to_owned()));
}

#[test]
fn refused_calls_leave_no_metadata() {
    let (reporter, _told) = events();
    let network = InProcessNetwork::new();
    let server = Node::builder().in_process(&network);
    let server = server.serve(TagsServer::new(Echo(reporter)).limit_echo(1)).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let client = TagsClient::new(node.channel(server.local_address()));
    let received = ResponseMetadata::new();
    let options = CallOptions::new().metadata(one("token", "t")).response_metadata(&received);
    block_on(client.with(&options).echo("first".into())).unwrap();
    assert!(!received.initial().is_empty());
    let status =
        block_on(client.with(&options.clone().metadata(sized(9000))).echo("large".into())).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::ResourceExhausted, false));
    assert!(received.initial().is_empty(), "it was never sent");
    block_on(client.with(&options).echo("again".into())).unwrap();
    assert!(!received.initial().is_empty());
    drop(client.with(&options).echo("dropped".into()));
    assert!(received.initial().is_empty(), "its outcome is lost");
    block_on(client.with(&options).echo("again".into())).unwrap();
    drop(server);
    let status = block_on(client.with(&options).echo("second".into())).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.metadata().is_empty() && received.initial().is_empty());
}

/// Generic code accepts a client with options, and tests of handlers create contexts themselves.
#[test]
fn generic_callers_and_tests_of_handlers_have_metadata() {
    async fn generic(calls: &impl TagsCalls) -> String {
        calls.echo("generic".into()).await.unwrap()
    }
    let rig = rig();
    let options = CallOptions::new().metadata(one("token", "t"));
    assert_eq!(block_on(generic(&rig.client.with(&options))), "t generic");
    assert_eq!(block_on(generic(&rig.client)), "none generic");
    let (reporter, _told) = events();
    let cx = Context::detached_with(one("token", "test"));
    assert_eq!(block_on(Tags::echo(&Echo(reporter), &cx, "text".into())), "test text");
    assert_eq!((cx.initial_metadata(), cx.trailing_metadata()), (one("token", "test"), one("trailer", "t")));
    assert!(Context::detached().metadata().is_empty());
}
