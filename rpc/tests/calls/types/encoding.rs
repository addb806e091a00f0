//! Values that cannot be encoded. They end their call with the reason, whichever thread encodes them.

use crate::common::pair;
use serde::{Deserialize, Serialize};
use trunkline::{CallError, Code, Context, Details, Reason, Status, block_on};

/// A value whose encoder and destructor recurse.
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

#[trunkline::service]
trait Deep {
    async fn reply(&self, depth: usize) -> Result<Chain, Status>;
    async fn fail(&self, depth: usize) -> Result<(), Chain>;
    async fn detail(&self, depth: usize) -> Result<(), Status>;
    async fn argument(&self, chain: Chain) -> Result<(), Status>;
    /// Calls `argument` on the same server from the poller.
    async fn nested(&self, depth: usize) -> Result<(), Status>;
    #[offload]
    async fn offloaded(&self, depth: usize) -> Result<Chain, Status>;
    #[blocking]
    async fn blocked(&self, cx: &Context, depth: usize) -> Result<(), Chain>;
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
}

/// Starts a server that calls itself, and a client for it.
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
fn too_deep_values_end_only_their_call() {
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
    // The pollers and workers must still be running.
    block_on(client.argument(Chain::of_depth(50))).unwrap();
    assert!(block_on(client.reply(50)).unwrap().0.is_some());
    assert!(block_on(client.offloaded(50)).is_ok());
}
