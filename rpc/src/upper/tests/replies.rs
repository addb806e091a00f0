//! Large replies without room wait within a separate bound and do not delay small ones.

use super::{HANG_UNHEARD, frame, request, sent, server};
use crate::node::budgets::Limits;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{ECHO, HANG, Rig};
use crate::wire::frame::{By, Header, RequestHeader};
use std::time::Duration;
use trunkline_transport::{
    Limit, Origin, PeerDown, PeerEvent, PollerIndex, SendError, SessionNumber, Toward, Upper as _,
};
use trunkline_verbs::VerbsError;

const MS: Duration = Duration::from_millis(1);
const LARGE: usize = 100 << 10;
/// Maximum charge of two replies beyond their bytes.
const OVERHEAD: usize = 4 << 10;

/// Creates a node whose replies to one peer may wait up to `per_peer` bytes, and whose queue has no room for large ones.
fn rig(per_peer: usize) -> Rig {
    let waiting_replies = Limit { per_peer, in_all: 10 * per_peer };
    let mut rig = Rig::with_limits(Limits { waiting_replies, ..Limits::default() });
    rig.carrier.is_full_of_large = true;
    rig
}

/// Makes a call of the peer, whose reply has as many bytes.
fn ask(rig: &mut Rig, call: u64, bytes: usize) {
    rig.message(server(), frame(Header::Request(request(ECHO, call)), &[], &vec![0x5a; bytes]));
}

/// Returns the calls to which replies were sent, with their codes.
fn replied(rig: &mut Rig) -> Vec<(u64, u8)> {
    let replies = sent(rig).into_iter().filter_map(|(_, header)| match header {
        Header::Reply { call, code, .. } => Some((call, code)),
        _ => None,
    });
    replies.collect()
}

/// Makes the poller look for room.
fn look(rig: &mut Rig) {
    rig.carrier.wait(MS);
    rig.run();
}

#[test]
fn replies_wait_for_room_and_leave_in_order() {
    let mut rig = rig(1 << 20);
    (1..=3).for_each(|call| ask(&mut rig, call, LARGE));
    assert_eq!((replied(&mut rig), rig.poller.sizes().1), (vec![], 3));
    ask(&mut rig, 4, 100);
    assert_eq!(replied(&mut rig), [(4, 0)], "a small one does not wait");
    assert!(rig.poller.next_timer() <= Some(rig.carrier.now + MS) && !rig.poller.is_drained());
    rig.carrier.room_for_large = 1;
    ask(&mut rig, 5, LARGE);
    assert_eq!(replied(&mut rig), [], "it is not the first one");
    look(&mut rig);
    assert_eq!(replied(&mut rig), [(1, 0)]);
    rig.carrier.is_full_of_large = false;
    look(&mut rig);
    assert_eq!(replied(&mut rig), [(2, 0), (3, 0), (5, 0)]);
    assert_eq!((rig.poller.sizes().1, rig.poller.next_timer()), (0, None));
}

