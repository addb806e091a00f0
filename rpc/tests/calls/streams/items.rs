//! Streams of items between two nodes in one process.

use crate::common::until;
use crate::logged::Logged;
use std::pin::Pin;
use std::task::{Context, Poll};
use trunkline::stream::{Stream, channel};
use trunkline::{
    Bytes, CallError, Code, InProcessNetwork, Node, PollerIndex, Reason, Status, Streaming, block_on,
};

/// An application error type.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Refusal {
    Closed,
}

#[trunkline::service]
trait Feed {
    async fn count(&self, to: u64, then: String) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    async fn upload(&self, chunks: Streaming<Bytes>) -> Result<Vec<u64>, Status>;
    async fn chat(
        &self,
        says: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Refusal>;
    async fn refuse(
        &self,
        says: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Refusal>;
    async fn ping(&self) -> u8;
}

/// A stream of an iterator's items.
pub(crate) struct Iterate<I>(pub(crate) I);

impl<I: Iterator + Unpin> Stream for Iterate<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

struct Server;

/// A stream that counts and ends as the test has chosen.
struct Counter {
    next: u64,
    to: u64,
    then: String,
}

impl Stream for Counter {
    type Item = Result<u64, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.next < self.to {
            self.next += 1;
            return Poll::Ready(Some(Ok(self.next - 1)));
        }
        match self.then.as_str() {
            "end" => Poll::Ready(None),
            "fail" => Poll::Ready(Some(Err(Status::aborted("no more items")))),
            "panic" => panic!("a stream that panics"),
            _ => Poll::Pending,
        }
    }
}

/// A stream that answers each text with its bytes and ends with a goodbye.
struct Chat {
    says: Streaming<String>,
    has_ended: bool,
}

impl Stream for Chat {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let said = std::task::ready!(Pin::new(&mut self.says).poll_next(task));
        self.has_ended = said.is_none();
        Poll::Ready(Some(said.unwrap_or_else(|| Ok("bye".to_owned())).map(Bytes::from)))
    }
}

impl Feed for Server {
    async fn count(&self, to: u64, then: String) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        if then == "refuse" {
            return Err(Status::not_found("no such count"));
        }
        Ok(Counter { next: 0, to, then })
    }

    async fn upload(&self, mut chunks: Streaming<Bytes>) -> Result<Vec<u64>, Status> {
        let mut sizes = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            assert!(chunk.iter().all(|byte| *byte == fill(chunk.len())), "the chunk is whole");
            sizes.push(chunk.len() as u64);
        }
        Ok(sizes)
    }

    async fn chat(
        &self,
        says: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Refusal> {
        Ok(Chat { says, has_ended: false })
    }

    async fn refuse(
        &self,
        _: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Refusal> {
        Err::<Chat, _>(Refusal::Closed)
    }

    async fn ping(&self) -> u8 {
        7
    }
}

/// Two nodes and a client.
struct FeedPair {
    server: Node,
    node: Node,
    client: FeedClient,
}

fn pair() -> FeedPair {
    let network = InProcessNetwork::new();
    let service = FeedServer::new(Server);
    let server = Node::builder().in_process(&network).serve(service).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let client = FeedClient::connect(&node, server.local_address()).unwrap();
    FeedPair { server, node, client }
}

/// Reads a stream to its end. Returns the items, and `Ok` if the stream ended without an error.
fn read<T>(mut items: Streaming<T>) -> (Vec<T>, Result<(), Status>) {
    let mut all = Vec::new();
    loop {
        match block_on(items.message()) {
            Ok(Some(item)) => all.push(item),
            end => {
                assert!(matches!(block_on(items.message()), Ok(None)), "an end stays");
                return (all, end.map(drop));
            }
        }
    }
}

/// Returns the byte that fills a chunk of this size.
fn fill(size: usize) -> u8 {
    u8::try_from(size % 256).unwrap_or_default()
}

fn chunk(size: usize) -> Bytes {
    vec![fill(size); size].into()
}

const MANY: u64 = 10_000;

#[test]
fn each_shape_carries_its_items_once_and_in_order() {
    let pair = pair();
    let (counted, end) = read(block_on(pair.client.count(MANY, "end".into())).unwrap());
    assert_eq!((counted.len() as u64, end), (MANY, Ok(())));
    assert!(counted.into_iter().eq(0..MANY));
    let sizes = || (0..10_000).map(|number| number % 100);
    let uploaded = block_on(pair.client.upload(Iterate(sizes().map(chunk)))).unwrap();
    assert!(uploaded.into_iter().eq(sizes().map(|size| size as u64)));
    let says = Iterate((0..MANY).map(|number| number.to_string()));
    let (answers, end) = read(block_on(pair.client.chat(says)).unwrap());
    assert_eq!(end, Ok(()));
    let expected = (0..MANY).map(|number| number.to_string()).chain(["bye".to_owned()]);
    assert!(answers.into_iter().eq(expected.map(Bytes::from)), "the stream goes on after the client's end");
}

#[test]
fn poller_tasks_can_read_and_send_streams() {
    let pair = pair();
    let address = pair.server.local_address();
    let ended = pair.node.run_on(PollerIndex(0), move |poller| {
        let client = FeedLocal::connect(&poller, address);
        async move {
            let client = client?;
            let mut counted = client.count(1000, "end".into()).await?;
            let mut sum = 0;
            while let Some(number) = counted.message().await? {
                sum += number;
            }
            let sizes = client.upload(Iterate((0..1000).map(|_| chunk(3)))).await?;
            Ok::<_, Status>((sum, sizes.len()))
        }
    });
    assert_eq!(block_on(ended).unwrap(), Ok((499_500, 1000)));
}

#[test]
fn items_of_all_sizes_keep_their_places() {
    let pair = pair();
    let sizes = [0, 1, 300_000, 2, 5000, 17_000, 3, 1_000_000, 300_000, 4, 4096, 4097, 9];
    let sizes = || sizes.into_iter().cycle().take(65);
    let uploaded = block_on(pair.client.upload(Iterate(sizes().map(chunk)))).unwrap();
    assert!(uploaded.into_iter().eq(sizes().map(|size| size as u64)));
    let says = Iterate(sizes().map(|size| "a".repeat(size)));
    let (answers, end) = read(block_on(pair.client.chat(says)).unwrap());
    assert_eq!(end, Ok(()));
    assert!(answers.into_iter().map(|bytes| bytes.len()).eq(sizes().chain([3])));
}

#[test]
fn handler_refuses_stream_with_status_or_application_error() {
    let pair = pair();
    let status = block_on(pair.client.count(1, "refuse".into())).unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let (sender, says) = channel::<String>(1);
    let error = block_on(pair.client.refuse(says)).unwrap_err();
    assert_eq!(error, CallError::Handler(Refusal::Closed));
    until("the client's stream is dropped", || sender.is_closed().then_some(()));
}

#[test]
fn panic_in_stream_of_handler_is_error_with_number_of_items() {
    let pair = pair();
    // 100 items exceed the initial window.
    for items in [10, 100] {
        let (counted, end) = read(block_on(pair.client.count(items, "panic".into())).unwrap());
        assert!(counted.into_iter().eq(0..items));
        let status = end.unwrap_err();
        assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Panicked)));
        let text = format!("{items} items of the stream were delivered");
        assert!(status.to_string().contains(&text), "{status}");
    }
    assert_eq!(block_on(pair.client.ping()), Ok(7));
}

