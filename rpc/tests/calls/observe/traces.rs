//! The trace of a call and of its nested calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use trunkline::{
    Bytes, CallOptions, ClientCall, Context, InProcessNetwork, Metadata, Node, PollerContext, Reason,
    ServerCall, Status, TraceContext, block_on,
};

#[trunkline::service]
trait Hops {
    /// Returns the traces of calls made with each kind of client.
    async fn ways(&self, cx: &Context) -> Result<Vec<String>, Status>;
    #[blocking]
    async fn from_pool(&self) -> Result<String, Status>;
    /// Returns the trace of this call.
    async fn last(&self, cx: &Context) -> String;
}

struct Handler {
    client: Mutex<Option<HopsClient>>,
    itself: Mutex<Option<SocketAddr>>,
}

impl Handler {
    fn client(&self) -> HopsClient {
        self.client.lock().unwrap().clone().unwrap()
    }
}

fn text(trace: Option<TraceContext>) -> String {
    trace.map_or_else(|| "none".to_owned(), |trace| format!("{trace} {}", trace.state()))
}

impl Hops for Handler {
    async fn ways(&self, cx: &Context) -> Result<Vec<String>, Status> {
        let shared = self.client();
        let itself = self.itself.lock()?.ok_or_else(|| Status::internal("no address"))?;
        let poller = PollerContext::current().ok_or_else(|| Status::internal("no poller"))?;
        let local = HopsLocal::connect(&poller, itself)?;
        let mut seen = vec![shared.last().await?, local.last().await?];
        // By now, another handler has been polled on the same poller.
        trunkline::yield_now().await;
        seen.push(local.last().await?);
        seen.push(cx.scope(async { shared.last().await }).await?);
        seen.push(shared.from_pool().await?);
        let own =
            CallOptions::new().metadata(traced("00-000000000000000000000000000000ff-00000000000000ff-00"));
        seen.push(shared.with(&own).last().await?);
        seen.push(Context::detached().scope(async { shared.last().await }).await?);
        Ok(seen)
    }

    async fn from_pool(&self) -> Result<String, Status> {
        self.client().last().await
    }

    async fn last(&self, cx: &Context) -> String {
        text(cx.trace())
    }
}

const OUTER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn traced(parent: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("traceparent", parent).unwrap();
    metadata
}

/// Starts a server that calls itself, and a client for it.
fn rig(intercept: impl FnOnce(HopsServer) -> HopsServer) -> (Node, Node, HopsClient) {
    let network = InProcessNetwork::new();
    let handler = Arc::new(Handler { client: Mutex::default(), itself: Mutex::default() });
    let server = intercept(HopsServer::shared(Arc::clone(&handler)));
    let server = Node::builder().in_process(&network).serve(server).start().unwrap();
    let itself = server.local_address();
    *handler.itself.lock().unwrap() = Some(itself);
    *handler.client.lock().unwrap() = Some(HopsClient::new(server.channel(itself)));
    let node = Node::builder().in_process(&network).start().unwrap();
    let client = HopsClient::new(node.channel(itself));
    (server, node, client)
}

#[test]
fn nested_calls_continue_trace() {
    let (_server, _node, client) = rig(|server| server);
    let mut metadata = traced(OUTER);
    metadata.insert("tracestate", "vendor=7").unwrap();
    metadata.insert("tenant", "blue").unwrap();
    let options = CallOptions::new().metadata(metadata);
    let seen = block_on(client.with(&options).ways()).unwrap();
    let outer = format!("{OUTER} vendor=7");
    assert_eq!(seen[..5], vec![outer; 5]);
    assert_eq!(seen[5..], ["00-000000000000000000000000000000ff-00000000000000ff-00 ", "none"]);
    // The next call on this poller has no trace. A call has no trace either if its metadata contains none or an invalid
    // one.
    let ways = |options: &CallOptions| block_on(client.with(options).ways()).unwrap()[..5].to_vec();
    let mut without = Metadata::new();
    without.insert("tenant", "blue").unwrap();
    for metadata in [Metadata::new(), without, traced("00-none")] {
        assert_eq!(ways(&CallOptions::new().metadata(metadata)), ["none"; 5]);
    }
}

#[test]
fn interceptors_replace_trace() {
    let replaced = TraceContext::new(7, 9, true).unwrap();
    let of_server = replaced.clone();
    let (server, _node, client) = rig(|server| {
        server.interceptor(move |call: &mut ServerCall| {
            if call.method() == "ways" {
                of_server.put_into(call.metadata_mut());
            }
            Ok(())
        })
    });
    // The request has no metadata.
    assert_eq!(block_on(client.ways()).unwrap()[..5], vec![text(Some(replaced)); 5]);

    let channel = server.channel(server.local_address()).with_interceptor(|call: &mut ClientCall| {
        assert_eq!(call.metadata().get("traceparent"), Some(OUTER));
        call.metadata_mut().remove("traceparent");
        Ok(())
    });
    let last = HopsClient::new(channel);
    let context = Context::detached_with(traced(OUTER));
    assert_eq!(block_on(context.scope(async { last.last().await })), Ok("none".to_owned()));
}

/// Returns the size of the metadata that its handler receives.
#[trunkline::service]
trait Seen {
    async fn encoded(&self, cx: &Context, bytes: Vec<u8>) -> usize;
    async fn raw(&self, cx: &Context, bytes: Bytes) -> usize;
}

struct Sees;

impl Seen for Sees {
    async fn encoded(&self, cx: &Context, _: Vec<u8>) -> usize {
        cx.metadata().size()
    }
    async fn raw(&self, cx: &Context, _: Bytes) -> usize {
        cx.metadata().size()
    }
}

#[test]
fn trace_is_omitted_from_too_large_request() {
    const MOST: usize = 64 << 10;
    let network = InProcessNetwork::new();
    let server = Node::builder().in_process(&network).serve(SeenServer::new(Sees)).start().unwrap();
    let node = Node::builder().in_process(&network).max_message_bytes(MOST).start().unwrap();
    let client = SeenClient::connect(&node, server.local_address()).unwrap();
    let mut none = Metadata::new();
    none.insert("tenant", &"blue".repeat(20)).unwrap();
    let mut without_state = none.clone();
    without_state.insert("traceparent", OUTER).unwrap();
    let mut all = without_state.clone();
    all.insert("tracestate", "vendor=7").unwrap();
    let options = CallOptions::new().metadata(all.clone());
    let client = client.with(&options);
    let sizes = [&all, &without_state, &none].map(Metadata::size);
    for is_raw in [false, true] {
        // Each additional byte must be compensated for by omitted values, until all are omitted.
        let seen = (MOST - 300..=MOST).map(|bytes| {
            let bytes = vec![8; bytes];
            if is_raw { block_on(client.raw(bytes.into())) } else { block_on(client.encoded(bytes)) }
        });
        let seen = seen.collect::<Vec<_>>();
        let count = |size: usize| seen.iter().filter(|seen| **seen == Ok(size)).count();
        let (sent, refused) = seen.split_at(sizes.map(count).iter().sum());
        assert!(sent.is_sorted_by_key(|seen| std::cmp::Reverse(seen.clone().unwrap())), "{sent:?}");
        assert!(count(sizes[0]) > 0 && !refused.is_empty(), "the limit is among the sizes");
        assert_eq!([count(sizes[1]), count(sizes[2])], [sizes[0] - sizes[1], sizes[1] - sizes[2]]);
        for status in refused {
            let status = status.clone().unwrap_err();
            assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::TooLarge), false), "{status}");
        }
    }
}
