//! Nodes that start, shut down and restart.

use crate::common::{Events, Guard, Reporter, events, fresh_address, node, until};
use std::future::pending;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline::{Code, Node, PollerIndex, StartError, Status, block_on};

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
    let service = LifeServer::new(move || Living { generation, reporter: reporter.clone() });
    (Node::builder().listen(address).serve(service).start().unwrap(), reported)
}

/// Well below the time limit of a call, well above the time of a disconnect on a loaded machine.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn an_outstanding_call_ends_when_its_server_ends() {
    let (server, reported) = server(fresh_address(), 1);
    let node = node().start().unwrap();
    let client = LifeClient::connect(&node, server.local_address()).unwrap();
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || block_on(client.hang())
    });
    assert_eq!(reported.next(), "started");
    let before = Instant::now();
    drop(server);
    let status = waiting.join().unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.may_have_run(), "it did run");
    assert!(status.to_string().contains("may have run"), "{status}");
    assert!(before.elapsed() < SOON, "in time");
    assert_eq!(reported.next(), "dropped");
    let status = block_on(client.ping()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.may_have_run(), "no server was running: {status}");
}

#[test]
fn the_same_client_works_with_a_restarted_server() {
    let address = fresh_address();
    let node = node().start().unwrap();
    let client = LifeClient::connect(&node, address).unwrap();
    for generation in 1..=3 {
        let (server, _told) = server(address, generation);
        // The first tries may meet the backoff after the last incarnation's end.
        let got = until("a restarted server replies", || block_on(client.ping()).ok());
        assert_eq!(got, generation);
        server.shutdown();
    }
}

#[test]
fn shutting_down_ends_the_calls_of_this_node() {
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
    // A second shutdown and a report after it are allowed.
    node.shutdown();
    assert_eq!(node.report().pollers, 1);
    let status = block_on(node.run_on(PollerIndex(0), |_| async {})).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[test]
fn running_handlers_may_finish_while_the_node_shuts_down() {
    #[trunkline::service]
    trait Slow {
        async fn slow(&self) -> Result<u8, Status>;
    }
    struct Sleeper(Reporter<std::task::Waker>);
    impl Slow for Sleeper {
        async fn slow(&self) -> Result<u8, Status> {
            let mut reported = false;
            std::future::poll_fn(|context| {
                if reported {
                    return std::task::Poll::Ready(());
                }
                reported = true;
                self.0.tell(context.waker().clone());
                std::task::Poll::Pending
            })
            .await;
            Ok(8)
        }
    }
    let (reporter, wakers) = events();
    let server = node().serve(SlowServer::new(move || Sleeper(reporter.clone()))).start().unwrap();
    let node = node().start().unwrap();
    let client = SlowClient::connect(&node, server.local_address()).unwrap();
    let waiting = std::thread::spawn(move || block_on(client.slow()));
    let waker = wakers.next();
    std::thread::scope(|scope| {
        let shutdown = scope.spawn(|| server.shutdown());
        waker.wake();
        shutdown.join().unwrap();
    });
    // Either the reply or the end of the node comes first, but the call must end.
    match waiting.join().unwrap() {
        Ok(8) => {}
        other => assert_eq!(other.unwrap_err().code(), Code::Unavailable),
    }
}

#[test]
fn a_node_that_was_dropped_with_a_client_left_refuses_calls() {
    let (server, _told) = server(fresh_address(), 1);
    let node = node().start().unwrap();
    let client = LifeClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.ping()), Ok(1));
    drop(node);
    let status = block_on(client.ping()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[test]
fn a_bad_setting_is_refused_with_its_name_and_remedy() {
    let error = Node::builder().listen("nonsense").start().unwrap_err();
    assert!(matches!(error, StartError::BadAddress { .. }), "{error}");
    assert!(error.to_string().contains("nonsense"), "{error}");
    let error = node().pollers(0).start().unwrap_err();
    assert!(matches!(error, StartError::BadSetting(_)), "{error}");
    assert!(error.to_string().contains("pollers = 0 is out of range: choose 1 to 32"), "{error}");
    let error = Node::builder().listen("0.0.0.0:0").start().unwrap_err();
    assert!(matches!(error, StartError::NotLoopback(address) if address.ip().is_unspecified()), "{error}");
    // What a `main` that returns it prints.
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(error.to_string().contains("authenticated"), "{error}");
    let error = node().faults("drop=lots").unwrap_err();
    assert!(matches!(error, StartError::BadSetting(_)), "{error}");
    assert!(error.to_string().starts_with("TRUNKLINE_FAULTS: `lots` does not fit drop"), "{error}");
}

#[test]
fn begin_shutdown_ends_the_node_and_its_calls() {
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
fn an_address_in_use_is_refused_with_the_address() {
    let first = node().start().unwrap();
    let address = first.local_address();
    let error = Node::builder().listen(address).start().unwrap_err();
    assert!(matches!(error, StartError::BadAddress { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("cannot listen on {address}: ")), "{error}");
}

#[test]
fn a_panic_of_a_handler_factory_is_reported_at_start_or_has_no_effect() {
    let broken = LifeServer::new(|| {
        if true {
            panic!("a factory panics on purpose");
        }
        Living { generation: 0, reporter: events().0 }
    });
    assert!(node().serve(broken).start().is_err(), "a node without its handler does not start");
}
