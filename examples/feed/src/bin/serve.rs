//! Serves a feed of events until SIGTERM or Ctrl-C.

use clap::Parser;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline::stream::{Receiver, Sender, channel};
use trunkline::{Bytes, DeviceFlags, Node, Status, Stream, Streaming};
use trunkline_example_feed::{Event, Feed, FeedServer, Summary, Total};

/// A feed of events. Prints the address it listens on.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port to listen on; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7473")]
    listen: SocketAddr,
    /// Listen on an address other than loopback although peers are not authenticated.
    #[arg(long)]
    allow_unauthenticated: bool,
    #[command(flatten)]
    device: DeviceFlags,
}

/// Maximum number of events queued for one watcher. A slower watcher is dropped with an error.
const MOST_WAITING: usize = 1024;

struct Watcher {
    prefix: String,
    events: Sender<Event>,
}

/// Stream of a watcher. Its sender is dropped if the watcher is too slow.
struct Watched(Receiver<Event>);

impl Stream for Watched {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(self.0.poll_recv(task));
        Poll::Ready(event.map_err(|_| Status::resource_exhausted("too slow for the events")).transpose())
    }
}

/// Maximum number of topics for which totals are kept. Events in further topics are not counted.
const MOST_TOPICS: usize = 1000;

#[derive(Default)]
struct Topics {
    watchers: Vec<Watcher>,
    totals: BTreeMap<String, Total>,
}

/// Watchers and totals, shared by all pollers.
#[derive(Clone, Default)]
struct Hub(Arc<Mutex<Topics>>);

impl Hub {
    fn topics(&self) -> MutexGuard<'_, Topics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event to all watchers of its topic. Drops the sender of a watcher that is gone or too slow, which ends
    /// the watcher's stream with an error.
    fn send(&self, event: &Event) {
        let mut topics = self.topics();
        let mut dropped = 0;
        topics.watchers.retain(|watcher| {
            if watcher.events.is_closed() || !event.topic.starts_with(&watcher.prefix) {
                return !watcher.events.is_closed();
            }
            let is_sent = watcher.events.try_send(event.clone()).is_ok();
            dropped += u64::from(!is_sent);
            is_sent
        });
        if topics.totals.len() < MOST_TOPICS || topics.totals.contains_key(&event.topic) {
            let total = topics.totals.entry(event.topic.clone()).or_default();
            total.events += 1;
            total.dropped += dropped;
        }
    }
}

impl Feed for Hub {
    async fn watch(&self, prefix: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status> {
        let (sender, events) = channel(MOST_WAITING);
        self.topics().watchers.push(Watcher { prefix, events: sender });
        Ok(Watched(events))
    }

    async fn publish(&self, mut events: Streaming<Event>) -> Result<u64, Status> {
        let mut count = 0;
        while let Some(event) = events.message().await? {
            self.send(&event);
            count += 1;
        }
        Ok(count)
    }

    async fn emit(&self, event: Event) {
        self.send(&event);
    }

    async fn totals(&self) -> Result<Vec<Total>, Status> {
        let topics = self.topics();
        Ok(topics.totals.iter().map(|(topic, total)| Total { topic: topic.clone(), ..*total }).collect())
    }

    async fn upload(
        &self,
        name: String,
        chunks: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Summary, Status>>, Status> {
        if name.is_empty() {
            return Err(Status::invalid_argument("a file needs a name"));
        }
        Ok(Upload { chunks, received: Summary { bytes: 0, chunks: 0 } })
    }
}

/// Progress of an upload, as a stream that contains a summary after each received chunk.
struct Upload {
    chunks: Streaming<Bytes>,
    received: Summary,
}

impl Stream for Upload {
    type Item = Result<Summary, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = std::task::ready!(Pin::new(&mut self.chunks).poll_next(task));
        Poll::Ready(chunk.map(|chunk| {
            self.received.bytes += chunk?.len() as u64;
            self.received.chunks += 1;
            Ok(self.received.clone())
        }))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let hub = Hub::default();
    let node = Node::builder()
        .listen(options.listen)
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .grace(Duration::from_secs(2))
        .serve(FeedServer::new(hub.clone()))
        .start()?;
    // Errors are ignored, because standard output may be closed.
    let _closed = writeln!(std::io::stdout(), "listening {}", node.local_address());
    signals.forever().next();
    // Finish the streams of the watchers, so that they end without an error.
    hub.topics().watchers.drain(..).for_each(|watcher| watcher.events.finish());
    node.shutdown();
    Ok(())
}
