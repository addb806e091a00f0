//! The ring against a `VecDeque`, and under two threads that do not wait for each other.

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::thread;

    use proptest::prelude::*;
    use trunkline_rings::spsc;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u16),
        Pop,
        PushBatch(Vec<u16>),
        PopBatch(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => any::<u16>().prop_map(Step::Push),
            3 => Just(Step::Pop),
            1 => prop::collection::vec(any::<u16>(), 0..12).prop_map(Step::PushBatch),
            1 => (0_usize..12).prop_map(Step::PopBatch),
        ];
        prop::collection::vec(step, 0..120)
    }

    fn cases() -> ProptestConfig {
        ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 256 },
            failure_persistence: None,
            ..Default::default()
        }
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn behaves_like_a_bounded_vec_deque(capacity in 0_usize..9, steps in steps()) {
            let (mut producer, mut consumer) = spsc::ring(capacity);
            let capacity = capacity.max(1).next_power_of_two();
            prop_assert_eq!(producer.capacity(), capacity);
            prop_assert_eq!(consumer.capacity(), capacity);
            let mut oracle = VecDeque::new();
            // The items are counted, so that a lost or doubled drop shows below.
            let alive = Rc::new(());
            for step in steps {
                match step {
                    Step::Push(item) => {
                        let pushed = producer.push((item, Rc::clone(&alive)));
                        prop_assert_eq!(pushed.is_ok(), oracle.len() < capacity);
                        if pushed.is_ok() {
                            oracle.push_back(item);
                        }
                    }
                    Step::Pop => prop_assert_eq!(consumer.pop().map(|item| item.0), oracle.pop_front()),
                    Step::PushBatch(items) => {
                        let fits = items.len().min(capacity - oracle.len());
                        let mut rest = items.iter().map(|item| (*item, Rc::clone(&alive)));
                        prop_assert_eq!(producer.push_batch(&mut rest), fits);
                        prop_assert_eq!(rest.len(), items.len() - fits);
                        oracle.extend(&items[..fits]);
                    }
                    Step::PopBatch(limit) => {
                        let mut out = Vec::new();
                        let count = consumer.pop_batch(&mut out, limit);
                        let expected: Vec<_> = oracle.drain(..limit.min(oracle.len())).collect();
                        prop_assert_eq!(count, expected.len());
                        prop_assert_eq!(out.iter().map(|item| item.0).collect::<Vec<_>>(), expected);
                    }
                }
                prop_assert_eq!(producer.len(), oracle.len());
                prop_assert_eq!(consumer.len(), oracle.len());
                prop_assert_eq!(producer.is_empty(), oracle.is_empty());
                prop_assert_eq!(consumer.is_empty(), oracle.is_empty());
                prop_assert_eq!(Rc::strong_count(&alive), oracle.len() + 1);
            }
            drop(producer);
            prop_assert_eq!(Rc::strong_count(&alive), oracle.len() + 1);
            prop_assert!(consumer.is_closed());
            drop(consumer);
            prop_assert_eq!(Rc::strong_count(&alive), 1);
        }
    }

    #[test]
    fn each_half_sees_the_other_leave() {
        let (producer, consumer) = spsc::ring::<u8>(4);
        assert!(!producer.is_closed() && !consumer.is_closed());
        drop(consumer);
        assert!(producer.is_closed());
        let (producer, consumer) = spsc::ring::<u8>(4);
        drop(producer);
        assert!(consumer.is_closed());
    }

    #[test]
    fn an_iterator_that_panics_leaves_what_it_gave() {
        let (mut producer, mut consumer) = spsc::ring(4);
        let item = Arc::new(());
        let mut items =
            (0..3).map(|at| if at == 2 { panic!("the caller's iterator") } else { Arc::clone(&item) });
        let unwound =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| producer.push_batch(&mut items)));
        assert!(unwound.is_err());
        assert_eq!(consumer.len(), 2);
        drop(consumer.pop());
        drop((producer, consumer, items));
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn two_threads_keep_order_and_lose_nothing() {
        let items: u64 = if cfg!(miri) { 200 } else { 200_000 };
        let (mut producer, mut consumer) = spsc::ring(64);
        let pushing = thread::spawn(move || {
            let mut next = 0;
            while next < items {
                // Single pushes and batches take turns; both meet a full ring.
                if next % 3 == 0 {
                    let mut batch = (next..items.min(next + 20)).map(Box::new);
                    next += u64::try_from(producer.push_batch(&mut batch)).unwrap();
                } else if producer.push(Box::new(next)).is_ok() {
                    next += 1;
                }
                if producer.len() == producer.capacity() {
                    thread::yield_now();
                }
            }
        });
        let (mut expected, mut batch) = (0, Vec::new());
        loop {
            let closed = consumer.is_closed();
            let count = if expected % 2 == 0 {
                consumer.pop_batch(&mut batch, 7)
            } else {
                batch.extend(consumer.pop());
                batch.len()
            };
            for item in batch.drain(..) {
                assert_eq!(*item, expected);
                expected += 1;
            }
            if count == 0 {
                if closed {
                    break;
                }
                thread::yield_now();
            }
        }
        assert_eq!(expected, items);
        pushing.join().unwrap();
    }
}
