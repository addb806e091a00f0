//! Loom models of the data that shards share: the word of a shard, keys that are read without a lock,
//! crossing rings and lent receives.
//!
//! Run by `cargo test`. As in [`crate::rings::models`], models are small, with up to two preemptions.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

use crate::rings::crossing::{Crossing, Sent};
use crate::rings::keyed::Keyed;
use crate::rings::lending::{Lending, Stock};
use crate::rings::owned::Owned;
use crate::rings::readers::{Reader, Readers};

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

#[test]
fn shard_has_one_owner_at_a_time_and_waiters_enter_in_turn() {
    model(|| {
        let shard = Arc::new(Owned::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shard = Arc::clone(&shard);
                thread::spawn(move || *shard.enter() += 1)
            })
            .collect();
        let polled = shard.try_enter().map(|mut turn| *turn += 1).is_some();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(*shard.enter(), 2 + i32::from(polled));
        assert!(shard.try_enter().is_some(), "nobody holds it");
    });
}

/// Memory that a key refers to.
struct Region(AtomicBool);

#[test]
fn key_is_not_used_after_its_removal() {
    model(|| {
        let readers = Readers::new();
        let keys = Arc::new(Keyed::new(&readers));
        let region = Arc::new(Region(AtomicBool::new(true)));
        keys.insert(7, Arc::clone(&region));
        let mut reader = Reader::new(&readers);
        let theirs = Arc::clone(&keys);
        let shard = thread::spawn(move || {
            for _ in 0..2 {
                let reading = reader.enter();
                if let Some(found) = theirs.get(&reading, 7) {
                    assert!(found.0.load(Ordering::Relaxed), "a key was used after deregistration");
                }
            }
        });
        drop(keys.remove(7));
        // The program frees the memory after the removal.
        region.0.store(false, Ordering::Relaxed);
        shard.join().unwrap();
    });
}

#[test]
fn keys_are_found_while_table_grows() {
    model(|| {
        let readers = Readers::new();
        let keys = Arc::new(Keyed::new(&readers));
        keys.insert(1, 10);
        let mut reader = Reader::new(&readers);
        let theirs = Arc::clone(&keys);
        let shard = thread::spawn(move || {
            let reading = reader.enter();
            assert_eq!(theirs.get(&reading, 1), Some(&10));
            assert!(matches!(theirs.get(&reading, 2), None | Some(20)));
        });
        keys.insert(2, 20);
        shard.join().unwrap();
        assert_eq!(keys.keys(), [1, 2]);
    });
}

#[test]
fn crossing_item_is_seen_or_notified() {
    model(|| {
        let crossing = Arc::new(Crossing::new(2));
        // Number of notifications that were sent or are being sent.
        let notified = Arc::new(AtomicUsize::new(0));
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                let (crossing, notified) = (Arc::clone(&crossing), Arc::clone(&notified));
                thread::spawn(move || match crossing.send(sender, sender) {
                    Sent::Notify => drop(notified.fetch_add(1, Ordering::Release)),
                    Sent::Quietly => {}
                    Sent::Full(_) => panic!("there is room"),
                })
            })
            .collect();
        let mut seen = 0;
        let look = |seen: &mut usize| crossing.receive(9, |_, _| *seen += 1);
        look(&mut seen);
        let came_before = crossing.listen();
        if came_before {
            look(&mut seen);
        }
        // The receiver sleeps now, so there is a notification for each item that it has not seen.
        for sender in senders {
            sender.join().unwrap();
        }
        assert!(seen + notified.load(Ordering::Acquire) >= 2, "a crossing was not notified of");
        crossing.ignore();
        look(&mut seen);
        assert_eq!(seen, 2);
    });
}

#[test]
fn crossing_items_arrive_in_order_despite_lack_of_room() {
    model(|| {
        let crossing = Arc::new(Crossing::new(2));
        let theirs = Arc::clone(&crossing);
        let sender = thread::spawn(move || {
            for item in 0..2 {
                assert_eq!(theirs.send(0, item), Sent::Quietly);
            }
        });
        let mut seen = Vec::new();
        // One item at a time, as with a CQ that is nearly full.
        for _ in 0..2 {
            crossing.receive(1, |_, item| seen.push(item));
        }
        sender.join().unwrap();
        crossing.receive(9, |_, item| seen.push(item));
        assert_eq!(seen, [0, 1]);
    });
}

impl Stock for Vec<u32> {
    fn len(&self) -> usize {
        self.len()
    }

    fn shift(&mut self, into: &mut Self, most: usize) {
        let most = most.min(self.len());
        into.extend(self.drain(..most));
    }

    fn small(&self, _room: usize) -> Self {
        Self::new()
    }
}

fn take(stock: &mut Vec<u32>) -> Option<u32> {
    (!stock.is_empty()).then(|| stock.remove(0))
}

#[test]
fn lent_receives_are_taken_once_and_not_refused_while_available() {
    model(|| {
        // The first take of a borrower borrows two more.
        let lending = Arc::new(Lending::new((0..18).collect::<Vec<u32>>(), 2));
        let taken_first = lending.take(Some(0), take, |_| {});
        lending.with_home(|home| home.truncate(1));
        // Two items are lent and one is at home, so there are three items for three takes.
        let theirs = Arc::clone(&lending);
        let other =
            thread::spawn(move || [theirs.take(Some(1), take, |_| {}), theirs.take(Some(1), take, |_| {})]);
        let own = lending.take(Some(0), take, |_| {});
        let mut all: Vec<u32> =
            other.join().unwrap().into_iter().chain([own, taken_first]).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3], "a receive was refused, lost or given twice");
        assert!(lending.is_empty());
    });
}

#[test]
fn exact_stock_does_not_lend_receives() {
    model(|| {
        let lending = Arc::new(Lending::new((0..18).collect::<Vec<u32>>(), 2));
        lending.take(Some(0), take, |_| {});
        let theirs = Arc::clone(&lending);
        let other = thread::spawn(move || theirs.take(Some(0), take, |_| {}).is_some());
        lending.home().keep_home(true);
        assert!(other.join().unwrap());
        // 18 items minus the two taken, all at home whatever the order of the threads.
        let mut home = lending.home();
        assert_eq!(home.stock().len(), 16);
        drop(home);
        let mut counted = 0;
        lending.take(Some(0), take, |home| counted = home.stock().len());
        assert_eq!(counted, 15);
    });
}
