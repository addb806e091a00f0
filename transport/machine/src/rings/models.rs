//! Loom models, which run all interleavings of two or three threads on each part, with up to two preemptions.
//!
//! Run by `cargo test`. A model must stay small: two slots, two or three items, a few seconds at most. loom reports a lost
//! wake-up as a deadlock, a torn hand-over as a causality violation of its cells, and a leak as an `Arc` that outlives the
//! model.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::task::Wake;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use loom::thread;

use crate::rings::cell::{self, Closed};
use crate::rings::doorbell::Doorbell;
use crate::rings::handover::{Duty, Handover};
use crate::rings::published::Published;
use crate::rings::shared::{Consumer, LocalArea, PeerArea, Producer, Wanted, Word};
use crate::rings::spsc;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

/// A model of an eventfd. A wait returns if there was a write after the previous wait.
#[derive(Default)]
struct EventFd {
    written: loom::sync::Mutex<bool>,
    changed: loom::sync::Condvar,
}

impl EventFd {
    fn write(&self) {
        *self.written.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut written = self.written.lock().unwrap();
        while !*written {
            written = self.changed.wait(written).unwrap();
        }
        *written = false;
    }
}

impl Wake for EventFd {
    fn wake(self: std::sync::Arc<Self>) {
        self.write();
    }
}

/// Polls `future` until it is ready, and sleeps between polls, so that a missing wake-up is a deadlock.
fn block_on<F: Future>(future: F) -> F::Output {
    let event = std::sync::Arc::new(EventFd::default());
    let waker = Waker::from(std::sync::Arc::clone(&event));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        event.wait();
    }
}

