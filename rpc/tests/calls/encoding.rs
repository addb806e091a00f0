//! Values that cannot be encoded end their call with the reason, wherever they are encoded.

use crate::common::pair;
use serde::{Deserialize, Serialize};
use trunkline::{CallError, Code, Context, Details, Reason, Status, block_on};

/// A value whose encoding and dropping recurse.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Chain(Option<Box<Self>>);

impl Chain {
    fn of_depth(depth: usize) -> Self {
        (0..depth).fold(Self::default(), |below, _| Self(Some(Box::new(below))))
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let mut below = self.0.take();
        while let Some(mut chain) = below {
            below = chain.0.take();
        }
    }
}

impl Details for Chain {
    const NAME: &'static str = "tests.Chain";
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first: Option<u8>,
    second: u8,
}

#[derive(Debug, Serialize, Deserialize)]
enum Kind {
    #[serde(skip_deserializing)]
    #[allow(dead_code, reason = "it is only in the way")]
    Internal,
    Second,
    Third,
}

#[trunkline::service]
trait Deep {
    async fn reply(&self, depth: usize) -> Result<Chain, Status>;
    async fn fail(&self, depth: usize) -> Result<(), Chain>;
    async fn detail(&self, depth: usize) -> Result<(), Status>;
    async fn argument(&self, chain: Chain) -> Result<(), Status>;
    /// Calls `argument` of the same server from its poller.
    async fn nested(&self, depth: usize) -> Result<(), Status>;
    #[offload]
    async fn offloaded(&self, depth: usize) -> Result<Chain, Status>;
    #[blocking]
    async fn blocked(&self, cx: &Context, depth: usize) -> Result<(), Chain>;
    async fn order(&self, first: Option<u8>) -> Result<Order, Status>;
    async fn take(&self, order: Order) -> Result<u8, Status>;
    async fn kind(&self) -> Result<Kind, Status>;
}

struct Deeply(std::sync::OnceLock<DeepClient>);

impl Deep for std::sync::Arc<Deeply> {
    async fn reply(&self, depth: usize) -> Result<Chain, Status> {
        Ok(Chain::of_depth(depth))
    }
    async fn fail(&self, depth: usize) -> Result<(), Chain> {
        Err(Chain::of_depth(depth))
    }
    async fn detail(&self, depth: usize) -> Result<(), Status> {
        Err(Status::aborted("no").with_typed_details(&Chain::of_depth(depth)))
    }
    async fn argument(&self, _: Chain) -> Result<(), Status> {
        Ok(())
    }
    async fn nested(&self, depth: usize) -> Result<(), Status> {
        self.0.get().expect("the client is set").argument(Chain::of_depth(depth)).await
    }
    async fn offloaded(&self, depth: usize) -> Result<Chain, Status> {
        Ok(Chain::of_depth(depth))
    }
    async fn blocked(&self, _: &Context, depth: usize) -> Result<(), Chain> {
        Err(Chain::of_depth(depth))
    }
    async fn order(&self, first: Option<u8>) -> Result<Order, Status> {
        Ok(Order { first, second: 2 })
    }
    async fn take(&self, order: Order) -> Result<u8, Status> {
        Ok(order.second)
    }
    async fn kind(&self) -> Result<Kind, Status> {
        let _ = Kind::Third;
        Ok(Kind::Second)
    }
}

/// Starts a server that calls itself, and a client.
fn deep() -> (trunkline::Node, trunkline::Node, DeepClient) {
    let handler = std::sync::Arc::new(Deeply(std::sync::OnceLock::new()));
    let (server, node) = pair(DeepServer::new(std::sync::Arc::clone(&handler)));
    let client = DeepClient::new(node.channel(server.local_address()));
    handler.0.set(DeepClient::new(server.channel(server.local_address()))).ok().unwrap();
    (server, node, client)
}

#[track_caller]
fn is_too_deep(status: &Status, reason: Reason) {
    assert_eq!((status.code(), status.reason()), (Code::Internal, Some(reason)), "{status}");
    assert!(status.message().contains("nested too deep"), "{status}");
}

#[track_caller]
fn status_of<T, E>(outcome: Result<T, CallError<E>>) -> Status {
    match outcome {
        Err(CallError::Status(status)) => status,
        _ => panic!("it arrived"),
    }
}

#[test]
fn chains_too_deep_end_their_call_and_nothing_else() {
    const DEPTH: usize = 30_000;
    let (_server, _node, client) = deep();
    is_too_deep(&block_on(client.reply(DEPTH)).unwrap_err(), Reason::BadReply);
    is_too_deep(&block_on(client.offloaded(DEPTH)).unwrap_err(), Reason::BadReply);
    is_too_deep(&status_of(block_on(client.fail(DEPTH))), Reason::BadReply);
    is_too_deep(&status_of(block_on(client.blocked(DEPTH))), Reason::BadReply);
    let argument = block_on(client.argument(Chain::of_depth(DEPTH))).unwrap_err();
    is_too_deep(&argument, Reason::BadArguments);
    assert!(!argument.may_have_run());
    let nested = block_on(client.nested(DEPTH)).unwrap_err();
    assert!(nested.message().contains("nested too deep"), "{nested}");
    let detail = block_on(client.detail(DEPTH)).unwrap_err();
    assert!(detail.causes().iter().any(|cause| cause.contains("nested too deep")), "{detail:?}");
    // The pollers and workers are alive.
    block_on(client.argument(Chain::of_depth(50))).unwrap();
    assert!(block_on(client.reply(50)).unwrap().0.is_some());
    assert!(block_on(client.offloaded(50)).is_ok());
}

#[test]
fn no_value_overflows_the_stack_of_a_thread_of_64_kib() {
    let (_server, _node, client) = deep();
    let run = |depth| {
        let client = client.clone();
        let chain = Chain::of_depth(depth);
        let calls = move || {
            let sent = block_on(client.argument(chain)).map_err(|status| status.to_string());
            let read = block_on(client.reply(depth)).map(drop).map_err(|status| status.to_string());
            let failed = status_or_chain(block_on(client.fail(depth)));
            [sent, read, failed]
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(calls).unwrap().join().unwrap()
    };
    for depth in [0, 1, 3, 50, 30_000] {
        for _ in 0..2 {
            for outcome in run(depth) {
                assert!(
                    outcome.as_ref().err().is_none_or(|text| text.contains("nested too deep")),
                    "{outcome:?}"
                );
                assert!(depth > 0 || outcome.is_ok(), "{outcome:?}");
            }
        }
    }
}

/// Returns the status of a call that failed, or `Ok` for a success or the handler's error.
fn status_or_chain(outcome: Result<(), CallError<Chain>>) -> Result<(), String> {
    match outcome {
        Err(CallError::Status(status)) => Err(status.to_string()),
        _ => Ok(()),
    }
}

#[test]
fn types_whose_sides_differ_are_refused_by_name() {
    let (_server, _node, client) = deep();
    assert_eq!(block_on(client.take(Order { first: Some(1), second: 2 })), Ok(2));
    assert_eq!(block_on(client.order(Some(1))).unwrap().second, 2);
    let argument = block_on(client.take(Order { first: None, second: 2 })).unwrap_err();
    assert!(argument.message().contains("field `first` of struct `Order`"), "{argument}");
    let reply = block_on(client.order(None)).unwrap_err();
    assert!(reply.message().contains("field `first` of struct `Order`"), "{reply}");
    let kind = block_on(client.kind()).unwrap_err();
    assert!(kind.message().contains("variant `Kind::Second`"), "{kind}");
}
