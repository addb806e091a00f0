//! Calls on an ordered channel, of every size, made at once. The oracle judges their order.

use crate::client::Client;
use crate::coverage::Kind;
use crate::oracle::{Open, pattern};
use crate::service::WorkClient;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Future of a call and the judgement of its outcome.
type Judged<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Kind of a call on an ordered channel.
#[derive(Debug, Clone, Copy)]
enum Sort {
    /// One-way, of the given size.
    Tell(usize),
    Number,
}

impl Client {
    /// Makes calls on one ordered channel, many at once, in one or two goes.
    pub(crate) async fn in_order(&mut self, server: SocketAddr) {
        self.coverage.count(Kind::Ordered);
        let timeout = self.timeout();
        let Some(client) = self.connect(server, timeout).map(|client| client.ordered()) else { return };
        let channel = self.oracle.ordered_channel();
        let mut random = self.random.fork();
        for _ in 0..random.usize(1..=2) {
            let sorts = (0..random.usize(4..16)).map(|_| sort(&mut random)).collect::<Vec<_>>();
            let call = |sort| self.ordered_call(&client, (server, channel, timeout), sort);
            // Calls are made here, in this order. The order of the polls must not matter.
            let mut calls = sorts.into_iter().map(call).collect::<Vec<_>>();
            random.shuffle(&mut calls);
            // Some calls are given up before they are polled.
            calls.retain(|_| random.u8(..16) > 0);
            poll_fn(|context| {
                calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
                if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// Makes a call. The future judges its outcome.
    fn ordered_call<'a>(
        &'a self,
        client: &'a WorkClient,
        (server, channel, timeout): (SocketAddr, u64, Duration),
        sort: Sort,
    ) -> Judged<'a> {
        let what = match sort {
            Sort::Tell(_) => "tell, in order",
            Sort::Number => "number, in order",
        };
        let id = self.oracle.made(self.process, server, what, timeout);
        self.oracle.is_ordered(id, channel);
        let open = Open::new(&self.oracle, id);
        let call: Pin<Box<dyn Future<Output = _>>> = match sort {
            Sort::Tell(bytes) => {
                let call = client.tell(id, pattern(id, bytes).into());
                Box::pin(async move { call.await.map(|()| id) })
            }
            Sort::Number => Box::pin(client.number(id)),
        };
        Box::pin(async move {
            let outcome = call.await;
            open.ended();
            match outcome {
                Ok(replied) => self.oracle.succeeded(id, replied, matches!(sort, Sort::Tell(_))),
                Err(status) => self.oracle.failed(id, &status),
            }
        })
    }
}

fn sort(random: &mut fastrand::Rng) -> Sort {
    match random.u8(..8) {
        0..=2 => Sort::Number,
        3..=5 => Sort::Tell(random.usize(..4 << 10)),
        _ => Sort::Tell(random.usize(16 << 10..200 << 10)),
    }
}
