//! Nodes that start, shut down and restart.

use crate::common::{Events, Guard, Reporter, events, fresh_address, node, until};
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trunkline::{
    CallOptions, Channel, Code, Connect, Limit, Node, NodeBuilder, PollerIndex, Resolve, Resolving,
    StartError, Status, Target, block_on,
};

#[trunkline::service]
trait Life {
    async fn ping(&self) -> Result<u64, Status>;
    async fn hang(&self) -> Result<(), Status>;
}

#[derive(Debug)]
struct Living {
    generation: u64,
    reporter: Reporter<&'static str>,
}

impl Life for Living {
    async fn ping(&self) -> Result<u64, Status> {
        Ok(self.generation)
    }
    async fn hang(&self) -> Result<(), Status> {
        let _guard = Guard(self.reporter.clone());
        self.reporter.tell("started");
        pending().await
    }
}

fn server(address: SocketAddr, generation: u64) -> (Node, Events<&'static str>) {
    let (reporter, reported) = events();
    let service = LifeServer::new(Living { generation, reporter });
    (Node::builder().listen(address).serve(service).start().unwrap(), reported)
}

#[test]
fn shutting_down_ends_calls_of_this_node() {
    let (server, reported) = server(fresh_address(), 1);
    let node = node().start().unwrap();
    let client = LifeClient::connect(&node, server.local_address()).unwrap();
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || block_on(client.hang())
    });
    assert_eq!(reported.next(), "started");
    node.shutdown();
    let status = waiting.join().unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("shutting down"), "{status}");
    assert!(status.may_have_run());
    assert_eq!(reported.next(), "dropped");
    for _ in 0..3 {
        let status = block_on(client.ping()).unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(!status.may_have_run());
        assert!(status.message().contains("shut"), "{status}");
    }
    // A second shutdown, and a report after it, are allowed.
    node.shutdown();
    assert_eq!(node.report().pollers, 1);
    let status = block_on(node.run_on(PollerIndex(0), |_| async {})).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[test]
