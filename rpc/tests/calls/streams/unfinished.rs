//! Streams whose feeders end before the stream is finished.

use crate::common::{Events, Reporter, events, pair, until};
use crate::logged::Logged;
use crate::streams::items::Iterate;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use trunkline::stream::{Receiver, Sender, channel};
use trunkline::{Code, Node, Origin, Reason, Status, Stream, Streaming, block_on};

#[trunkline::service]
trait Rows {
    async fn rows(&self, end: String) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
    async fn sum(&self, rows: Streaming<u32>) -> Result<u32, Status>;
    async fn copy(&self, rows: Streaming<u32>) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
}

/// The example in `docs/book/src/guide/streams.md`.
async fn forward<T>(
    mut rows: impl Stream<Item = T> + Unpin,
    feeder: tokio::task::JoinHandle<Result<(), Status>>,
    sender: Sender<T>,
) {
    while let Some(row) = poll_fn(|task| Pin::new(&mut rows).poll_next(task)).await {
        if sender.send(row).await.is_err() {
            return; // the reader has gone
        }
    }
    if let Ok(Ok(())) = feeder.await {
        sender.finish(); // a feeder that failed or panicked drops the sender
    }
}

const ROWS: u32 = 10;
/// The ways in which a feeder ends.
const DEATHS: [&str; 4] = ["panic", "early return", "aborted task", "one of two"];

/// Sends rows and then ends in the given way.
fn feed<T: Send + 'static>(end: String, sender: Sender<T>, row: fn(u32) -> T) {
    let send = move |sender: &Sender<T>| {
        for number in 0..ROWS {
            let _closed = block_on(sender.send(row(number)));
        }
    };
    std::thread::spawn(move || match end.as_str() {
        "panic" => {
            send(&sender);
            panic!("a feeder that panics");
        }
        "early return" => send(&sender),
        "aborted task" => {
            send(&sender);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let task = runtime.spawn(async move {
                std::future::pending::<()>().await;
                sender.finish();
            });
            task.abort();
            runtime.block_on(task).unwrap_err();
        }
        "one of two" => {
            send(&sender);
            sender.clone().finish();
        }
        _ => {
            send(&sender);
            sender.clone().finish();
            sender.finish();
        }
    });
}

/// A stream adapter.
struct Adapted<S>(S);

impl<S: Stream + Unpin> Stream for Adapted<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<S::Item>> {
        Pin::new(&mut self.0).poll_next(task)
    }
}

/// The sum of a caller's rows; or the number of rows before an error, and the error's code.
type Summed = Result<u32, (u32, Code)>;

/// Reports how the callers' streams end. The streams are read by threads that outlive the calls.
struct Server(Reporter<Summed>);

impl Rows for Server {
    async fn rows(&self, end: String) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        let (sender, rows) = channel(4);
        feed(end, sender, Ok);
        Ok(Adapted(rows))
    }

    async fn sum(&self, mut rows: Streaming<u32>) -> Result<u32, Status> {
        let (reporter, (sender, mut outcome)) = (self.0.clone(), channel(1));
        std::thread::spawn(move || {
            let (mut sum, mut count) = (0, 0);
            let sum = block_on(async {
                while let Some(row) = rows.message().await? {
                    (sum, count) = (sum + row, count + 1);
                }
                Ok::<_, Status>(sum)
            });
            reporter.tell(sum.as_ref().map(|sum| *sum).map_err(|status| (count, status.code())));
            let _closed = sender.try_send(sum);
            sender.finish();
        });
        outcome.recv().await?.ok_or_else(|| Status::internal("the thread has no outcome"))?
    }

    async fn copy(&self, rows: Streaming<u32>) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        Ok(rows)
    }
}

fn rig() -> (Node, Node, RowsClient, Events<Summed>) {
    let (reporter, ends) = events();
    let (server, node) = pair(RowsServer::new(Server(reporter)));
    let client = RowsClient::new(node.channel(server.local_address()));
    (server, node, client, ends)
}

