//! Paths of calls: a node that may use shared memory only, and peers that share none with it.

use crate::common::{LIMIT, fresh_address, until};
use std::time::Duration;
use trunkline::{CallOptions, Code, Connect, Node, NodeBuilder, Reason, Status, block_on};
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_transport::NodeOptions;

#[trunkline::service]
trait Near {
    async fn ping(&self) -> Result<(), Status>;
}

struct Answers;

impl Near for Answers {
    async fn ping(&self) -> Result<(), Status> {
        Ok(())
    }
}

/// A node whose packets take this way.
fn node(path: PathChoice) -> NodeBuilder {
    let device = SoftOptions { path, ..SoftOptions::from_env().unwrap() };
    Node::builder().transport(NodeOptions::new().device(device)).listen(fresh_address())
}

#[test]
fn a_node_that_may_only_share_memory_names_the_reason_why_it_cannot() {
    let server = node(PathChoice::Udp).serve(NearServer::new(Answers)).start().unwrap();
    let caller = node(PathChoice::Shm).start().unwrap();
    let one = caller.channel(server.local_address());
    let several = caller.channel([server.local_address(), server.local_address()].as_slice());
    let by_name = caller.channel(server.local_address().to_string());
    for channel in [one, several, by_name] {
        // The peer says why. On a loaded machine it may be taken for silent before that, but not in each attempt.
        until("the call names the reason", || {
            let options = CallOptions::new().timeout(LIMIT);
            let status = block_on(NearClient::new(channel.clone()).with(&options).ping()).unwrap_err();
            assert_eq!(
                (status.code(), status.reason()),
                (Code::Unavailable, Some(Reason::Unreachable)),
                "{status}"
            );
            let words = ["TRUNKLINE_LINK=shm", "the peer has TRUNKLINE_LINK=udp"];
            (!status.may_have_run() && words.iter().all(|words| status.message().contains(words)))
                .then_some(())
        });
        until("the channel names the reason", || {
            let status = block_on(channel.ready()).unwrap_err();
            status.message().contains("the peer has TRUNKLINE_LINK=udp").then_some(())
        });
    }
    let waits = CallOptions::new().timeout(Duration::from_millis(300)).connect(Connect::Wait);
    let client = NearClient::new(caller.channel(server.local_address()));
    until("an attempt to connect ends before the time limit of its call", || {
        let status = block_on(client.with(&waits).ping()).unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        status.message().contains("the peer has TRUNKLINE_LINK=udp").then_some(())
    });
}

#[test]
fn a_node_that_may_only_share_memory_reaches_who_shares_it() {
    let server = node(PathChoice::Auto).serve(NearServer::new(Answers)).start().unwrap();
    let caller = node(PathChoice::Shm).start().unwrap();
    let client = NearClient::new(caller.channel(server.local_address()));
    block_on(client.with_timeout(LIMIT).ping()).unwrap();
    assert!(caller.report().paths.iter().any(|path| path.path == "shm"), "{:?}", caller.report().paths);
}