#[test]
fn spsc_keeps_order_through_full_and_empty() {
    model(|| {
        let (mut producer, mut consumer) = spsc::ring(2);
        let pushing = thread::spawn(move || {
            for item in 0..3 {
                let mut item = Box::new(item);
                while let Err(back) = producer.push(item) {
                    item = back;
                    thread::yield_now();
                }
            }
        });
        for expected in 0..3 {
            let item = loop {
                match consumer.pop() {
                    Some(item) => break item,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*item, expected);
        }
        pushing.join().unwrap();
        assert!(consumer.pop().is_none());
    });
}

#[test]
fn spsc_frees_items_left_in_ring() {
    model(|| {
        let (mut producer, mut consumer) = spsc::ring(2);
        // loom reports an `Arc` that outlives the model.
        let pushing = thread::spawn(move || {
            producer.push(Arc::new(1)).unwrap();
            producer.push(Arc::new(2)).unwrap();
        });
        drop(consumer.pop());
        drop(consumer);
        pushing.join().unwrap();
    });
}

/// Waits, as the sleeper, for `items` items from other threads. Returns the number of writes to the eventfd.
fn sleep_until(items: usize, bell: &Doorbell, queue: &AtomicUsize, event: &EventFd) {
    loop {
        if queue.load(Ordering::Relaxed) == items {
            return;
        }
        bell.prepare();
        if queue.load(Ordering::Relaxed) == items {
            bell.woken();
            return;
        }
        event.wait();
        bell.woken();
    }
}

#[test]
fn doorbell_does_not_lose_wake_up() {
    model(|| {
        // The queue is relaxed on purpose, so that only the doorbell's fences make the work and the sleep
        // visible to each other.
        let shared = Arc::new((Doorbell::new(), AtomicUsize::new(0), EventFd::default()));
        let peer = Arc::clone(&shared);
        let ringer = thread::spawn(move || {
            let (bell, queue, event) = &*peer;
            for _ in 0..2 {
                queue.fetch_add(1, Ordering::Relaxed);
                if bell.ring() {
                    event.write();
                }
            }
        });
        let (bell, queue, event) = &*shared;
        sleep_until(2, bell, queue, event);
        ringer.join().unwrap();
    });
}

#[test]
fn doorbell_wakes_consumer_of_ring() {
    model(|| {
        let (mut producer, mut consumer) = spsc::ring(2);
        let shared = Arc::new((Doorbell::new(), EventFd::default()));
        let peer = Arc::clone(&shared);
        let ringer = thread::spawn(move || {
            let (bell, event) = &*peer;
            producer.push(1).unwrap();
            if bell.ring() {
                event.write();
            }
        });
        let (bell, event) = &*shared;
        while consumer.pop().is_none() {
            bell.prepare();
            if consumer.is_empty() {
                event.wait();
                bell.woken();
            } else {
                bell.woken();
            }
        }
        ringer.join().unwrap();
    });
}

#[test]
fn doorbell_chooses_one_of_many_ringers() {
    model(|| {
        let bell = Arc::new(Doorbell::new());
        let told = Arc::new(AtomicUsize::new(0));
        bell.prepare();
        let ringers: Vec<_> = (0..2)
            .map(|_| {
                let (bell, told) = (Arc::clone(&bell), Arc::clone(&told));
                thread::spawn(move || {
                    if bell.ring() {
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let rung = bell.woken();
        for ringer in ringers {
            ringer.join().unwrap();
        }
        assert_eq!(told.load(Ordering::Relaxed), usize::from(rung));
    });
}

#[test]
fn cell_wakes_its_future() {
    model(|| {
        let (setter, getter) = cell::pair();
        let answering = thread::spawn(move || setter.set(Box::new(5)).unwrap());
        assert_eq!(block_on(getter), Ok(Box::new(5)));
        answering.join().unwrap();
    });
}

#[test]
fn cell_wakes_last_registered_waker() {
    model(|| {
        let (setter, mut getter) = cell::pair();
        let answering = thread::spawn(move || setter.set(5).unwrap());
        // The first poll leaves a waker on which nothing waits. Only the waker of the second poll counts.
        let first = core::pin::Pin::new(&mut getter).poll(&mut Context::from_waker(Waker::noop()));
        let outcome = if let Poll::Ready(outcome) = first { outcome } else { block_on(&mut getter) };
        assert_eq!(outcome, Ok(5));
        assert_eq!(getter.try_take(), Some(Err(Closed)));
        answering.join().unwrap();
    });
}

/// A waker whose drop panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: std::sync::Arc<Self>) {}
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "on purpose");
    }
}

#[test]
fn cell_value_is_dropped_once_despite_panic_in_waker_drop() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    std::panic::set_hook(Box::new(|_expected| {}));
    model(|| {
        let (setter, mut getter) = cell::pair();
        let waker = Waker::from(std::sync::Arc::new(Bomb));
        let polled = core::pin::Pin::new(&mut getter).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // The cell holds the last reference to the waker.
        drop(waker);
        let answering = thread::spawn(move || {
            // The setter takes the waker, or gets its value back.
            let _panicked = catch_unwind(AssertUnwindSafe(|| setter.set(Box::new(5))));
        });
        let _panicked = catch_unwind(AssertUnwindSafe(|| drop(getter.rest())));
        answering.join().unwrap();
    });
    let _quiet = std::panic::take_hook();
}

/// A waker that panics when it is woken.
struct Rude;

impl Wake for Rude {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("on purpose");
    }
}

#[test]
fn cell_is_completed_despite_panicking_wake() {
    std::panic::set_hook(Box::new(|_expected| {}));
    model(|| {
        let (setter, mut getter) = cell::pair();
        let waker = Waker::from(std::sync::Arc::new(Rude));
        let polled = core::pin::Pin::new(&mut getter).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let answering = thread::spawn(move || setter.set(5));
        assert_eq!(answering.join().unwrap(), Ok(()));
        assert_eq!(getter.try_take(), Some(Ok(5)));
    });
    let _quiet = std::panic::take_hook();
}

#[test]
fn cell_reports_dropped_setter() {
    model(|| {
        let (setter, getter) = cell::pair::<u32>();
        let leaving = thread::spawn(move || drop(setter));
        assert_eq!(block_on(getter), Err(Closed));
        leaving.join().unwrap();
    });
}

#[test]
fn cell_value_ends_on_exactly_one_side() {
    model(|| {
        let (setter, mut getter) = cell::pair();
        let value = Arc::new(1);
        let sent = Arc::clone(&value);
        let answering = thread::spawn(move || setter.set(sent).is_ok());
        let first = core::pin::Pin::new(&mut getter).poll(&mut Context::from_waker(Waker::noop()));
        drop(getter);
        let accepted = answering.join().unwrap();
        assert!(accepted || first.is_pending(), "a value that was taken cannot have been given back");
        drop(first);
        // The value was dropped exactly once, on either side.
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

#[test]
fn abandoned_setter_sees_superseded_getter() {
    model(|| {
        let (setter, getter) = cell::pair::<u32>();
        let leaving = thread::spawn(move || getter.supersede());
        assert!(!setter.is_abandoned() || setter.is_superseded());
        leaving.join().unwrap();
        assert!(setter.is_superseded() && setter.set(1) == Err(1));
        let (setter, getter) = cell::pair::<u32>();
        drop(getter);
        assert!(setter.is_abandoned() && !setter.is_superseded());
    });
}

#[test]
fn cell_is_reused_only_after_both_halves_are_done() {
    model(|| {
        let (setter, mut getter) = cell::pair();
        let answering = thread::spawn(move || setter.set(1));
        let _ = core::pin::Pin::new(&mut getter).poll(&mut Context::from_waker(Waker::noop()));
        let resting = getter.rest().expect("its cell");
        // The first setter may be at any point of `set`. It must not affect the second round.
        let (setter, mut getter) = resting.pair().unwrap_or_else(|_| cell::pair());
        assert_eq!(getter.try_take(), None);
        setter.set(2).unwrap();
        assert_eq!(getter.try_take(), Some(Ok(2)));
        let _ = answering.join().unwrap();
    });
}

/// Runs the background thread as the device does. The thread checks again after `Leave`, and after `TakeOver` only when
/// woken. Returns when the thread has the duty and `pollers_done` is set.
fn background(word: &Handover, event: &EventFd, pollers_done: &AtomicUsize) {
    loop {
        if word.background_check(|| false) == Duty::Leave {
            thread::yield_now();
            continue;
        }
        fence(Ordering::SeqCst);
        if pollers_done.load(Ordering::Acquire) == 0 {
            event.wait();
        } else if word.is_background() {
            return;
        }
    }
}

/// Runs `poll` beside a background thread that sleeps without a tick when it has the duty. The model
/// deadlocks if neither has the duty.
fn hand_over_model(poll: fn(&Handover, &EventFd)) {
    model(move || {
        let shared = Arc::new((Handover::new(), EventFd::default(), AtomicUsize::new(0)));
        let peer = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (word, event, done) = &*peer;
            background(word, event, done);
        });
        let (word, event, done) = &*shared;
        poll(word, event);
        done.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        // Models the next packet or timer, which wakes a background thread that sleeps with the duty. The
        // fences order this check and the last check of the background thread.
        if word.is_background() {
            event.write();
        }
        thread.join().unwrap();
        assert_eq!(word.background_check(|| false), Duty::TakeOver);
    });
}

#[test]
fn handover_relieves_stopping_pollers() {
    hand_over_model(|word, event| {
        for _ in 0..2 {
            if word.poller_entered() {
                event.write();
            }
        }
    });
}

#[test]
fn handover_relieves_arming_pollers() {
    hand_over_model(|word, event| {
        if word.poller_entered() {
            event.write();
        }
        if word.arm() {
            event.write();
        }
    });
}

/// A poller that slept on the device's descriptors may also stop polling after it is woken.
#[test]
fn handover_relieves_watching_pollers() {
    hand_over_model(|word, event| {
        if word.poller_entered() {
            event.write();
        }
        if word.watch() {
            event.write();
        }
    });
}

/// Words of a published value of two words.
#[derive(Default)]
struct Words {
    sequence: AtomicU64,
    buffers: [[AtomicU64; 3]; 2],
}

impl Words {
    fn published(&self) -> Published<'_> {
        Published::new(&self.sequence, [&self.buffers[0], &self.buffers[1]])
    }
}

#[test]
fn published_value_is_never_read_torn() {
    model(|| {
        let words = Arc::new(Words::default());
        assert!(!words.published().load(&mut Vec::new(), 1), "nothing was published yet");
        assert!(words.published().publish(&[1, 1]));
        let writer = Arc::clone(&words);
        let writing = thread::spawn(move || {
            for value in 2..4 {
                assert!(writer.published().publish(&[value, value]));
            }
        });
        let mut seen = Vec::new();
        if words.published().load(&mut seen, 1) {
            assert_eq!(seen.len(), 2);
            assert_eq!(seen[0], seen[1], "words of two publications");
        }
        writing.join().unwrap();
        assert!(words.published().load(&mut seen, 1));
        assert_eq!(seen, [3, 3]);
    });
}

#[test]
fn dead_writer_leaves_previous_value() {
    model(|| {
        let words = Arc::new(Words::default());
        assert!(words.published().publish(&[1, 1]));
        let writer = Arc::clone(&words);
        // The writer dies after it has written one word into the next buffer.
        let dying = thread::spawn(move || {
            fence(Ordering::Release);
            writer.buffers[0][0].store(2, Ordering::Relaxed);
            writer.buffers[0][1].store(2, Ordering::Relaxed);
        });
        let mut seen = Vec::new();
        assert!(words.published().load(&mut seen, 1));
        assert_eq!(seen, [1, 1]);
        dying.join().unwrap();
        assert!(words.published().publish(&[3, 3]), "its successor can publish");
        assert!(words.published().load(&mut seen, 1));
        assert_eq!(seen, [3, 3]);
    });
}

/// One side's memory of a shared ring, with its words and 16 bytes for messages.
#[derive(Default)]
struct Side {
    words: [AtomicU64; 3],
    bytes: [AtomicU64; 2],
}

impl Side {
    fn word(&self, word: Word) -> &AtomicU64 {
        &self.words[word as usize]
    }
}

impl LocalArea for Side {
    fn store(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (index, bytes) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.bytes[at / 8 + index].store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}

impl PeerArea for Side {
    fn load(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (index, bytes) in into.chunks_mut(8).enumerate() {
            let word = self.bytes[at / 8 + index].load(Ordering::Relaxed).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }
}

/// The ring has room for one message, so each message overwrites the previous one.
#[test]
fn shared_ring_delivers_each_message_whole_and_in_order() {
    model(|| {
        let (sender, receiver) = (Arc::new(Side::default()), Arc::new(Side::default()));
        let peer = (Arc::clone(&sender), Arc::clone(&receiver));
        let sending = thread::spawn(move || {
            let (local, peer) = peer;
            let mut ring = Producer::new(16);
            for message in 1_u64..=2 {
                while ring.has_room(&*peer, 8) != Ok(true) {
                    thread::yield_now();
                }
                ring.push(&*local, &message.to_le_bytes(), 0, &[]);
                let _nobody_sleeps = ring.publish(&*local, &*peer, true);
            }
        });
        let (mut ring, mut message) = (Consumer::new(16), Vec::new());
        for expected in 1_u64..=2 {
            while ring.pop(&*sender, 8, 8, &mut message) != Ok(Some(8)) {
                thread::yield_now();
            }
            assert_eq!(message, expected.to_le_bytes());
            ring.release(&*receiver);
        }
        assert_eq!(ring.pop(&*sender, 8, 8, &mut message), Ok(None));
        sending.join().unwrap();
    });
}

#[test]
fn parked_shared_ring_is_woken() {
    for (is_urgent, wanted) in [(true, Wanted::All), (false, Wanted::All), (true, Wanted::Urgent)] {
        wakes_a_parked_shared_ring(is_urgent, wanted);
    }
}

fn wakes_a_parked_shared_ring(is_urgent: bool, wanted: Wanted) {
    model(move || {
        let (sender, receiver) = (Arc::new(Side::default()), Arc::new(Side::default()));
        let wake = Arc::new(EventFd::default());
        let peer = (Arc::clone(&sender), Arc::clone(&receiver), Arc::clone(&wake));
        let sending = thread::spawn(move || {
            let (local, peer, wake) = peer;
            let mut ring = Producer::new(16);
            assert_eq!(ring.has_room(&*peer, 0), Ok(true));
            ring.push(&*local, &[], 0, &[]);
            if ring.publish(&*local, &*peer, is_urgent) {
                wake.write();
            }
        });
        let (mut ring, mut message) = (Consumer::new(16), Vec::new());
        while ring.pop(&*sender, 8, 8, &mut message) != Ok(Some(0)) {
            if ring.park(&*receiver, &*sender, wanted) {
                wake.wait();
                ring.unpark(&*receiver);
            }
        }
        sending.join().unwrap();
    });
}
