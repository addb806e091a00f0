//! A stopped holder of port 4791, and the log of a process that new clients cannot reach while it is stopped.
//!
//! The test starts this binary again as the holder.

use crate::common;
use crate::common::host::{self, Host, part};
use crate::common::log::Log;
use crate::common::node::{BOUND, Node};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tracing::Level;
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{Input, NextLine, Process, print_line, runs_alone, same_test, wait_until};
use trunkline_verbs::{Completion, Prepared};

const ADDRESS: &str = "TRUNKLINE_TEST_HELD_ADDRESS";

/// Entry point of the holder, which listens at the address in [`ADDRESS`] until its input ends.
#[test]
fn holder() {
    if part().as_deref() != Some("holder") {
        return;
    }
    let address = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let runtime_directory = std::env::var_os("TRUNKLINE_RUNTIME_DIR").map(Into::into);
    let _held = host::open(SoftOptions { runtime_directory, ..common::udp() }, address).unwrap();
    print_line("HOLDS");
    let input = Input::open();
    while input.next_line() != NextLine::End {
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn start_holder(host: &Host, address: IpAddr) -> Process {
    let mut command = same_test(module_path!(), "holder");
    let mut holder = host.start("holder", &mut command, &[(ADDRESS, &address.to_string())]);
    holder.pick("HOLDS").unwrap();
    holder
}

#[test]
fn listening_process_logs_stop_and_continuation_of_holder() {
    if !runs_alone(module_path!(), "listening_process_logs_stop_and_continuation_of_holder") {
        return;
    }
    let log = Log::new(Level::INFO);
    // The background threads log too, so a subscriber of this thread is not sufficient.
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let lines = |level, count: usize| {
        wait_until("the log has the line", BOUND, || {
            let lines = log.lines(level);
            (lines.len() >= count).then_some(lines)
        })
    };
    let (host, address) = (Host::new(), common::address());
    let mut holder = start_holder(&host, address);
    let pid = format!(" pid={}", holder.id());
    let node = Node::open(SoftOptions { addresses: vec![address], ..host.options() }, 4096);
    let _listener = node.listen(SocketAddr::new(address, 0), &node.cm_channel()).unwrap();
    // Wait as the poller of an idle node does, so that the device's thread has only its slow ticks.
    let wait = node.cq.device_wait(Arc::new(|| ())).unwrap();
    while wait.prepare(true) == Prepared::Ready {}

    holder.stop();
    let warned = lines(Level::WARN, 1);
    assert!(warned[0].contains(&pid) && warned[0].contains(&address.to_string()), "{warned:?}");
    holder.resume();
    let told = lines(Level::INFO, 1);
    assert!(told[0].contains(&pid) && told[0].contains("runs again"), "{told:?}");
    holder.stop();
    assert_eq!(lines(Level::WARN, 2).len(), 2, "one for each stop");
    holder.kill().unwrap();
    wait.awake(true);
    wait_until("the node takes port 4791 over", BOUND, || {
        node.cq.poll(&mut [Completion::default()]);
        (log.lines(Level::INFO).len() >= 2).then_some(())
    });
    let told = log.lines(Level::INFO);
    assert!(told[1].contains(&pid) && told[1].contains("has ended"), "{told:?}");
    assert_eq!((log.lines(Level::WARN).len(), told.len()), (2, 2), "{}", log.text());
    assert_eq!(node.counter("port_taken_over"), 1);
}
