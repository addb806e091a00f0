//! Concurrent calls of all sizes on an ordered channel. The oracle checks their order.

use crate::coverage::EventKind;
use crate::oracle::pattern;
use crate::workload::client::{Client, all};
use crate::workload::service::WorkClient;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

/// Future that completes a call and checks its outcome.
type Judged<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

#[derive(Debug, Clone, Copy)]
enum Sort {
    /// One-way call with a payload of this size.
    Tell(usize),
    Number,
}

impl Client {
    /// Sends many concurrent calls on one ordered channel, in one or two batches.
    pub(crate) async fn in_order(&mut self, server: SocketAddr) {
        self.coverage.count(EventKind::Ordered);
        let timeout = self.timeout();
        let Some(client) = self.connect(server) else { return };
        let client = client.with_timeout(timeout).ordered();
        let channel = self.oracle.ordered_channel();
        let mut random = self.random.fork();
        for _ in 0..random.usize(1..=2) {
            let sorts = (0..random.usize(4..16)).map(|_| sort(&mut random)).collect::<Vec<_>>();
            let call = |sort| self.ordered_call(&client, server, channel, timeout, sort);
            // The calls are sent here, in this order. The order in which they are polled must not matter.
            let mut calls = sorts.into_iter().map(call).collect::<Vec<_>>();
            random.shuffle(&mut calls);
            // Some calls are dropped before they are polled.
            calls.retain(|_| random.u8(..16) > 0);
            all(calls.into_iter()).await;
        }
    }

    /// Sends a call. The returned future completes it and checks its outcome.
    fn ordered_call<'a>(
        &'a self,
        client: &'a WorkClient,
        server: SocketAddr,
        channel: u64,
        timeout: Duration,
        sort: Sort,
    ) -> Judged<'a> {
        let what = match sort {
            Sort::Tell(_) => "tell, in order",
            Sort::Number => "number, in order",
        };
        let open = self.oracle.made(self.process, server, what, timeout).ordered(channel);
        let (open, call): (_, Pin<Box<dyn Future<Output = _>>>) = match sort {
            Sort::Tell(bytes) => {
                let (id, open) = (open.id(), open.one_way());
                let call = client.tell(id, pattern(id, bytes).into());
                (open, Box::pin(async move { call.await.map(|()| id) }))
            }
            Sort::Number => {
                let call = client.number(open.id());
                (open, Box::pin(call))
            }
        };
        Box::pin(async move { drop(open.end(call.await)) })
    }
}

fn sort(random: &mut fastrand::Rng) -> Sort {
    match random.u8(..8) {
        0..=2 => Sort::Number,
        3..=5 => Sort::Tell(random.usize(..4 << 10)),
        _ => Sort::Tell(random.usize(16 << 10..200 << 10)),
    }
}
