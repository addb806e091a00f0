//! The record of a node's latest events.

use crate::common::{node, until};
use std::time::{Duration, SystemTime};
use trunkline::report::{EventKind, RecordedEvent};
use trunkline::{Code, Node, Status, block_on};

#[trunkline::service]
trait Shop {
    async fn price(&self, item: u32) -> Result<u32, Status>;
    async fn close(&self) -> u32;
}

struct Till;

impl Shop for Till {
    async fn price(&self, item: u32) -> Result<u32, Status> {
        if item == 0 { Err(Status::new(Code::NotFound, "no such item")) } else { Ok(item) }
    }
    async fn close(&self) -> u32 {
        0
    }
}

/// Returns the texts of a node's events of the given kinds, in order of time.
fn texts(node: &Node, kinds: &[EventKind]) -> Vec<String> {
    let of_kind = |event: &RecordedEvent| kinds.contains(&event.kind);
    let text = |event: RecordedEvent| {
        let text = RecordedEvent::to_string(&event);
        // Latencies vary and are therefore removed.
        let took = event.took.map(|took| format!(", {took:.1?}")).unwrap_or_default();
        text.replace(&took, "")
    };
    node.record().into_iter().filter(of_kind).map(text).collect()
}

#[test]
fn failed_and_refused_calls_and_ended_sessions_are_recorded_with_their_causes() {
    let authorize = |call: &trunkline::IncomingCall<'_>| {
        let closes = call.method() == "close";
        if closes { Err(Status::new(Code::PermissionDenied, "ask the owner")) } else { Ok(()) }
    };
    let server = node().serve(ShopServer::new(Till)).authorize(authorize).start().unwrap();
    let client = node().start().unwrap();
    let shop = ShopClient::new(client.channel(server.local_address()));
    let begun = SystemTime::now();
    for item in 1..=65 {
        assert_eq!(block_on(shop.price(item)).unwrap(), item);
    }
    assert_eq!(block_on(shop.price(0)).unwrap_err().code(), Code::NotFound);
    assert_eq!(block_on(shop.close()).unwrap_err().code(), Code::PermissionDenied);
    let (at_server, at_client) = (server.local_address(), client.local_address());
    let calls = [EventKind::Call, EventKind::CallFailed, EventKind::CallRefused];
    assert_eq!(
        texts(&server, &calls),
        [
            format!("call, poller 0, server, Shop.price, peer {at_client}"),
            format!("call, poller 0, server, Shop.price, peer {at_client}"),
            format!("call failed, poller 0, server, Shop.price, peer {at_client}, NOT_FOUND"),
            format!(
                "call refused, poller 0, server, Shop.close, peer {at_client}, PERMISSION_DENIED, Unauthorised"
            ),
        ]
    );
    assert_eq!(
        texts(&client, &calls),
        [
            format!("call, poller 0, client, Shop.price, peer {at_server}"),
            format!("call, poller 0, client, Shop.price, peer {at_server}"),
            format!("call failed, poller 0, client, Shop.price, peer {at_server}, NOT_FOUND"),
            format!("call, poller 0, client, Shop.close, peer {at_server}"),
            format!(
                "call failed, poller 0, client, Shop.close, peer {at_server}, PERMISSION_DENIED, Unauthorised"
            ),
        ]
    );
    let record = client.record();
    assert!(record.is_sorted_by_key(|event| event.at_ns));
    // The system clock may be changed while the test runs.
    let hour = Duration::from_secs(3600);
    assert!(record.iter().all(|event| event.time > begun - hour && event.time < begun + hour), "{record:?}");

    server.begin_drain();
    drop(server);
    let sessions = [EventKind::SessionUp, EventKind::SessionDown];
    let closed =
        until("the session ends", || Some(texts(&client, &sessions)).filter(|texts| texts.len() == 2));
    assert_eq!(closed[0], format!("session up, peer {at_server}"));
    assert!(closed[1].starts_with(&format!("session down, peer {at_server}, ")), "{closed:?}");
    let status = block_on(shop.price(1)).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let not_made = texts(&client, &[EventKind::SessionNotMade]);
    assert!(not_made.iter().any(|text| text.contains("listens on")), "{not_made:?}");
    let failed = texts(&client, &[EventKind::CallFailed, EventKind::CallRefused]);
    let last = failed.last().unwrap();
    assert!(last.ends_with(&format!("Shop.price, peer {at_server}, UNAVAILABLE, Unreachable")), "{failed:?}");
}

#[test]
fn drain_is_recorded() {
    for drains in [true, false] {
        let server = node().start().unwrap();
        assert_eq!(server.record(), []);
        if drains {
            server.begin_drain();
            assert_eq!(texts(&server, &[EventKind::Drain]), ["drain"]);
        }
        server.shutdown();
        assert_eq!(texts(&server, &[EventKind::Drain]), ["drain"], "the record outlives the node");
    }
}
