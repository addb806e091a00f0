//! Many streams at once, and streams of many bytes.

use crate::common::until;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use trunkline::stream::channel;
use trunkline::{Bytes, InProcessNetwork, Node, Status, Stream, Streaming, block_on};

/// Length of a chunk in bytes.
const CHUNK: usize = 256 << 10;
/// Number of chunks in an upload.
const CHUNKS: u64 = 128;
/// Number of concurrent streams.
const MANY: u32 = 1000;

#[trunkline::service]
trait Load {
    async fn store(&self, chunks: Streaming<Bytes>) -> Result<u64, Status>;
    async fn echo(&self, items: Streaming<u32>) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
}

struct Server {
    produced: Arc<AtomicU64>,
    /// Largest number of chunks that were produced and not read.
    most: Arc<AtomicU64>,
}

impl Load for Server {
    async fn store(&self, mut chunks: Streaming<Bytes>) -> Result<u64, Status> {
        let mut read = 0;
        while let Some(bytes) = chunks.message().await? {
            self.most.fetch_max(self.produced.load(Ordering::Relaxed) - read, Ordering::Relaxed);
            if bytes != chunk(read) {
                return Err(Status::data_loss(format!("chunk {read} has other bytes")));
            }
            read += 1;
        }
        Ok(read)
    }

    async fn echo(&self, items: Streaming<u32>) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        Ok(items)
    }
}

/// Returns the chunk with this number.
fn chunk(number: u64) -> Bytes {
    number.to_le_bytes().repeat(CHUNK / 8).into()
}

/// The chunks of an upload.
struct Chunks(Arc<AtomicU64>);

impl Stream for Chunks {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let number = self.0.load(Ordering::Relaxed);
        if number == CHUNKS {
            return Poll::Ready(None);
        }
        self.0.store(number + 1, Ordering::Relaxed);
        Poll::Ready(Some(chunk(number)))
    }
}

/// Starts two nodes and a client of the service.
fn pair(produced: &Arc<AtomicU64>, most: &Arc<AtomicU64>) -> (Node, Node, LoadClient) {
    let network = InProcessNetwork::new();
    let service = Server { produced: Arc::clone(produced), most: Arc::clone(most) };
    let server = Node::builder().in_process(&network).serve(LoadServer::new(service)).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let client = LoadClient::connect(&node, server.local_address()).unwrap();
    (server, node, client)
}

#[test]
fn large_upload_arrives_whole_and_runs_ahead_by_one_window() {
    let (produced, most) = (Arc::default(), Arc::default());
    let (server, _node, client) = pair(&produced, &most);
    assert_eq!(block_on(client.store(Chunks(Arc::clone(&produced)))), Ok(CHUNKS));
    // The largest window of 1 MiB, an item beyond it, an item at the writer, and an item at the reader.
    let most = most.load(Ordering::Relaxed);
    assert!(most <= 7, "{most} chunks at once");
    until("nothing is left", || server.report().budgets.iter().all(|budget| budget.used == 0).then_some(()));
}

#[test]
fn a_thousand_open_streams_all_exchange() {
    let (server, _node, client) = pair(&Arc::default(), &Arc::default());
    let open = || {
        let (sender, items) = channel(1);
        (sender, block_on(client.echo(items)).unwrap())
    };
    let mut streams = (0..MANY).map(|_| open()).collect::<Vec<_>>();
    for round in 0..2 {
        for (number, (sender, _)) in (0..).zip(&streams) {
            sender.try_send(round * MANY + number).unwrap();
        }
        for (number, (_, answers)) in (0..).zip(&mut streams) {
            assert_eq!(block_on(answers.message()), Ok(Some(round * MANY + number)));
        }
    }
    for (sender, mut answers) in streams {
        sender.finish();
        assert_eq!(block_on(answers.message()), Ok(None));
    }
    until("nothing is left", || server.report().budgets.iter().all(|budget| budget.used == 0).then_some(()));
}
