//! Charges for decoded arguments, and refusals.

use crate::codec::{Bincode, Coding, EncodeArguments as _};
use crate::node::budgets::Limits;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{ECHO, METHODS, Rig};
use crate::wire::frame::{By, Header, RequestHeader};
use crate::wire::name::MethodName;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{
    Limit, Origin, PeerDown, PeerEvent, PeerKey, PollerIndex, SessionNumber, Upper as _,
};

/// Keeps its arguments, and never ends.
const KEEP: &MethodName = &METHODS[4];
const GREEDY: Origin = peer(1);
const HONEST: Origin = peer(2);
/// The charge for a request of `request` with `TEXTS` texts lies between these, in bytes.
const TEXTS: usize = 4000;
const CHARGED: std::ops::Range<usize> = 24 * TEXTS - 1024..24 * TEXTS + (20 << 10);

/// Returns a peer on a separate host.
const fn peer(host: u8) -> Origin {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), 1);
    Origin { peer: PeerKey::new(address), session: SessionNumber(1), poller: PollerIndex(0) }
}

fn rig() -> Rig {
    // 1,000,125 without what is set aside for hosts that use little.
    let decoded = Limit { per_peer: 256 << 10, in_all: 1_143_000 };
    Rig::with_limits(Limits { decoded, ..Limits::default() })
}

/// Returns a request whose arguments are empty texts.
fn request(call: u64, texts: usize, one_way: bool) -> Vec<u8> {
    let mut encoded = Vec::new();
    (Coding::<Bincode, _>::of(&vec![String::new(); texts]),).encode(&mut encoded).unwrap();
    encode(call, &encoded, one_way)
}

fn encode(call: u64, encoded: &[u8], one_way: bool) -> Vec<u8> {
    let method = if one_way { &METHODS[6] } else { KEEP };
    let header =
        RequestHeader { call, one_way, opens: false, asked: method.into(), time_left_us: 0, metadata: 0 };
    let mut bytes = Vec::new();
    Header::Request(header).emit(u32::try_from(encoded.len()).unwrap(), &mut bytes);
    bytes.extend_from_slice(encoded);
    bytes
}

fn cancel(call: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header::Cancel { call }.emit(0, &mut bytes);
    bytes
}

/// Returns the code, the reason and the text of each refusal since the last time.
fn replies(rig: &mut Rig) -> Vec<(Code, Reason, String)> {
    let given = std::mem::take(&mut rig.carrier.given);
    let parts = |bytes: &[u8]| match Header::parse(bytes).unwrap() {
        // The number of a one-way call's method.
        (Header::Number { .. }, _) => None,
        (Header::Reply { code, by: By::Node { reason: Some(reason), ran: false }, .. }, text) => {
            Some((Code::from_number(code), reason, String::from_utf8_lossy(&bytes[text]).into_owned()))
        }
        other => panic!("{other:?} is no refusal"),
    };
    given.iter().filter_map(|given| parts(&given.bytes)).collect()
}

/// Returns the charge of a peer, after a check that it matches what the handlers hold.
fn charged(rig: &Rig, peer: Origin) -> usize {
    let named = |budget: &BudgetLedger| budget.name == "bytes of decoded arguments";
    let ledger = rig.poller.ledger().budgets.into_iter().find(named).unwrap();
    assert_eq!(ledger.used, ledger.counted);
    ledger.used.get(&peer.peer).copied().unwrap_or_default()
}

#[test]
fn a_peer_at_its_budget_of_arguments_leaves_the_rest_to_others() {
    let mut rig = rig();
    for call in [1, 2, 3] {
        rig.message(GREEDY, request(call, TEXTS, false));
    }
    let refused = replies(&mut rig);
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].0, refused[0].1), (Code::ResourceExhausted, Reason::Overloaded));
    let text = "one peer's budget of bytes of decoded arguments (262144) is used up (setting decoded_bytes of the \
                server)";
    assert!(refused[0].2.contains(text), "{refused:?}");
    assert_eq!(rig.poller.sizes().1, 2);
    let held = charged(&rig, GREEDY);
    assert!((2 * CHARGED.start..2 * CHARGED.end).contains(&held), "{held}");
    // A one-way call is dropped.
    rig.message(GREEDY, request(4, TEXTS, true));
    assert_eq!((rig.poller.sizes().1, replies(&mut rig).len(), charged(&rig, GREEDY)), (2, 0, held));
    // Another peer goes on, and the same one when a handler of it has ended.
    rig.message(HONEST, request(1, TEXTS, false));
    rig.message(GREEDY, cancel(1));
    assert!(CHARGED.contains(&charged(&rig, GREEDY)));
    rig.message(GREEDY, request(5, TEXTS, true));
    assert_eq!((rig.poller.sizes().1, replies(&mut rig).len(), charged(&rig, GREEDY)), (3, 0, held));
    // Its calls end with it, its one-way calls do not.
    rig.peer(GREEDY.peer, PeerEvent::Down { cause: PeerDown::Died });
    assert!(CHARGED.contains(&charged(&rig, GREEDY)));
    assert!(CHARGED.contains(&charged(&rig, HONEST)));
}

#[test]
fn all_peers_together_have_a_limit_too() {
    let mut rig = rig();
    for number in 0..5 {
        for call in 0..2 {
            rig.message(peer(number), request(call, TEXTS, false));
        }
    }
    assert_eq!(replies(&mut rig), []);
    rig.message(peer(6), request(0, TEXTS, false));
    let refused = replies(&mut rig);
    assert!(
        refused[0].2.contains("all peers' budget of bytes of decoded arguments (1143000)"),
        "{refused:?}"
    );
}

#[test]
fn arguments_that_can_never_fit_are_refused_as_such() {
    let mut rig = rig();
    rig.message(HONEST, request(1, 20_000, false));
    let refused = replies(&mut rig);
    assert_eq!((refused[0].0, refused[0].1), (Code::ResourceExhausted, Reason::TooLarge));
    let text = "they alone exceed one peer's budget of bytes of decoded arguments (262144, setting decoded_bytes of the \
                server)";
    assert!(refused[0].2.contains(text), "{refused:?}");
    assert_eq!(charged(&rig, HONEST), 0);
}

#[test]
fn small_arguments_and_those_that_do_not_decode_are_not_charged() {
    let mut rig = rig();
    rig.message(HONEST, request(1, 30, false));
    assert_eq!((rig.poller.sizes().1, charged(&rig, HONEST)), (1, 0));
    // The last text is missing.
    let whole = request(2, TEXTS, false);
    let encoded = &whole[48..whole.len() - 1];
    rig.message(HONEST, encode(2, encoded, false));
    let refused = replies(&mut rig);
    assert_eq!((refused[0].0, charged(&rig, HONEST)), (Code::InvalidArgument, 0), "{refused:?}");
    // Bytes that are passed on unchanged are not charged either.
    let header = RequestHeader {
        call: 3,
        one_way: false,
        opens: false,
        asked: ECHO.into(),
        time_left_us: 0,
        metadata: 0,
    };
    let mut bytes = Vec::new();
    Header::Request(header).emit(0, &mut bytes);
    bytes.resize(600_000, 7);
    rig.message(HONEST, bytes);
    assert_eq!((rig.carrier.given.len(), charged(&rig, HONEST)), (1, 0));
}