#[test]
fn items_before_error_of_handlers_stream_arrive_first() {
    let pair = pair();
    let (counted, end) = read(block_on(pair.client.count(10, "fail".into())).unwrap());
    assert!(counted.into_iter().eq(0..10));
    assert_eq!(end, Err(Status::aborted("no more items")));
}

/// An empty stream that panics when it is dropped.
struct PanicsInDrop;

impl Stream for PanicsInDrop {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Poll::Ready(None)
    }
}

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("a client's stream panics in its drop");
    }
}

#[test]
fn panic_in_drop_of_client_stream_is_logged_with_method() {
    let log = Logged::by_all();
    let pair = pair();
    assert_eq!(block_on(pair.client.upload(PanicsInDrop)), Ok(vec![]));
    let is_logged = |line: &String| line.contains("request stream panicked") && line.contains("Feed.upload");
    until("the log has the method", || log.lines().iter().any(is_logged).then_some(()));
}

/// Sums a feed through a client or a mock.
async fn sum(feed: &impl FeedCalls) -> Result<u64, Status> {
    let mut items = feed.count(3, "end".into()).await?;
    let mut sum = feed.upload(Iterate([chunk(5)].into_iter())).await?.into_iter().sum();
    while let Some(item) = items.message().await? {
        sum += item;
    }
    Ok(sum)
}

struct Mock;

impl FeedCalls for Mock {
    async fn count(&self, to: u64, _: String) -> Result<Streaming<u64>, Status> {
        Ok(Streaming::from_stream(Iterate((0..to).map(|number| Ok(number * 100)))))
    }
    async fn upload<S: Stream<Item = Bytes> + Send + 'static>(&self, chunks: S) -> Result<Vec<u64>, Status> {
        let mut chunks = Box::pin(chunks);
        let first = std::future::poll_fn(|task| chunks.as_mut().poll_next(task)).await;
        Ok(first.into_iter().map(|chunk| chunk.len() as u64).collect())
    }
    async fn chat<S: Stream<Item = String> + Send + 'static>(
        &self,
        _: S,
    ) -> Result<Streaming<Bytes>, CallError<Refusal>> {
        Err(CallError::Handler(Refusal::Closed))
    }
    async fn refuse<S: Stream<Item = String> + Send + 'static>(
        &self,
        _: S,
    ) -> Result<Streaming<Bytes>, CallError<Refusal>> {
        Err(CallError::Handler(Refusal::Closed))
    }
    async fn ping(&self) -> Result<u8, Status> {
        Ok(1)
    }
}

#[test]
fn mock_and_client_stream_alike() {
    assert_eq!(block_on(sum(&Mock)), Ok(305));
    assert_eq!(block_on(sum(&pair().client)), Ok(8));
}
