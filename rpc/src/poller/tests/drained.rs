//! DRAINED frames, and the behaviour of a server after it has sent them.

use super::poll;
use super::server::{Server, error, success};
use super::service::{ECHO, FEED, METHODS};
use crate::client::CallOptions;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, RepliedBy, StreamPart};
use crate::wire::metadata::MetadataBytes;
use bytes::Bytes;
use std::pin::Pin;
use std::time::Duration;
use trunkline_transport::{Connect, EAGER_BYTES};

/// Returns the refusal of a call by a draining server.
pub(super) fn refusal(call: u64) -> Header {
    Header::Reply {
        call,
        code: Code::Unavailable.number(),
        by: RepliedBy::Node { reason: Some(Reason::Draining), ran: false },
        number: None,
        metadata: MetadataBytes::default(),
    }
}

#[test]
fn only_calls_to_drained_poller_have_not_run() {
    #[derive(Debug)]
    enum From {
        Asked,
        OtherPoller,
        OtherPeer,
    }
    for (from, has_not_run) in [(From::Asked, true), (From::OtherPoller, false), (From::OtherPeer, false)] {
        let mut server = Server::with(2, |builder| builder);
        let other = server.world.peer();
        let call = server.call(ECHO, CallOptions::new(), Bytes::new());
        let request = server.request();
        match from {
            From::Asked => server.answer(request, &Header::Drained, &[], &[]),
            From::OtherPoller => {
                server.peer.answer(1 - request.line, request.from, &Header::Drained, &[], &[]);
            }
            From::OtherPeer => other.send(server.node.local_address(), &Header::Drained, &[], &[]),
        }
        server.world.run();
        assert_eq!(server.open_work().calls, 1, "it may be answered until its session ends");
        server.peer.end();
        server.until_lost();
        let status = server.world.block_on(call).expect_err("its server is gone");
        assert_eq!(!status.may_have_run(), has_not_run, "DRAINED of {from:?}: {status}");
        assert_eq!(status.reason() == Some(Reason::Draining), has_not_run, "{status}");
        server.assert_at_rest("a lost server");
    }
}

#[test]
fn one_way_call_to_drained_server_may_have_run() {
    let mut server = Server::new();
    // A request that has not been fetched is not delivered.
    server.peer.lines[0].transport.borrow_mut().screen_announced();
    let mut call = server.call(&METHODS[5], CallOptions::new(), vec![0; EAGER_BYTES * 2].into());
    server.world.run();
    server.peer.send(server.node.local_address(), &Header::Drained, &[], &[]);
    server.world.run();
    assert!(poll(Pin::new(&mut call)).is_none());
    server.peer.end();
    server.until_lost();
    let status = server.world.block_on(call).expect_err("its server is gone");
    assert!(status.may_have_run(), "{status}");
}

#[test]
fn accepted_stream_is_not_reopened() {
    for is_accepted in [false, true] {
        let mut server = Server::new();
        let (mut wait, opened) = server.open(FEED, &CallOptions::new().connect(Connect::Wait));
        let request = server.request();
        if is_accepted {
            server.stream(request, StreamPart::Accept, &[]);
        }
        server.answer(request, &refusal(request.header.call), &[], &[]);
        server.world.run();
        assert_eq!(server.open_work().calls, usize::from(!is_accepted), "accepted: {is_accepted}");
        assert_eq!(poll(Pin::new(&mut wait)).is_some(), is_accepted);
        if is_accepted {
            let status = error(&mut opened.bytes(|bytes| bytes));
            assert_eq!(status.code(), Code::Internal, "{status}");
        }
    }
}

#[test]
fn draining_server_gets_calls_again_in_next_session() {
    for is_drained in [true, false] {
        let mut server = Server::new();
        let waits = CallOptions::new().connect(Connect::Wait).timeout(Duration::from_secs(60));
        let first = server.call(ECHO, waits.clone(), Bytes::new());
        let request = server.request();
        let says_so = if is_drained { Header::Drained } else { refusal(request.header.call) };
        server.answer(request, &says_so, &[0; 5], &[]);
        server.world.run();
        let mut late = server.call(ECHO, waits, Bytes::new());
        server.world.run();
        assert!(server.arrived().is_none() && poll(Pin::new(&mut late)).is_none(), "it waits");
        let silent = server.silence();
        server.until_lost();
        server.world.tasks.extend(silent);
        for _ in 0..2 {
            let request = server.request();
            server.answer(request, &success(request), &[], &[]);
        }
        for call in [first, late] {
            server.world.block_on(call).expect("the next session has it");
        }
        let _call = server.call(ECHO, CallOptions::new(), Bytes::new());
        server.request();
    }
}

/// Without probes, a peer that vanishes during its drain would keep its session forever.
#[test]
fn draining_server_is_probed_until_session_ends() {
    for is_drained in [true, false] {
        let mut server = Server::with(1, |builder| builder.idle_keepalive(Duration::from_secs(1)));
        if is_drained {
            server.peer.send(server.node.local_address(), &Header::Drained, &[], &[]);
            server.world.run();
        }
        let _silent = server.silence();
        server.world.wait(Duration::from_secs(30));
        assert_eq!(server.channel.is_connected(), !is_drained);
    }
}
