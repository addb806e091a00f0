//! The ring between processes, compared with a queue, and with memory of any content on the other side.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use trunkline_machine::rings::shared::{Consumer, LocalArea, PeerArea, Producer, Violation, Wanted, Word};

const CAPACITY: usize = 256;
const LONGEST: usize = 120;

/// Memory of one side.
struct Side {
    words: [Cell<u64>; 3],
    bytes: RefCell<Vec<u8>>,
}

impl Default for Side {
    fn default() -> Self {
        Self { words: Default::default(), bytes: RefCell::new(vec![0; CAPACITY]) }
    }
}

impl LocalArea for Side {
    fn store(&self, word: Word, value: u64) {
        self.words[word as usize].set(value);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl PeerArea for Side {
    fn load(&self, word: Word) -> u64 {
        self.words[word as usize].get()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.borrow()[at..at + into.len()]);
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A message, and the range of its bytes that is written before the others.
    Push(Vec<u8>, [Index; 2]),
    Publish(bool),
    /// Takes a message. The given part of it is copied first.
    Pop(Index),
    Release,
    Park(Wanted),
    Unpark,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (vec(any::<u8>(), 0..=LONGEST), any::<[Index; 2]>())
            .prop_map(|(message, written)| Step::Push(message, written)),
        3 => any::<bool>().prop_map(Step::Publish),
        4 => any::<Index>().prop_map(Step::Pop),
        2 => Just(Step::Release),
        1 => any::<bool>().prop_map(|all| Step::Park(if all { Wanted::All } else { Wanted::Urgent })),
        1 => Just(Step::Unpark),
    ]
}

proptest! {
    /// Published messages arrive once, in order and complete; the messages fit in the ring; a sleeping
    /// receiver is woken.
    #[test]
    fn ring_matches_queue(steps in vec(step(), 0..400)) {
        let (sender, receiver) = (Side::default(), Side::default());
        let (mut producer, mut consumer) = (Producer::new(CAPACITY), Consumer::new(CAPACITY));
        let (mut pushed, mut published) = (VecDeque::new(), VecDeque::new());
        // Messages that may wake the sleeper, and true if an urgent message has arrived.
        let (mut sleeps_for, mut has_urgent, mut out) = (None, false, Vec::new());
        for step in steps {
            match step {
                Step::Push(message, written) => {
                    if producer.has_room(&receiver, message.len()) == Ok(true) {
                        let [from, to] = written.map(|index| index.index(message.len() + 1));
                        let (head, rest) = message.split_at(from.min(to));
                        let (middle, tail) = rest.split_at(from.abs_diff(to));
                        let ranges = producer.ranges(head.len(), middle.len());
                        let (first, second) = middle.split_at(ranges[0].len());
                        sender.write(ranges[0].start, first);
                        sender.write(ranges[1].start, second);
                        producer.push(&sender, head, middle.len(), tail);
                        pushed.push_back(message);
                    }
                    let bytes: usize =
                        pushed.iter().chain(&published).map(|message| 8 + message.len().next_multiple_of(8)).sum();
                    prop_assert!(bytes <= CAPACITY);
                }
                Step::Publish(is_urgent) => {
                    has_urgent |= is_urgent && !pushed.is_empty();
                    if producer.publish(&sender, &receiver, is_urgent) {
                        sleeps_for = None;
                    }
                    published.append(&mut pushed);
                }
                Step::Pop(most) => {
                    let most = most.index(LONGEST);
                    let popped = consumer.pop(&sender, LONGEST, most, &mut out).unwrap().map(|length| {
                        let rest = length.saturating_sub(most);
                        let ranges = consumer.ranges(length - rest, rest);
                        let parts = ranges.map(|range| sender.bytes.borrow()[range].to_vec());
                        [&out[..length - rest], &parts[0], &parts[1]].concat()
                    });
                    prop_assert_eq!(popped, published.pop_front());
                }
                Step::Release => consumer.release(&receiver),
                Step::Park(wanted) => {
                    let was_parked = consumer.is_parked();
                    let parks = consumer.park(&receiver, &sender, wanted);
                    if !was_parked {
                        prop_assert_eq!(parks, published.is_empty());
                        (sleeps_for, has_urgent) = (parks.then_some(wanted), false);
                    } else if sleeps_for == Some(Wanted::Urgent) && wanted == Wanted::All {
                        prop_assert_eq!(parks, published.is_empty());
                        sleeps_for = parks.then_some(wanted);
                    }
                }
                Step::Unpark => {
                    consumer.unpark(&receiver);
                    sleeps_for = None;
                }
            }
            let is_left = match sleeps_for {
                None => false,
                Some(Wanted::All) => !published.is_empty(),
                Some(Wanted::Urgent) => has_urgent,
            };
            prop_assert!(!is_left, "a sleeper is left with a message");
        }
    }

    /// With any content of the other side's memory, no call panics, reads out of bounds, or returns a message
    /// that is too long.
    #[test]
    fn any_memory_is_safe_to_read(
        rounds in vec((any::<[u64; 3]>(), vec(any::<u8>(), CAPACITY), 0_u64..400), 1..20),
    ) {
        let (local, peer) = (Side::default(), Side::default());
        let (mut producer, mut consumer) = (Producer::new(CAPACITY), Consumer::new(CAPACITY));
        let mut out = Vec::new();
        for (words, bytes, ahead) in rounds {
            for (word, value) in peer.words.iter().zip(words) {
                word.set(value);
            }
            // Use values near the previous one too, because distant values are detected immediately.
            peer.words[Word::Produced as usize].set(if words[0] % 2 == 0 { ahead & !7 } else { words[0] });
            *peer.bytes.borrow_mut() = bytes;
            while let Ok(Some(length)) = consumer.pop(&peer, LONGEST, 16, &mut out) {
                prop_assert!(length <= LONGEST);
                let ranges = consumer.ranges(0, length);
                prop_assert!(ranges.iter().all(|range| range.end <= CAPACITY));
            }
            consumer.release(&local);
            let _ = consumer.park(&local, &peer, Wanted::All);
            if producer.has_room(&peer, 40) == Ok(true) {
                producer.push(&local, &[1; 40], 0, &[]);
            }
            let _ = producer.publish(&local, &peer, true);
        }
    }
}

#[test]
fn impossible_positions_are_refused() {
    let (local, peer) = (Side::default(), Side::default());
    let mut out = Vec::new();
    for produced in [264, u64::MAX, u64::MAX - 7, 12] {
        peer.store(Word::Produced, produced);
        assert_eq!(
            Consumer::new(CAPACITY).pop(&peer, LONGEST, LONGEST, &mut out),
            Err(Violation),
            "{produced}"
        );
    }
    peer.store(Word::Produced, 64);
    for length in [57_u64, 121, 1 << 40, u64::MAX] {
        peer.write(0, &length.to_le_bytes());
        assert_eq!(
            Consumer::new(CAPACITY).pop(&peer, LONGEST, LONGEST, &mut out),
            Err(Violation),
            "{length}"
        );
    }
    let mut producer = Producer::new(CAPACITY);
    for _ in 0..2 {
        assert_eq!(producer.has_room(&peer, LONGEST), Ok(true));
        producer.push(&local, &[7; LONGEST], 0, &[]);
    }
    assert_eq!(producer.has_room(&peer, LONGEST), Ok(false), "full");
    peer.store(Word::Consumed, 300);
    assert_eq!(producer.has_room(&peer, LONGEST), Err(Violation), "more than there was");
    peer.store(Word::Consumed, 128);
    assert_eq!(producer.has_room(&peer, LONGEST), Ok(true));
}

#[test]
fn lost_wake_up_is_repeated_by_next_message() {
    let (sender, receiver) = (Side::default(), Side::default());
    let (mut producer, mut consumer) = (Producer::new(CAPACITY), Consumer::new(CAPACITY));
    assert!(consumer.park(&receiver, &sender, Wanted::All));
    let send = |producer: &mut Producer| {
        assert_eq!(producer.has_room(&receiver, 8), Ok(true));
        producer.push(&sender, &[1; 8], 0, &[]);
        producer.publish(&sender, &receiver, true)
    };
    assert!(send(&mut producer));
    assert!(!send(&mut producer), "it was woken");
    producer.was_not_woken();
    assert!(send(&mut producer), "it was not");
    assert!(!send(&mut producer));
}

#[test]
fn only_urgent_message_wakes_urgent_receiver() {
    let (sender, receiver) = (Side::default(), Side::default());
    let (mut producer, mut consumer) = (Producer::new(CAPACITY), Consumer::new(CAPACITY));
    let mut send = |is_urgent| {
        assert_eq!(producer.has_room(&receiver, 8), Ok(true));
        producer.push(&sender, &[1; 8], 0, &[]);
        producer.publish(&sender, &receiver, is_urgent)
    };
    assert!(consumer.park(&receiver, &sender, Wanted::Urgent));
    assert!(!send(false));
    assert!(consumer.park(&receiver, &sender, Wanted::Urgent), "it still waits for urgent ones only");
    assert!(!consumer.park(&receiver, &sender, Wanted::All), "a message is there");
    assert!(!send(true), "it polls");
    let mut out = Vec::new();
    while matches!(consumer.pop(&sender, 8, 8, &mut out), Ok(Some(_))) {}
    assert!(consumer.park(&receiver, &sender, Wanted::Urgent));
    assert!(!send(false) && send(true) && !send(true));
}
