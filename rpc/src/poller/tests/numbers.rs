//! Numbers that a server assigns to methods.

use super::server::{Arrived, Server, number};
use super::service::{ECHO, METHODS};
use crate::client::CallOptions;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, MethodRef, Number, RepliedBy};
use crate::wire::metadata::MetadataBytes;
use bytes::Bytes;

/// Calls `ECHO` and drops the call. Returns the method identification in the request.
fn method_ref(server: &mut Server) -> MethodRef {
    let _call = server.call(ECHO, CallOptions::new(), Bytes::new());
    server.request().header.method_ref
}

/// Sends a number for which no call waits.
fn tell(server: &mut Server, number: Number) {
    server.peer.send(server.node.local_address(), &Header::Number { call: 1, number }, &[], &[]);
    server.world.run();
}

/// Refuses a request, because the server does not have the method.
fn refuse(server: &Server, request: Arrived) {
    let refusal = Header::Reply {
        call: request.header.call,
        code: Code::Unimplemented.number(),
        by: RepliedBy::Node { reason: Some(Reason::NoMethod), ran: false },
        number: None,
        metadata: MetadataBytes::default(),
    };
    server.answer(request, &refusal, &[0; 5], &[]);
}

#[test]
fn requested_number_is_used_until_request_by_number_is_refused() {
    let (mut server, right) = (Server::new(), number(ECHO));
    let (by_hash, by_number) = (MethodRef::from(ECHO), MethodRef::Number(right.number));
    tell(&mut server, right);
    assert_eq!(method_ref(&mut server), by_hash, "no call had asked for it");
    let mut newer = right;
    newer.schema.version += 1;
    tell(&mut server, newer);
    assert_eq!(method_ref(&mut server), by_hash, "the server has not checked this schema");
    tell(&mut server, right);
    assert_eq!(method_ref(&mut server), by_number);

    let call = server.call(ECHO, CallOptions::new(), Bytes::new());
    let request = server.request();
    assert_eq!(request.header.method_ref, by_number);
    refuse(&server, request);
    let status = server.world.block_on(call).expect_err("it is refused");
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::NoMethod), false), "{status}");
    assert_eq!(method_ref(&mut server), by_hash, "after the refusal of a call");

    // The refusal of a one-way call arrives after the call has ended.
    tell(&mut server, right);
    assert_eq!(method_ref(&mut server), by_number);
    let call = server.call(&METHODS[5], CallOptions::new(), Bytes::new());
    let request = server.request();
    server.world.block_on(call).expect("it was delivered");
    refuse(&server, request);
    server.world.run();
    assert_eq!(method_ref(&mut server), by_hash, "after the refusal of a one-way call");
    assert_eq!(server.node.report().counter("one_way_calls_not_served"), Some(1));
}
