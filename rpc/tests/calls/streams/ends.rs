//! Metadata of streams, and interceptors for streaming calls.

use crate::common::{events, until};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task;
use trunkline::{
    CallOptions, ClientCall, Code, Context, InProcessNetwork, Metadata, Node, ResponseMetadata, ServerCall,
    Status, Stream, Streaming, block_on,
};

#[trunkline::service]
trait Ticker {
    async fn tick(
        &self,
        cx: &Context,
        to: u32,
        then: String,
    ) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
}

struct Server;

/// A stream that counts, and sets trailing metadata after its last item.
struct Ticks {
    context: Context,
    next: u32,
    to: u32,
    then: String,
}

impl Stream for Ticks {
    type Item = Result<u32, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut task::Context<'_>) -> task::Poll<Option<Self::Item>> {
        if self.next < self.to {
            self.next += 1;
            return task::Poll::Ready(Some(Ok(self.next)));
        }
        self.context.set_initial_metadata(metadata("served-by", "nobody: it is too late"));
        self.context.set_trailing_metadata(metadata("ticks", &self.to.to_string()));
        match self.then.as_str() {
            "fail" => {
                let status = Status::aborted("enough").with_metadata(metadata("why", "told so"));
                task::Poll::Ready(Some(Err(status)))
            }
            "wait" => task::Poll::Pending,
            _ => task::Poll::Ready(None),
        }
    }
}

impl Ticker for Server {
    async fn tick(
        &self,
        cx: &Context,
        to: u32,
        then: String,
    ) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        cx.set_initial_metadata(metadata("served-by", &long()));
        Ok(Ticks { context: cx.clone(), next: 0, to, then })
    }
}

fn metadata(key: &str, value: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert(key, value).unwrap();
    metadata
}

/// Returns a value that is so long that no second value fits.
fn long() -> String {
    "kv-1".repeat(1500)
}

fn pair() -> (Node, Node) {
    let network = InProcessNetwork::new();
    let server = Node::builder().in_process(&network).serve(TickerServer::new(Server)).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    (server, node)
}

fn last<T>(items: &mut Streaming<T>) -> Result<(), Status> {
    while block_on(items.message())?.is_some() {}
    Ok(())
}

#[test]
fn initial_metadata_arrives_with_stream_and_trailing_metadata_at_end() {
    let (server, node) = pair();
    let client = TickerClient::connect(&node, server.local_address()).unwrap();
    let place = ResponseMetadata::new();
    let options = CallOptions::new().response_metadata(&place);
    let mut ticks = block_on(client.with(&options).tick(100, "end".into())).unwrap();
    assert_eq!(place.initial().get("served-by"), Some(long().as_str()));
    assert_eq!(ticks.initial_metadata(), place.initial());
    assert!(ticks.trailing_metadata().is_empty() && place.trailing().is_empty(), "the stream has not ended");
    last(&mut ticks).unwrap();
    assert_eq!(ticks.trailing_metadata().get("ticks"), Some("100"));
    assert_eq!((place.initial(), place.trailing()), (ticks.initial_metadata(), ticks.trailing_metadata()));
    assert_eq!(place.initial().get("served-by"), Some(long().as_str()), "the first one stays");
}

#[test]
fn failed_stream_has_trailing_metadata() {
    let (server, node) = pair();
    let client = TickerClient::connect(&node, server.local_address()).unwrap();
    let mut ticks = block_on(client.tick(3, "fail".into())).unwrap();
    assert_eq!(last(&mut ticks).unwrap_err().message(), "enough");
    let trailing = ticks.trailing_metadata();
    assert_eq!((trailing.get("ticks"), trailing.get("why")), (Some("3"), Some("told so")));
}

#[test]
fn interceptors_see_streams_up_to_their_end() {
    let network = InProcessNetwork::new();
    let (reporter, events) = events();
    let log = Arc::new(Mutex::new(Vec::new()));
    let at_server = reporter.clone();
    let service = TickerServer::new(Server).interceptor(move |call: &mut ServerCall| {
        let (reporter, method) = (at_server.clone(), call.method());
        call.on_end(move |ended| reporter.tell((method, ended.map_err(Status::code))));
        Ok(())
    });
    let server = Node::builder().in_process(&network).serve(service).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let ends = Arc::clone(&log);
    let channel = node.channel(server.local_address()).with_interceptor(move |call: &mut ClientCall| {
        let ends = Arc::clone(&ends);
        call.on_end(move |ended| ends.lock().unwrap().push(ended.map_err(Status::code)));
        Ok(())
    });
    let client = TickerClient::new(channel);
    let ended = || std::mem::take(&mut *log.lock().unwrap());
    for (then, end) in [("end", Ok(())), ("fail", Err(Code::Aborted))] {
        let mut ticks = block_on(client.tick(2, then.into())).unwrap();
        assert_eq!(block_on(ticks.message()), Ok(Some(1)));
        assert_eq!(ended(), [], "the stream goes on");
        assert_eq!(last(&mut ticks).map_err(|status| status.code()), end);
        assert_eq!((ended(), events.next()), (vec![end], ("tick", end)));
        drop(ticks);
        assert_eq!(ended(), [], "it ends once");
    }
    let ticks = block_on(client.tick(2, "wait".into())).unwrap();
    assert!(events.is_empty() && ended().is_empty());
    drop(ticks);
    assert_eq!((ended(), events.next()), (vec![Err(Code::Cancelled)], ("tick", Err(Code::Cancelled))));
    until("nothing is left", || server.report().budgets.iter().all(|budget| budget.used == 0).then_some(()));
}
