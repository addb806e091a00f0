//! Replies from a server that violates the protocol.

use super::metadata::metadata;
use super::service::ECHO;
use super::{Peer, World, frame, poll, with_metadata};
use crate::Channel;
use crate::call::Outcome;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::stub::DEFAULT_OPTIONS;
use crate::wire::frame::{Header, RepliedBy};
use crate::wire::metadata::MetadataBytes;
use bytes::Bytes;
use std::pin::pin;
use trunkline_transport::{Origin, PeerKey};

/// Makes a call.
fn call(channel: &Channel) -> impl Future<Output = Outcome> {
    channel.call(&DEFAULT_OPTIONS, ECHO, &(), Bytes::new())
}

/// Takes a request at its server. Returns the index of the poller that received it, the sender, and the number of the call.
fn asked(world: &mut World, peer: &Peer) -> (usize, Origin, u64) {
    let has_frame = |line: &super::Line| !line.arrived.borrow().frames.is_empty();
    let at = world.until("the request", || peer.lines.iter().position(has_frame));
    let (from, header, _) = peer.frame().expect("it has arrived");
    let Header::Request(request) = header else { panic!("{header:?}") };
    (at, from, request.call)
}

fn reply(call: u64, code: u8, trailing: usize) -> Header {
    let metadata = MetadataBytes { initial: 0, trailing: u32::try_from(trailing).unwrap() };
    Header::Reply { call, code, by: RepliedBy::Handler, number: None, metadata }
}

#[test]
fn reply_is_accepted_once_and_only_from_called_peer() {
    let mut world = World::new();
    let node = world.node(|builder| builder);
    let (server, other) = (world.peer_with(|options| options.pollers(2)), world.peer());
    let channel = node.channel(server.address());

    let mut first = pin!(call(&channel));
    let (at, from, number) = asked(&mut world, &server);
    other.send(node.local_address(), &reply(number, 0, 0), &[], b"other");
    world.run();
    assert!(poll(first.as_mut()).is_none(), "another peer was not asked");
    server.answer(1 - at, from, &reply(number, 0, 0), &[], b"first");
    let response = world.block_on(first).expect("any poller of the server may reply");
    assert_eq!(response.bytes().unwrap(), "first");

    server.answer(at, from, &reply(number, 0, 0), &[], b"twice");
    let mut second = pin!(call(&channel));
    let (at, from, next) = asked(&mut world, &server);
    assert!(next != number && (next ^ number) & 0xffff_ffff == 0, "the slot is reused: {next:x} {number:x}");
    server.answer(at, from, &reply(number, 0, 0), &[], b"late");
    world.run();
    assert!(poll(second.as_mut()).is_none(), "the reply of the first call does nothing to the second");
    server.answer(at, from, &reply(next, 0, 0), &[], b"second");
    assert_eq!(world.block_on(second).unwrap().bytes().unwrap(), "second");
}

#[test]
fn unreadable_reply_ends_call() {
    let mut world = World::new();
    let node = world.node(|builder| builder);
    let (server, other) = (world.peer(), world.peer());
    let channel = node.channel(server.address());

    let mut pending = pin!(call(&channel));
    let (_, from, number) = asked(&mut world, &server);
    let mut bytes = frame(&reply(number, 0, 0), &[], b"answer");
    // A critical extension that no version defines.
    bytes.bytes.splice(16..16, [200, 1, 0, 0]);
    bytes.bytes[12] = 4;
    other.post(0, PeerKey::new(node.local_address()), None, &bytes);
    world.run();
    assert!(poll(pending.as_mut()).is_none(), "another peer was not asked");
    server.post(0, from.peer, Some(from), &bytes);
    let status = world.block_on(pending).unwrap_err();
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::UnknownExtension), true), "{status}");
    assert!(status.message().contains("extension 200"), "{status}");

    for (block, expected) in [
        (metadata(8192).block(), None),
        (metadata(8193).block(), Some((Code::ResourceExhausted, Reason::TooLarge))),
        (b"\x01\x01\0K1", Some((Code::Internal, Reason::BadReply))),
    ] {
        for code in [0, Code::NotFound.number()] {
            let pending = pin!(call(&channel));
            let (_, from, number) = asked(&mut world, &server);
            // The texts of a status, all of which are empty.
            let answer = with_metadata(&reply(number, code, block.len()), block, &[0; 5], &[]);
            server.post(0, from.peer, Some(from), &answer);
            match (world.block_on(pending), expected) {
                (Ok(response), None) if code == 0 => {
                    assert!(response.metadata().trailing.block() == block);
                    assert!(!format!("{response:?}").contains("vvv"), "a value in the Debug output");
                }
                (Err(status), None) => {
                    assert!(status.code().number() == code && status.metadata().block() == block, "{status}");
                }
                (Err(status), Some((code, reason))) => {
                    let kind = (status.code(), status.reason(), status.may_have_run());
                    assert_eq!(kind, (code, Some(reason), true), "{status}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
