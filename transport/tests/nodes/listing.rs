//! The description that a running node provides to other processes of its user.

use crate::common::{Job, LIMIT, TestNode, over_udp};
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;
use trunkline_softrdma::device::{FoundNode, NodeRequest, PathChoice, SoftOptions, ask_nodes};
use trunkline_testkit::Folder;
use trunkline_transport::{InProcessNetwork, NodeOptions, NodeStatus, ProviderChoice};

fn options(root: &Path, path: PathChoice) -> NodeOptions {
    let runtime_directory = Some(root.to_owned());
    let device = SoftOptions { runtime_directory, path, ..SoftOptions::default() };
    // Nodes on other devices are not listed.
    over_udp().provider(ProviderChoice::Soft).device(device)
}

fn listed(root: &Path) -> Vec<NodeStatus> {
    let found = ask_nodes(Some(root), NodeRequest::Status, LIMIT).unwrap();
    assert!(found.iter().all(|node| node.pid == Some(std::process::id())), "{found:?}");
    let parse = |node: FoundNode| NodeStatus::parse(node.answer.as_deref()?);
    found.into_iter().map(|node| parse(node).unwrap()).collect()
}

fn status_of(node: &TestNode, root: &Path) -> NodeStatus {
    listed(root).into_iter().find(|status| status.address == node.address).unwrap()
}

/// The driver keeps the poller busy during the test.
#[test]
fn node_with_stuck_poller_reports_peers_paths_and_traffic() {
    let folder = Folder::new().unwrap();
    let root = folder.join("run");
    let mut server = TestNode::start(options(&root, PathChoice::Auto), 1);
    let mut neighbour = TestNode::start(options(&root, PathChoice::Auto), 1);
    let mut apart = TestNode::start(options(&root, PathChoice::Udp), 1);
    for client in [&mut neighbour, &mut apart] {
        client.echoes(&server, &[10, 10]);
    }
    let (release, wait) = mpsc::channel();
    server.job(0, Job::Wait(wait));
    let deadline = Instant::now() + LIMIT;
    let path_to = |status: &NodeStatus, peer: &TestNode| {
        let peer = status.peers.iter().find(|other| other.address == peer.address.into()).unwrap();
        assert!(peer.is_up && peer.received >= 2 && peer.sent >= 2, "{status:?}");
        (peer.paths.len() == 1).then(|| (peer.paths[0].path.clone(), peer.paths[0].why.clone()))
    };
    loop {
        let status = status_of(&server, &root);
        assert_eq!((status.pollers, status.peers.len()), (1, 2));
        let to_apart = path_to(&status, &apart);
        if path_to(&status, &neighbour).is_some_and(|(path, why)| path == "shm" && why.is_empty())
            && to_apart.is_some_and(|(path, why)| path == "udp" && why.contains("TRUNKLINE_LINK=udp"))
        {
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        std::thread::yield_now();
    }
    assert_eq!(listed(&root).len(), 3);
    release.send(()).unwrap();
    for node in [&mut server, &mut neighbour, &mut apart] {
        node.stop();
    }
    assert!(listed(&root).is_empty());
    let nodes = std::fs::read_dir(&root).unwrap().next().unwrap().unwrap().path().join("nodes");
    assert_eq!(std::fs::read_dir(nodes).unwrap().count(), 0, "nothing is left");
}

#[test]
fn nodes_in_process_are_not_listed() {
    let folder = Folder::new().unwrap();
    let root = folder.path().to_owned();
    let network = InProcessNetwork::new();
    let mut hidden = TestNode::start(NodeOptions::new().in_process(&network), 1);
    assert!(listed(&root).is_empty());
    hidden.stop();
}
