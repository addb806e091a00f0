//! The ring compared with a `VecDeque`. Loom models in the crate check it with two threads.

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;

    use proptest::prelude::*;
    use trunkline_machine::rings::spsc;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u16),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![any::<u16>().prop_map(Step::Push), Just(Step::Pop),];
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
        fn behaves_like_bounded_vec_deque(capacity in 0_usize..9, steps in steps()) {
            let (mut producer, mut consumer) = spsc::ring(capacity);
            let capacity = capacity.max(1).next_power_of_two();
            prop_assert_eq!(producer.capacity(), capacity);
            let mut oracle = VecDeque::new();
            // The items are counted, so that a missing or duplicate drop is detected below.
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
                }
                prop_assert_eq!(producer.len(), oracle.len());
                prop_assert_eq!(consumer.len(), oracle.len());
                prop_assert_eq!(producer.is_empty(), oracle.is_empty());
                prop_assert_eq!(consumer.is_empty(), oracle.is_empty());
                prop_assert_eq!(Rc::strong_count(&alive), oracle.len() + 1);
            }
            drop(producer);
            prop_assert_eq!(Rc::strong_count(&alive), oracle.len() + 1);
            drop(consumer);
            prop_assert_eq!(Rc::strong_count(&alive), 1);
        }
    }
}