/// Reads a stream to its end.
fn read(mut rows: Streaming<u32>) -> (u32, Result<(), Status>) {
    let mut count = 0;
    let end = loop {
        match block_on(rows.message()) {
            Ok(Some(_)) => count += 1,
            Ok(None) => break Ok(()),
            Err(status) => break Err(status),
        }
    };
    assert_eq!(block_on(rows.message()), Ok(None), "an error comes once");
    (count, end)
}

fn sender_dropped(status: &Status, method: &str, by: Origin) {
    assert!(status.message().starts_with(&format!("Rows.{method}")), "{status}");
    let told = (status.code(), status.reason(), status.origin());
    assert_eq!(told, (Code::Internal, Some(Reason::SenderDropped), by), "{status}");
}

#[test]
fn dead_handler_feeder_is_error_after_delivered_items() {
    let (_server, _node, client, _) = rig();
    for end in DEATHS {
        let (count, status) = read(block_on(client.rows(end.into())).unwrap());
        let status = status.expect_err(end);
        sender_dropped(&status, "rows", Origin::Peer);
        assert!(status.to_string().contains("10 items of the stream were delivered"), "{status}");
        assert_eq!(count, ROWS, "{end}");
    }
    assert_eq!(read(block_on(client.rows("finish".into())).unwrap()), (ROWS, Ok(())));
}

#[test]
fn dead_caller_feeder_is_error_at_both_ends() {
    let (_server, _node, client, ends) = rig();
    let rows = |end: &str| -> Adapted<Receiver<u32>> {
        let (sender, rows) = channel(4);
        feed(end.into(), sender, |number| number);
        Adapted(rows)
    };
    for end in DEATHS {
        sender_dropped(&block_on(client.sum(rows(end))).expect_err(end), "sum", Origin::Local);
        assert_eq!(ends.next(), Err((ROWS, Code::Cancelled)), "{end}");
        let opened = block_on(client.copy(rows(end)));
        let status = opened.map_or_else(Err, |copied| read(copied).1).expect_err(end);
        sender_dropped(&status, "copy", Origin::Local);
    }
    assert_eq!(block_on(client.sum(rows("finish"))), Ok(45));
    assert_eq!(ends.next(), Ok(45));
    assert_eq!(read(block_on(client.copy(rows("finish"))).unwrap()), (ROWS, Ok(())));
}

#[test]
fn panic_of_callers_stream_is_error_at_both_ends_after_items() {
    let log = Logged::by_all();
    let (_server, _node, client, ends) = rig();
    let rows = (0..).map(|number| if number < ROWS { number } else { panic!("a caller's stream") });
    let status = block_on(client.sum(Iterate(rows))).unwrap_err();
    assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Panicked)));
    assert!(status.message().starts_with("Rows.sum"), "{status}");
    assert!(status.message().ends_with(": the stream of items that the client sends panicked"), "{status}");
    assert_eq!(ends.next(), Err((ROWS, Code::Cancelled)));
    let is_logged = |line: &String| line.contains("request stream panicked") && line.contains("Rows.sum");
    until("the log has the method", || log.lines().iter().any(is_logged).then_some(()));
}

#[test]
fn forwarded_foreign_stream_ends_only_after_feeder_succeeded() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcomes = [Ok(()), Err(Status::aborted("no more rows"))];
    for (outcome, end) in outcomes.into_iter().zip([Ok(None), Err(Some(Reason::SenderDropped))]) {
        let feeder = runtime.spawn(async { outcome });
        let (sender, mut forwarded) = channel(1);
        runtime.spawn(forward(Foreign(Some(1)), feeder, sender));
        assert_eq!(runtime.block_on(forwarded.recv()), Ok(Some(1)));
        assert_eq!(runtime.block_on(forwarded.recv()).map_err(|status| status.reason()), end);
    }
}

/// A stream of one item.
struct Foreign(Option<u32>);

impl Stream for Foreign {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        Poll::Ready(self.0.take())
    }
}
