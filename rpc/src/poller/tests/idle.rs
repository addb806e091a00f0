//! Idle limits of streams.

use super::server::{Arrived, Server, error, next};
use super::service::FEED;
use super::{World, poll};
use crate::client::CallOptions;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::stream::Streaming;
use crate::wire::frame::{Header, StreamPart};
use bytes::Bytes;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use trunkline_transport::Connect;

/// Maximum idle time.
const IDLE: Duration = Duration::from_secs(1);
/// Time for frames in flight, and the precision of timers.
const MARGIN: Duration = Duration::from_millis(10);
/// Number of items in the first window.
const WINDOW: u16 = 64;

fn options() -> CallOptions {
    CallOptions::new().idle_timeout(IDLE)
}

/// Opens a stream, and fills its first window.
fn filled(server: &mut Server) -> (Arrived, Streaming<Bytes>) {
    let (request, items) = server.accepted(FEED, &options());
    (0..WINDOW).for_each(|number| server.stream(request, StreamPart::Data { number }, b"item"));
    server.world.run();
    (request, items)
}

fn take_window(items: &mut Streaming<Bytes>) {
    (0..WINDOW).for_each(|_| assert!(matches!(next(items), Some(Ok(Some(_))))));
    assert!(next(items).is_none());
}

#[test]
fn idle_timeout_runs_only_while_server_may_send() {
    let mut server = Server::new();

    // An arriving item restarts the idle time.
    let (request, mut items) = server.accepted(FEED, &options());
    for number in 0..3 {
        server.world.wait(IDLE - MARGIN);
        server.stream(request, StreamPart::Data { number }, b"item");
        server.world.run();
        assert!(matches!(next(&mut items), Some(Ok(Some(_)))));
    }
    server.world.wait(IDLE - MARGIN);
    assert!(next(&mut items).is_none());
    server.world.wait(MARGIN * 2);
    let status = error(&mut items);
    assert_eq!((status.code(), status.reason()), (Code::DeadlineExceeded, Some(Reason::Expired)));
    assert!(status.message().contains("idle_timeout of 1s"), "{status}");
    assert!(status.to_string().contains("3 items of the stream were delivered"), "{status}");
    assert_eq!(server.cancelled(), [request.header.call]);
    server.assert_at_rest("an idle stream");

    // A server whose window is used up cannot send. The idle time starts when the reader makes room, even just before the
    // timer fires.
    let (_request, mut items) = filled(&mut server);
    server.world.wait(IDLE * 10 - MARGIN);
    take_window(&mut items);
    server.world.wait(IDLE - MARGIN);
    assert!(next(&mut items).is_none(), "it ends too early");
    server.world.wait(MARGIN * 2);
    assert_eq!(error(&mut items).code(), Code::DeadlineExceeded);

    // A server that has ended its items must send a reply, even if the window was used up.
    let (request, mut items) = filled(&mut server);
    server.stream(request, StreamPart::End { items: WINDOW.into() }, &[]);
    server.world.run();
    take_window(&mut items);
    server.world.wait(IDLE * 2);
    assert_eq!(error(&mut items).code(), Code::DeadlineExceeded);
    server.assert_at_rest("a stream without its reply");
}

#[test]
fn idle_time_does_not_begin_before_request_is_sent() {
    let mut world = World::new();
    let node = world.node(|builder| builder);
    // The first host belongs to the node.
    let address = SocketAddr::from(([10, 0, 0, 2], 7471));
    let channel = node.channel(address);
    let (mut wait, _opened) =
        channel.open(&options().connect(Connect::Wait), FEED, &(), Bytes::new(), crate::call::no_items());
    assert!(poll(Pin::new(&mut wait)).is_none());
    world.wait(IDLE * 2);
    let peer = world.peer();
    assert_eq!(peer.address(), address);
    let (_, header, _) = world.until("the request", || peer.frame());
    assert!(matches!(header, Header::Request(request) if request.opens));
    world.wait(IDLE - MARGIN);
    assert!(poll(Pin::new(&mut wait)).is_none(), "it ends too early");
    world.wait(MARGIN * 2);
    let status = poll(Pin::new(&mut wait)).expect("it is idle").expect_err("nothing has come");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}
