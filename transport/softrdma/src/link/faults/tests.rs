#![allow(clippy::tests_outside_test_module, reason = "the module is declared cfg(test) by its parent")]

use super::*;
use crate::link::{Hub, Link, ReceiveBatch, Tap};
use std::net::IpAddr;

fn address(last: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::from([127, 0, 0, last]), 4791)
}

/// Returns a faulty link at .1 and a plain one at .2, on a new hub.
fn pair(plan: &str) -> (Tap, Box<dyn Link>) {
    let hub = Hub::new();
    let mut sender = Tap::new(Box::new(hub.link().unwrap()));
    sender.faults = Some(Faults::new(plan.parse().unwrap()));
    let mut receiver: Box<dyn Link> = Box::new(hub.link().unwrap());
    sender.wire.link.open(address(1).ip()).unwrap();
    receiver.open(address(2).ip()).unwrap();
    (sender, receiver)
}

fn drain(receiver: &mut dyn Link) -> Vec<Vec<u8>> {
    let mut batch = ReceiveBatch::new(64);
    let mut all = Vec::new();
    while receiver.receive(&mut batch) > 0 {
        all.extend(batch.iter().map(|datagram| datagram.bytes.to_vec()));
    }
    all
}

/// Sends numbered datagrams, and returns all that arrive.
fn run(plan: &str, count: u32) -> (Vec<Vec<u8>>, Vec<Counter>) {
    let (mut sender, mut receiver) = pair(plan);
    let start = Time(0);
    let mut batch = SendBatch::new();
    for number in 0..count {
        let bytes = number.to_be_bytes();
        batch.push(Datagram { source: address(1), destination: address(2), bytes: &bytes });
        if batch.len() == 50 {
            sender.send(&mut batch, start);
            assert!(batch.is_empty());
        }
    }
    sender.send(&mut batch, start);
    while let Some(due) = sender.next_timeout() {
        sender.poll(due);
    }
    let mut counters = Vec::new();
    sender.counters(&mut counters);
    (drain(&mut *receiver), counters)
}

fn count(counters: &[Counter], name: &str) -> u64 {
    counters.iter().find(|counter| counter.name == name).unwrap().value
}

#[test]
fn equal_seeds_give_equal_faults_and_another_seed_differs() {
    let plan = "drop=0.1,reorder=0.1,duplicate=0.1,corrupt=0.1,seed=";
    let first = run(&format!("{plan}7"), 2000);
    assert_eq!(first, run(&format!("{plan}7"), 2000));
    assert_ne!(first.0, run(&format!("{plan}8"), 2000).0);
    for name in ["fault_dropped", "fault_reordered", "fault_duplicated", "fault_corrupted"] {
        let value = count(&first.1, name);
        assert!((100..=300).contains(&value), "{name} {value} of 2000 at 0.1");
    }
    let arrived = 2000 - count(&first.1, "fault_dropped") + count(&first.1, "fault_duplicated");
    assert_eq!(first.0.len() as u64, arrived, "nothing is held indefinitely");
}

#[test]
fn datagrams_pass_in_order_without_faults() {
    let (arrived, _) = run("seed=3", 500);
    assert_eq!(arrived, (0..500u32).map(|number| number.to_be_bytes().to_vec()).collect::<Vec<_>>());
}

#[test]
fn corruption_flips_one_bit() {
    let (arrived, counters) = run("corrupt=1,seed=1", 200);
    assert_eq!(count(&counters, "fault_corrupted"), 200);
    for (number, bytes) in (0..200u32).zip(arrived) {
        let changed = number ^ u32::from_be_bytes(bytes.try_into().unwrap());
        assert_eq!(changed.count_ones(), 1);
    }
}

#[test]
fn reordered_datagram_moves_by_at_most_eight_places() {
    let (arrived, counters) = run("reorder=0.2,seed=5", 1000);
    assert!(count(&counters, "fault_reordered") > 100);
    let numbers: Vec<u32> =
        arrived.into_iter().map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap())).collect();
    assert!(!numbers.is_sorted());
    for (position, number) in (0u32..).zip(numbers) {
        assert!(position.abs_diff(number) <= 8, "{number} arrived as number {position}");
    }
}

#[test]
fn last_datagram_is_sent_when_its_hold_expires() {
    let (mut sender, mut receiver) = pair("reorder=1,seed=1");
    let start = Time(0);
    let mut batch = SendBatch::new();
    batch.push(Datagram { source: address(1), destination: address(2), bytes: b"last" });
    sender.send(&mut batch, start);
    assert!(drain(&mut *receiver).is_empty());
    let due = sender.next_timeout().unwrap();
    assert!(due <= start + Duration::from_millis(1));
    sender.poll(due);
    assert_eq!(drain(&mut *receiver), [b"last"]);
    assert_eq!(sender.next_timeout(), None);
}

#[test]
fn delayed_datagrams_arrive_on_time_and_in_order() {
    let (mut sender, mut receiver) = pair("delay=5ms");
    let start = Time(0);
    for number in 0..3u8 {
        let mut batch = SendBatch::new();
        batch.push(Datagram { source: address(1), destination: address(2), bytes: &[number] });
        sender.send(&mut batch, start + Duration::from_millis(number.into()));
    }
    sender.poll(start + Duration::from_millis(4));
    assert!(drain(&mut *receiver).is_empty());
    sender.poll(start + Duration::from_millis(6));
    assert_eq!(drain(&mut *receiver), [[0], [1]]);
    assert_eq!(sender.next_timeout(), Some(start + Duration::from_millis(7)));
    sender.poll(start + Duration::from_millis(7));
    assert_eq!(drain(&mut *receiver), [[2]]);
}
