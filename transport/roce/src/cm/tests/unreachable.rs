//! Reports that a request was not delivered.

use super::network::{A, B, Network, address, connect_to, milliseconds, question_to};
use crate::cm::{Ask, CmMachine, Connect, Event, Transport, UnreachableReport};
use crate::wire::Attribute;
use trunkline_verbs::UnreachableCause;

fn report(transaction: Option<u64>, cause: UnreachableCause) -> UnreachableReport {
    UnreachableReport { from: address(A), to: address(B), transaction, cause }
}

/// Returns the transaction id of A's latest connection or SIDR request.
fn transaction(machine: &CmMachine, id: crate::cm::ConnectionId) -> u64 {
    machine.agent | u64::from(id.0)
}

#[test]
fn unreachable_report_quoting_request_ends_request_at_once() {
    let mut network = Network::losing(Attribute::REQ, u32::MAX);
    let [first, second] = [0x17, 0x18].map(|qpn| network.connect(Transport::Xrc, qpn));
    let now = network.now;
    let machine = &mut network.nodes[A].machine;
    let quoted = transaction(machine, first);
    let other = UnreachableReport { to: address(A), ..report(Some(quoted), UnreachableCause::Port) };
    assert!(!machine.expects_unreachable(&other));
    assert!(!machine.handle_unreachable(now, &other), "another address");
    let forged = report(Some(quoted ^ 1 << 40), UnreachableCause::Port);
    assert!(!machine.handle_unreachable(now, &forged), "a guessed transaction");
    assert!(machine.handle_unreachable(now, &report(Some(quoted), UnreachableCause::Port)));
    assert!(!machine.handle_unreachable(now, &report(Some(quoted), UnreachableCause::Port)));
    assert_eq!(machine.poll_event(), Some(Event::Unreachable(first, UnreachableCause::Port)));
    assert_eq!((machine.poll_event(), machine.has_connection(second.0)), (None, true));
    let asked = machine.ask(now, &question_to(B)).unwrap();
    let quoted = transaction(machine, asked);
    assert!(machine.expects_unreachable(&report(Some(quoted), UnreachableCause::Host)));
    assert!(machine.handle_unreachable(now, &report(Some(quoted), UnreachableCause::Host)));
    assert_eq!(machine.poll_event(), Some(Event::Unreachable(asked, UnreachableCause::Host)));
}

#[test]
fn retried_request_outlasts_reports_for_525_ms() {
    let mut network = Network::losing(Attribute::REQ, u32::MAX);
    let now = network.now;
    let machine = &mut network.nodes[A].machine;
    let connect = Connect { retry_refused: true, ..connect_to(B, Transport::Xrc, 0x17) };
    let ask = Ask { retry_refused: true, ..question_to(B) };
    for id in [machine.connect(now, &connect).unwrap(), machine.ask(now, &ask).unwrap()] {
        let quoted = report(Some(transaction(machine, id)), UnreachableCause::Port);
        for after in [1, 75, 225, 525] {
            assert!(machine.handle_unreachable(now + milliseconds(after), &quoted));
            assert_eq!(machine.poll_event(), None, "{after} ms");
        }
        assert!(machine.handle_unreachable(now + milliseconds(526), &quoted));
        assert_eq!(machine.poll_event(), Some(Event::Unreachable(id, UnreachableCause::Port)));
    }
    // The request is repeated at the usual intervals, so a peer that starts meanwhile is reached.
    let mut network = Network::losing(Attribute::REQ, 3);
    let now = network.now;
    let machine = &mut network.nodes[A].machine;
    let id = machine.connect(now, &connect).unwrap();
    let quoted = report(Some(transaction(machine, id)), UnreachableCause::Port);
    assert!(machine.handle_unreachable(now, &quoted));
    network.run(milliseconds(600));
    assert!(network.nodes[A].is_established(id));
}

#[test]
fn report_without_quote_ends_only_requests_without_answer() {
    for (lost, ends) in [(0, false), (2, false), (u32::MAX, true)] {
        let mut network = Network::losing(Attribute::REQ, lost);
        let id = network.connect(Transport::Xrc, 0x17);
        let now = network.now;
        assert!(
            network.nodes[A].machine.handle_unreachable(now, &report(None, UnreachableCause::Prohibited))
        );
        network.run(milliseconds(600));
        let cause = network.nodes[A].events.iter().find_map(|event| match event {
            Event::Unreachable(_, cause) => Some(*cause),
            _ => None,
        });
        assert_eq!(cause, ends.then_some(UnreachableCause::Prohibited));
        assert_eq!(network.nodes[A].is_established(id), !ends);
    }
}

#[test]
fn established_connection_ignores_reports() {
    let mut network = Network::new();
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(50));
    let now = network.now;
    let machine = &mut network.nodes[A].machine;
    for quoted in [None, Some(transaction(machine, id))] {
        assert!(!machine.expects_unreachable(&report(quoted, UnreachableCause::Port)));
        assert!(!machine.handle_unreachable(now, &report(quoted, UnreachableCause::Port)));
    }
    network.run(milliseconds(1_000));
    assert!(network.nodes[A].is_established(id));
}