fn invalid_address_or_setting_is_refused_with_remedy() {
    for address in ["nonsense", "7000"] {
        let error = Node::builder().listen(address).start().unwrap_err();
        assert!(matches!(error, StartError::BadAddress { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
        assert!(error.to_string().ends_with(": expected IP:PORT or HOST:PORT"), "{error}");
    }
    let error = node().pollers(0).start().unwrap_err();
    assert!(matches!(error, StartError::BadSetting(_)), "{error}");
    assert!(error.to_string().contains("pollers = 0 is out of range: choose 1 to 32"), "{error}");
    let error = Node::builder().listen("0.0.0.0:0").start().unwrap_err();
    assert!(matches!(error, StartError::NotLoopback(address) if address.ip().is_unspecified()), "{error}");
    // This is printed if `main` returns the error.
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().contains("--allow-unauthenticated"), "{error}");
    let error = node().faults("drop=lots").unwrap_err();
    assert!(matches!(error, StartError::BadSetting(_)), "{error}");
    assert!(error.to_string().starts_with("invalid setting faults: `lots` does not fit drop"), "{error}");
}

#[test]
fn invalid_settings_are_refused_by_name_before_handlers_are_created() {
    let limit = |per_peer, in_all| Limit { per_peer, in_all };
    let wrong: Vec<(NodeBuilder, &str)> = vec![
        (node().large_messages(limit(1, usize::MAX)), "large_messages = 18446744073709551615 is out"),
        (node().queued_jobs(limit(9, 8)), "queued_jobs = 8 is out of range: what all"),
        (node().workers(0), "workers = 0 is out of range"),
        (node().workers(u16::MAX), "workers = 65535 is out of range: choose 1 to 1024"),
        (node().srq_depth(u32::MAX, u32::MAX), "srq_depth = 4294967295 is out of range: choose 16 to 16384"),
        (node().rendezvous_bytes_per_peer(1 << 46), "rendezvous_bytes_per_peer = 70368744177664 is out"),
        (node().stall_limit(Duration::ZERO), "stall_limit (ms) = 0 is out of range: choose 1000 ms or more"),
        (node().hold_limit(Duration::ZERO), "hold_limit (ms) = 0 is out of range: choose 1 ms or more"),
        // These settings need more memory than any machine has.
        (node().rendezvous_bytes(1 << 46), "limits raised beyond the defaults allow 167772416 MiB, and "),
        (node().decoded_bytes(limit(1 << 46, 1 << 46)), "decoded arguments (decoded_bytes) 67108864 MiB"),
        (
            node()
                .handler_limit(limit(1, 1 << 31))
                .call_limit(limit(1, u32::MAX as usize))
                .decoded_bytes(limit(1 << 45, 1 << 45)),
            "running handlers (handler_limit) 2097152 MiB, calls under way (call_limit) 1048576 MiB: choose less",
        ),
    ];
    for (builder, text) in wrong {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let service = LifeServer::per_poller(move |_| -> Result<Living, Status> {
            count.fetch_add(1, Ordering::Relaxed);
            Err(Status::new(Code::Internal, "the handler was made"))
        });
        let error = builder.serve(service).start().unwrap_err();
        assert!(matches!(error, StartError::BadSetting(_)) && error.to_string().contains(text), "{error}");
        assert_eq!(made.load(Ordering::Relaxed), 0, "{text}");
    }
    // The call itself refuses this setting before it starts a thread.
    let starting = node().pollers(u16::MAX).start_async();
    assert!(block_on(starting).unwrap_err().to_string().contains("pollers = 65535"));
}

#[test]
fn mapped_addresses_are_their_ipv4_addresses() {
    /// Resolves every name to one address.
    #[derive(Debug)]
    struct Found(SocketAddr);
    impl Resolve for Found {
        fn resolve(&self) -> Resolving<'_> {
            Box::pin(async { Ok(vec![self.0.into()]) })
        }
    }
    let mapped = |address: SocketAddr| format!("[::ffff:{}]:{}", address.ip(), address.port());
    let ip = fresh_address().ip();
    let (reporter, _events) = events();
    let living = Living { generation: 7, reporter };
    let server = Node::builder().listen(mapped(SocketAddr::new(ip, 0))).serve(LifeServer::new(living));
    let server = server.start().unwrap();
    let address = server.local_address();
    assert_eq!(address.ip(), ip);
    let node = node().start().unwrap();
    let given: SocketAddr = mapped(address).parse().unwrap();
    for channel in [
        node.channel(given),
        node.channel(mapped(address)),
        node.channel([given, address]),
        node.channel(Target::resolver(Found(given))),
        Channel::connect(&node, given).unwrap(),
    ] {
        assert_eq!(block_on(LifeClient::new(channel).ping()), Ok(7));
    }
    let error = Node::builder().listen("[::ffff:0.0.0.0]:0").start().unwrap_err();
    assert!(matches!(error, StartError::NotLoopback(address) if address.is_ipv4()), "{error}");
}

#[test]
fn begin_shutdown_ends_node_and_its_calls() {
    let (server, node) = (node().start().unwrap(), node().start().unwrap());
    assert!(!node.is_ended(), "no shutdown was requested");
    node.begin_shutdown(Duration::ZERO);
    until("the node ends", || node.is_ended().then_some(()));
    let client = LifeClient::connect(&node, server.local_address()).unwrap();
    let status = block_on(client.ping()).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
    node.shutdown();
    assert!(node.is_ended());
}

#[test]
fn address_in_use_is_refused_with_address() {
    let first = node().start().unwrap();
    let address = first.local_address();
    let error = Node::builder().listen(address).start().unwrap_err();
    assert!(matches!(error, StartError::BadAddress { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("cannot listen on {address}: ")), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn start_error_has_cause_of_failed_or_panicked_factory() {
    let panicking = LifeServer::per_poller(|_| -> Result<Living, Status> {
        panic!("a factory panics on purpose");
    });
    let error = node().serve(panicking).start().unwrap_err();
    let text = "the handler of Life cannot be made: its factory panicked: a factory panics on purpose";
    assert_eq!(error.to_string(), text);
    assert_eq!(format!("{error:?}"), text, "what a `main` prints that returns it");
    let failing = LifeServer::per_poller(|_| -> Result<Living, std::io::Error> {
        Err(std::io::Error::other("no such table"))
    });
    let error = node().pollers(3).serve(failing).start().unwrap_err();
    assert!(matches!(&error, StartError::Handler { service: "Life", cause } if cause.is::<std::io::Error>()));
    assert_eq!(error.to_string(), "the handler of Life cannot be made: no such table");
}

#[test]
fn server_of_other_address_family_is_refused_with_remedy() {
    let node = node().start().unwrap();
    let client = LifeClient::connect(&node, "[::1]:7471").unwrap();
    for connect in [Connect::FailFast, Connect::Wait] {
        let options = CallOptions::new().timeout(Duration::from_secs(3600)).connect(connect);
        let status = block_on(client.with(&options).ping()).unwrap_err();
        assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
        let listens_on = format!("listens on {}", node.local_address());
        for words in ["no IPv6 address", &listens_on, "listen on an IPv6 address"] {
            assert!(status.message().contains(words), "{status}");
        }
    }
}
