//! Ordered clients, whose calls start at the server in the order in which they were made.

use crate::common::{Reporter, events, node};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::Poll;
use trunkline::{Bytes, Status, block_on};

/// Records numbers.
#[trunkline::service]
trait Journal {
    /// Records a note of any size.
    #[oneway]
    async fn note(&self, number: u32, body: Bytes);
}

struct Writer(Reporter<u32>);

impl Journal for Writer {
    async fn note(&self, number: u32, _: Bytes) {
        self.0.tell(number);
    }
}

type Made<'a> = Pin<Box<dyn Future<Output = Result<(), Status>> + 'a>>;

/// Awaits calls, polling the last one first. Returns the outcomes in the order of the calls.
fn all(calls: Vec<Made<'_>>) -> Vec<Result<(), Status>> {
    let mut calls = calls.into_iter().map(|call| (call, None)).collect::<Vec<_>>();
    block_on(poll_fn(|context| {
        for (call, outcome) in calls.iter_mut().rev().filter(|(_, outcome)| outcome.is_none()) {
            if let Poll::Ready(ended) = call.as_mut().poll(context) {
                *outcome = Some(ended);
            }
        }
        if calls.iter().all(|(_, outcome)| outcome.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    }));
    calls.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

/// Returns 200 kB and 10 B alternately.
fn body(number: u32) -> Bytes {
    vec![7; if number.is_multiple_of(2) { 200_000 } else { 10 }].into()
}

#[test]
fn calls_start_in_order_of_stub_calls_across_threads() {
    let (reporter, notes) = events();
    let server = node().pollers(2).serve(JournalServer::new(Writer(reporter)));
    let (server, caller) = (server.start().unwrap(), node().pollers(2).start().unwrap());
    let client = JournalClient::connect(&caller, server.local_address()).unwrap().ordered();
    let next = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (client, next) = (client.clone(), &next);
            scope.spawn(move || {
                let made = (0..25).map(|_| {
                    let mut next = next.lock().unwrap();
                    *next += 1;
                    Box::pin(client.note(*next, body(*next))) as Made<'_>
                });
                let made = made.collect();
                assert!(all(made).iter().all(Result::is_ok));
            });
        }
    });
    let started = (0..100).map(|_| notes.next()).collect::<Vec<_>>();
    assert_eq!(started, (1..=100).collect::<Vec<_>>());
}

#[test]
fn ordered_client_works_in_poller_task() {
    let (reporter, notes) = events();
    let server = node().pollers(2).serve(JournalServer::new(Writer(reporter)));
    let (server, caller) = (server.start().unwrap(), node().start().unwrap());
    let address = server.local_address();
    let task = move |context| async move {
        let client = JournalLocal::connect(&context, address)?.ordered();
        let mut calls = (0..40).map(|number| Box::pin(client.note(number, body(number)))).collect::<Vec<_>>();
        calls.reverse();
        poll_fn(|context| {
            calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
            if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok::<_, Status>(())
    };
    block_on(caller.run_on(trunkline::PollerIndex(0), task)).unwrap().unwrap();
    let started = (0..40).map(|_| notes.next()).collect::<Vec<_>>();
    assert_eq!(started, (0..40).collect::<Vec<_>>());
}