#[test]
fn no_more_bytes_wait_than_may() {
    let mut rig = rig(2 * LARGE + OVERHEAD);
    (1..=3).for_each(|call| ask(&mut rig, call, LARGE));
    let refused = sent(&mut rig).pop().expect("one is refused").1;
    let Header::Reply { call: 3, by: By::Node { reason, ran: true }, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(reason, Some(Reason::Overloaded));
    let ledger = rig.poller.ledger();
    let of_replies = ledger.budgets.iter().find(|budget| budget.name == "bytes of replies that wait");
    let of_replies = of_replies.expect("it is kept");
    assert_eq!(of_replies.used, of_replies.counted);
    let used = of_replies.used.values().sum::<usize>();
    assert!((2 * LARGE..=2 * LARGE + OVERHEAD).contains(&used), "{used}");
}

#[test]
fn calls_that_outlast_the_grace_period_are_told_so_while_their_session_lasts() {
    let mut rig = rig(1 << 20);
    ask(&mut rig, 1, LARGE);
    rig.message(server(), frame(Header::Request(request(HANG, 2)), &[], &[]));
    rig.message(
        server(),
        frame(Header::Request(RequestHeader { one_way: true, ..request(HANG_UNHEARD, 3) }), &[], &[]),
    );
    assert_eq!((replied(&mut rig), rig.poller.sizes().1), (vec![], 3));
    rig.poller.shutdown(&mut rig.carrier);
    assert!(rig.poller.grace_over(&mut rig.carrier), "callers are told");
    let told = sent(&mut rig).into_iter().filter_map(|(_, header)| match header {
        Header::Reply { call, code, by, .. } => Some((call, Code::from_number(code), by)),
        _ => None,
    });
    let cut = By::Node { reason: Some(Reason::Draining), ran: true };
    assert_eq!(told.collect::<Vec<_>>(), [1, 2].map(|call| (call, Code::Unavailable, cut)));
    assert!(rig.poller.is_drained() && rig.poller.has_ended(server().peer));
    rig.run();
    assert!(!rig.inbox.lifecycle().is_drained(), "the handlers have not ended by themselves");
    assert_eq!(rig.inbox.lifecycle().counters.one_way_failed.count(), 1, "its caller waits for no reply");
    assert!(rig.poller.ledger().budgets.iter().all(|budget| budget.used.is_empty()));
}

/// A peer that uses a number twice has both replies dropped, and the others leave in their order.
#[test]
fn a_cancellation_drops_the_replies_with_its_number_and_no_other() {
    let mut rig = rig(1 << 20);
    [1, 2, 3, 2, 4].into_iter().for_each(|call| ask(&mut rig, call, LARGE));
    let other = Origin { poller: PollerIndex(1), ..server() };
    rig.message(other, frame(Header::Request(request(ECHO, 2)), &[], &[0x5a; LARGE]));
    rig.message(server(), frame(Header::Cancel { call: 2 }, &[], &[]));
    rig.message(server(), frame(Header::Cancel { call: 9 }, &[], &[]));
    assert_eq!(rig.poller.sizes().1, 4);
    look(&mut rig);
    assert_eq!(replied(&mut rig), [], "there is no room yet");
    rig.message(server(), frame(Header::Cancel { call: 3 }, &[], &[]));
    rig.carrier.is_full_of_large = false;
    look(&mut rig);
    assert_eq!(replied(&mut rig), [(1, 0), (4, 0), (2, 0)], "the last one is another poller's");
    assert!(rig.poller.ledger().budgets.iter().all(|budget| budget.used.is_empty()));
}

/// The peer is told, although the handler has ended.
#[test]
fn a_reply_that_is_not_sent_is_replaced_by_a_refusal() {
    let causes = [
        (PeerDown::NotRegistered(VerbsError::OutOfResources("keys")), Reason::Overloaded),
        (PeerDown::TooLarge { bytes: LARGE, limit: 9 }, Reason::TooLarge),
    ];
    for (cause, of_cause) in causes {
        let mut rig = Rig::new();
        ask(&mut rig, 1, LARGE);
        let large = rig.carrier.given.pop().expect("it was sent").bytes;
        rig.not_sent(server(), &large[..large.len() - LARGE], cause);
        let (given, header) = sent(&mut rig).pop().expect("a refusal");
        let Header::Reply { call: 1, code, by, .. } = header else { panic!("{header:?}") };
        assert_eq!(code, Code::ResourceExhausted.number());
        assert_eq!(by, By::Node { reason: Some(of_cause), ran: true });
        let text = String::from_utf8_lossy(&given.bytes);
        assert!(text.contains(&cause.to_string()), "{text}");
        assert_eq!((given.toward, given.session), (Toward::Poller(PollerIndex(0)), Some(SessionNumber(1))));
        assert!(given.ordered, "items of its stream, if it had one, come first");
    }
}

/// A session may accept less than was known when the reply began to wait.
#[test]
fn a_waiting_reply_that_is_too_large_after_all_is_replaced_by_a_refusal() {
    let mut rig = rig(1 << 20);
    ask(&mut rig, 1, LARGE);
    rig.carrier.is_full_of_large = false;
    rig.carrier.refuses_large = Some(SendError::TooLarge { bytes: LARGE, limit: 9 });
    look(&mut rig);
    assert_eq!(replied(&mut rig), [(1, Code::ResourceExhausted.number())]);
    assert!(rig.poller.ledger().budgets.iter().all(|budget| budget.used.is_empty()));
}

#[test]
fn replies_that_nobody_waits_for_are_dropped() {
    let mut rig = rig(1 << 20);
    ask(&mut rig, 1, LARGE);
    let short = RequestHeader { time_left_us: 5000, ..request(ECHO, 2) };
    rig.message(server(), frame(Header::Request(short), &[], &[0x5a; LARGE]));
    ask(&mut rig, 3, LARGE);
    rig.message(server(), frame(Header::Cancel { call: 1 }, &[], &[]));
    assert_eq!(rig.poller.sizes().1, 2);
    (0..5).for_each(|_| look(&mut rig));
    assert_eq!(rig.poller.sizes().1, 1);
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!(rig.poller.sizes().1, 0);
    look(&mut rig);
    assert_eq!((replied(&mut rig), rig.poller.next_timer()), (vec![], None));
    assert!(rig.poller.ledger().budgets.iter().all(|budget| budget.used.is_empty()));
}
