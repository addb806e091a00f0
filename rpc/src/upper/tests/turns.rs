//! Small calls next to large ones without room: neither kind delays the other, and each keeps its order.

use super::admission::{rig, tokens, waits};
use super::{FULL, LONG, PORT, reply, server, status};
use crate::call::{AdmissionClass, Outcome};
use crate::status::reason::Reason;
use crate::upper::fake::Rig;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use trunkline_machine::rings::cell::Getter;
use trunkline_transport::{SendError, SendOutcome, SessionNumber, Token, Turn, Upper as _};

const MS: Duration = Duration::from_millis(1);
/// Small calls that are queued at most before a large one's turn.
const QUEUED: usize = 64;
const SMALL: usize = 100;
const LARGE: usize = 100 << 10;

/// A call: whether it is large, its ordered channel, and who makes it.
type Made = (bool, Option<Turn>, AdmissionClass);

/// Makes a call of the given size, whose first bytes are its number.
fn submit(
    rig: &mut Rig,
    number: u32,
    bytes: usize,
    entry: AdmissionClass,
    order: Option<Turn>,
) -> Getter<Outcome> {
    let mut body = vec![0; bytes];
    body[..4].copy_from_slice(&number.to_le_bytes());
    rig.body = Bytes::from(body);
    let getter = rig.submit_ordered(PORT, LONG, entry, order);
    rig.run();
    getter
}

fn small(rig: &mut Rig) -> Getter<Outcome> {
    submit(rig, 0, SMALL, AdmissionClass::Waits, None)
}

fn large(rig: &mut Rig) -> Getter<Outcome> {
    submit(rig, 0, LARGE, AdmissionClass::Waits, None)
}

/// Makes the poller look for room.
fn look(rig: &mut Rig) {
    rig.carrier.wait(MS);
    rig.run();
}

#[test]
fn small_calls_pass_large_ones_that_have_no_room() {
    let mut rig = rig(1000);
    rig.carrier.is_full_of_large = true;
    let mut waiting = [large(&mut rig), large(&mut rig)];
    assert!(tokens(&mut rig).is_empty());
    let mut passing = small(&mut rig);
    assert!(waits(&mut passing) && tokens(&mut rig).len() == 1, "there is room for it");
    let mut refused = submit(&mut rig, 0, LARGE, AdmissionClass::Tries, None);
    assert_eq!(status(&mut refused).reason(), Some(Reason::Overloaded), "others wait for the same");
    let _tried = submit(&mut rig, 0, SMALL, AdmissionClass::Tries, None);
    assert_eq!(tokens(&mut rig).len(), 1);
    rig.carrier.is_full_of_large = false;
    look(&mut rig);
    assert_eq!(tokens(&mut rig).len(), 2);
    assert!(waiting.iter_mut().all(waits) && !rig.poller.is_ready());
}

#[test]
fn small_calls_that_are_queued_leave_large_ones_their_turn() {
    let mut rig = rig(1000);
    rig.carrier.is_full_of_large = true;
    let _large = [large(&mut rig), large(&mut rig)];
    let mut calls = (0..QUEUED + 10).map(|_| small(&mut rig)).collect::<Vec<_>>();
    let first = tokens(&mut rig);
    assert_eq!(first.len(), QUEUED, "the others would keep the queue from becoming empty enough");
    rig.carrier.leaves_through = Some(SessionNumber(1));
    look(&mut rig);
    assert_eq!(tokens(&mut rig).len(), 10, "they need not be queued");
    rig.carrier.leaves_through = None;
    calls.extend((0..100).map(|_| small(&mut rig)));
    assert!(tokens(&mut rig).is_empty());

    rig.carrier.is_full_of_large = false;
    rig.sent(first[0], SendOutcome::Delivered);
    rig.run();
    assert_eq!(tokens(&mut rig).len(), 102, "no large one waits any more");
    assert!(calls.iter_mut().all(waits));
}

