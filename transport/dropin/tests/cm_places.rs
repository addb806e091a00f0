//! librdmacm's functions where the host's routing has something to say: in a network namespace of this
//! test's own, with loopback alone.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::*;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::DirBuilderExt;
use std::process::Command;
use std::ptr::null_mut;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;

/// Set in the process that runs in the namespace.
const INSIDE: &str = "TRUNKLINE_TEST_INSIDE";

/// Runs this program's only test anew, in the namespace; says why it cannot.
fn in_place(name: &str) {
    let runtime = std::env::temp_dir().join(format!("trunkline-places-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&runtime).unwrap();
    let made = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" --exact \"$1\" --nocapture")
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(INSIDE, "1")
        .env("TRUNKLINE_RUNTIME_DIR", &runtime)
        .env_remove("TRUNKLINE_ADDRESS")
        .output();
    std::fs::remove_dir_all(&runtime).unwrap();
    let said = made.map(|output| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    });
    match said {
        Ok((true, out, _)) if out.contains("1 passed") => {}
        Ok((_, out, err)) if out.contains("running 1 test") => panic!("{out}{err}"),
        other => eprintln!("skipped: no network namespace can be made here: {other:?}"),
    }
}

#[test]
fn a_peer_that_no_route_leads_to_is_refused_at_once() {
    if std::env::var_os(INSIDE).is_none() {
        in_place("a_peer_that_no_route_leads_to_is_refused_at_once");
        return;
    }
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let nowhere = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 7), 7);
    let mut source = c_address(Ipv4Addr::LOCALHOST, 0);
    let mut destination = c_address(*nowhere.ip(), nowhere.port());
    let destination = (&raw mut destination).cast();
    // SAFETY: id and addresses live.
    unsafe {
        let answer = call(|| rdma_resolve_addr(id, null_mut(), destination, 2000));
        assert_eq!(answer, Err(libc::ENETUNREACH));
        let answer = call(|| rdma_resolve_addr(id, (&raw mut source).cast(), destination, 2000));
        assert_eq!(answer, Err(libc::ENETUNREACH));
        // The id may still look for another.
        let mut here = c_address(Ipv4Addr::new(127, 3, 2, 1), 7);
        call(|| rdma_resolve_addr(id, null_mut(), (&raw mut here).cast(), 2000)).unwrap();
    }
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    destroy(id);
}
