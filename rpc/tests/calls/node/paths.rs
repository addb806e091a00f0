//! Paths of calls: nodes that may use only shared memory, and peers with which they share no memory.

use crate::common::{LIMIT, fresh_address, until};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;
use trunkline::device::PathChoice;
use trunkline::{CallOptions, Code, Connect, Node, NodeBuilder, Reason, Status, block_on};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::Folder;
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

/// Returns the builder of a node with this choice of path.
fn node(path: PathChoice) -> NodeBuilder {
    Node::builder().link(path).listen(fresh_address())
}

#[test]
fn memory_only_node_names_reason_if_memory_cannot_be_shared() {
    let server = node(PathChoice::Udp).serve(NearServer::new(Answers)).start().unwrap();
    let caller = node(PathChoice::Shm).start().unwrap();
    let one = caller.channel(server.local_address());
    let several = caller.channel([server.local_address(), server.local_address()].as_slice());
    let by_name = caller.channel(server.local_address().to_string());
    for channel in [one, several, by_name] {
        // The peer reports the reason. On a loaded machine, the peer may be considered silent before. Repeat the call until
        // it is not.
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
fn session_without_allowed_path_ends_with_reason() {
    let server = node(PathChoice::Auto).serve(NearServer::new(Answers)).start().unwrap();
    let elsewhere = Folder::new().unwrap();
    let device = SoftOptions {
        runtime_directory: Some(elsewhere.path().join("run")),
        ..SoftOptions::from_env().unwrap()
    };
    let caller = node(PathChoice::Shm).transport(NodeOptions::new().device(device)).link(PathChoice::Shm);
    let caller = caller.start().unwrap();
    let client = NearClient::new(caller.channel(server.local_address()));
    let options = CallOptions::new().timeout(LIMIT);
    until("the call names the reason", || {
        let status = block_on(client.with(&options).ping()).unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let words = ["TRUNKLINE_LINK=shm", "the peer is not a process of this user on this host"];
        words.iter().all(|words| status.message().contains(words)).then_some(())
    });
}

#[test]
fn memory_only_node_reaches_peers_through_shared_memory() {
    let server = node(PathChoice::Auto).serve(NearServer::new(Answers)).start().unwrap();
    let caller = node(PathChoice::Shm).start().unwrap();
    let client = NearClient::new(caller.channel(server.local_address()));
    block_on(client.with_timeout(LIMIT).ping()).unwrap();
    assert!(caller.report().paths.iter().any(|path| path.path == "shm"), "{:?}", caller.report().paths);
    assert_eq!([&caller, &server].map(|node| node.report().link), ["shm", "shm"], "paths in use");
    server.shutdown();
    until("the session ends", || caller.report().paths.is_empty().then_some(()));
    let unused = node(PathChoice::Auto).start().unwrap();
    assert_eq!([&caller, &unused].map(|node| node.report().link), ["shm", "udp"], "the device's");
}

#[test]
fn report_contains_path_and_reason_for_each_peer_at_one_address() {
    let address = SocketAddr::new(fresh_address().ip(), 0);
    let server = |path| {
        let builder = Node::builder().link(path).listen(address);
        builder.serve(NearServer::new(Answers)).start().unwrap()
    };
    let [near, far] = [PathChoice::Auto, PathChoice::Udp].map(server);
    let caller = node(PathChoice::Auto).start().unwrap();
    let path_to = |server: &Node| {
        block_on(NearClient::new(caller.channel(server.local_address())).with_timeout(LIMIT).ping()).unwrap();
        let paths = caller.report().paths;
        let of_peer: Vec<_> = paths
            .iter()
            .filter(|path| path.address == server.local_address().into())
            .map(|it| (it.path, it.why))
            .collect();
        <[_; 1]>::try_from(of_peer).ok()
    };
    until("one peer is reached by memory", || (path_to(&near)? == [("shm", "")]).then_some(()));
    let refused = [("udp", "the peer has TRUNKLINE_LINK=udp (or setting link)")];
    until("the other one says why not", || (path_to(&far)? == refused).then_some(()));
}

#[test]
fn builder_link_overrides_device_and_excludes_faults() {
    let device = SoftOptions { path: PathChoice::Udp, ..SoftOptions::from_env().unwrap() };
    let server = node(PathChoice::Auto).serve(NearServer::new(Answers)).start().unwrap();
    let builder = Node::builder().transport(NodeOptions::new().device(device)).listen(fresh_address());
    let caller = builder.link(PathChoice::Shm).start().unwrap();
    block_on(NearClient::new(caller.channel(server.local_address())).with_timeout(LIMIT).ping()).unwrap();
    let refused = node(PathChoice::Shm).faults("drop=0.01").unwrap().start().unwrap_err().to_string();
    assert!(refused.contains("faults") && refused.contains("out of shared memory"), "{refused}");
}

#[test]
fn node_at_another_udp_port_reaches_servers_at_default_and_own_port() {
    let device = SoftOptions { udp_port: NonZeroU16::new(4801), ..SoftOptions::from_env().unwrap() };
    let at_4801 =
        || node(PathChoice::Udp).transport(NodeOptions::new().device(device.clone())).link(PathChoice::Udp);
    let usual = node(PathChoice::Udp).serve(NearServer::new(Answers)).start().unwrap();
    let own = at_4801().listen(fresh_address()).serve(NearServer::new(Answers)).start().unwrap();
    let caller = at_4801().listen(fresh_address()).start().unwrap();
    let (usual, own) = (usual.local_address(), own.local_address());
    let texts = [format!("{usual}/4791"), own.to_string(), format!("{own}/4801")];
    for text in &texts {
        block_on(NearClient::new(caller.channel(text.as_str())).ping()).unwrap();
    }
    let report = caller.report();
    let peers: BTreeSet<_> = report.traffic.iter().map(|lane| lane.peer.to_string()).collect();
    assert_eq!(peers, BTreeSet::from([texts[0].clone(), texts[1].clone()]), "one session with each server");
}