#[test]
fn a_large_call_that_leaves_ends_the_turn_of_large_ones() {
    let mut rig = rig(1000);
    rig.carrier.is_full_of_large = true;
    let _large = [(); 3].map(|()| large(&mut rig));
    let _small = (0..3 * QUEUED).map(|_| small(&mut rig)).collect::<Vec<_>>();
    assert_eq!(tokens(&mut rig).len(), QUEUED);
    rig.carrier.room_for_large = 1;
    look(&mut rig);
    assert_eq!(tokens(&mut rig).len(), 1 + QUEUED);
}

#[test]
fn both_have_turns_at_calls_under_way() {
    let mut rig = rig(3);
    let _held = [small(&mut rig), small(&mut rig)];
    let mut under_way = tokens(&mut rig);
    let _large = (0..5).map(|_| large(&mut rig)).collect::<Vec<_>>();
    let _small = (0..5).map(|_| small(&mut rig)).collect::<Vec<_>>();
    let mut sizes = Vec::new();
    for _ in 0..10 {
        assert_eq!(under_way.len(), 2);
        rig.message(server(), reply(under_way.remove(0)));
        rig.run();
        sizes.extend(rig.carrier.given.iter().map(|given| given.bytes.len() > LARGE));
        under_way.extend(tokens(&mut rig));
    }
    assert_eq!(sizes, [false, true].repeat(5));
}

/// Calls with random sizes, on ordered channels and outside of these, of programs and of handlers, next to a queue that has
/// room for some: calls of one size leave in the order in which they were made, and so do the calls of a channel.
#[test]
fn calls_keep_their_order() {
    let mut random = 1_u64;
    let mut random = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..200 {
        let mut rig = rig(1000);
        let (mut made, mut calls, mut left) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut note = |rig: &mut Rig| {
            let given = std::mem::take(&mut rig.carrier.given);
            left.extend(given.iter().filter_map(|given| {
                let body =
                    given.bytes.len().checked_sub(if given.bytes.len() > LARGE { LARGE } else { SMALL })?;
                Some((u32::from_le_bytes(given.bytes[body..body + 4].try_into().ok()?), given.token))
            }));
        };
        for number in 0..60 {
            rig.carrier.refusal = (random(3) == 0).then_some(SendError::QueueFull(FULL));
            rig.carrier.is_full_of_large = random(4) > 0;
            rig.carrier.leaves_through = (random(2) > 0).then_some(SessionNumber(1));
            let is_large = random(2) > 0;
            let order = (random(2) > 0).then(|| Turn::new(u32::try_from(random(3)).unwrap()));
            let entry = if random(8) == 0 { AdmissionClass::Reserved } else { AdmissionClass::Waits };
            let bytes = if is_large { LARGE } else { SMALL };
            made.insert(number, (is_large, order, entry));
            calls.push(submit(&mut rig, number, bytes, entry, order));
            if random(3) == 0 {
                look(&mut rig);
            }
            note(&mut rig);
        }
        (rig.carrier.refusal, rig.carrier.is_full_of_large) = (None, false);
        (0..3).for_each(|_| look(&mut rig));
        note(&mut rig);
        let refused = calls.iter_mut().filter_map(Getter::try_take).count();
        assert_eq!(left.len() + refused, 60, "all others have left");
        let in_order = |which: &dyn Fn(&Made) -> bool| {
            let numbers = left.iter().map(|(number, _)| *number).filter(|number| which(&made[number]));
            numbers.collect::<Vec<u32>>().is_sorted()
        };
        for size in [false, true] {
            let alone = |call: &Made| *call == (size, None, AdmissionClass::Waits);
            assert!(in_order(&alone), "large: {size}");
        }
        for channel in 0..3 {
            assert!(
                in_order(&|(_, order, _)| *order == Some(Turn::new(channel))),
                "channel {channel}: {left:?}"
            );
        }
        assert_eq!(rig.poller.sizes().0, left.len());
        let tokens = left.iter().map(|(_, token)| *token).collect::<Vec<Token>>();
        tokens.into_iter().for_each(|token| rig.message(server(), reply(token)));
        assert_eq!(rig.poller.sizes().0, 0);
    }
}
