//! The user at the other end of a connection between processes.
//!
//! The tests start this binary again as the other process.

use crate::common;
use crate::common::host::{Host, part, provable_user};
use crate::common::node::{Node, next_event, next_request};
use nix::unistd::{Uid, geteuid, setuid};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_testkit::{Input, print_line, same_test};
use trunkline_verbs::CmEventKind;

const ADDRESS: &str = "TRUNKLINE_TEST_ADDRESS";

#[test]
fn play() {
    let Some(part) = part() else { return };
    let address: IpAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let options = SoftOptions { addresses: vec![address], ..SoftOptions::from_env().unwrap() };
    let node = Node::open(options, 4096);
    if part == "another user"
        && let Err(errno) = setuid(Uid::from_raw(geteuid().as_raw() + 1))
    {
        print_line(&format!("PORT skipped: this process may not change its user: {errno}"));
        return;
    }
    let channel = node.cm_channel();
    let listener = node.listen(SocketAddr::new(address, 0), &channel).unwrap();
    print_line(&format!("PORT {}", listener.local_address().port()));
    let id = next_request(&*channel);
    let _tgt = node.accept(&*id);
    print_line(&format!("USER {:?}", id.local_user()));
    while Input::open().wait().is_some() {}
}

/// Connects to a process. Returns the user of the peer as seen by this process, and the user of this process as
/// seen by the peer; `None` if the peer cannot play its part.
fn users(part: &str, path: PathChoice, wrap: impl FnOnce(Command) -> Command) -> Option<[String; 2]> {
    let (host, address) = (Host::new(), common::address());
    let link = if path == PathChoice::Shm { "shm" } else { "udp" };
    let variables = [(ADDRESS, &*address.to_string()), ("TRUNKLINE_LINK", link)];
    let node = Node::open(SoftOptions { path, ..host.options() }, 4096);
    let mut command = wrap(same_test(module_path!(), "play"));
    let mut process = host.start(part, &mut command, &variables);
    let port = process.after("PORT ").unwrap();
    let Ok(port) = port.parse() else {
        println!("{port}");
        return None;
    };
    let channel = node.cm_channel();
    let (id, _ini) = node.ask(SocketAddr::new(address, port), &channel);
    assert!(matches!(next_event(&*channel).kind, CmEventKind::Established));
    Some([format!("{:?}", id.local_user()), process.after("USER ").unwrap()])
}

#[test]
fn processes_of_one_user_prove_user_to_each_other() {
    let own = format!("{:?}", provable_user());
    for path in [PathChoice::Udp, PathChoice::Shm] {
        assert_eq!(users("same user", path, |command| command), Some([(); 2].map(|()| own.clone())));
    }
}

#[test]
fn process_with_changed_user_does_not_prove_user() {
    if let Some(users) = users("another user", PathChoice::Udp, |command| command) {
        assert_eq!(users, ["None"; 2]);
    }
}

#[test]
fn process_in_another_user_namespace_does_not_prove_user() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        println!("skipped: cannot make a user namespace here");
        return;
    }
    let inside = |command: Command| {
        let mut wrapped = unshare();
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped
    };
    assert_eq!(users("in a namespace", PathChoice::Udp, inside).unwrap(), ["None"; 2]);
}
