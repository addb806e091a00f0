//! The completion cell on plain threads, with reuse.

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread;

    use trunkline_machine::rings::cell::{self, Closed};
    use trunkline_machine::rings::spsc;

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    #[test]
    fn each_half_reports_that_the_other_was_dropped() {
        let (setter, mut getter) = cell::pair();
        assert_eq!(getter.try_take(), None);
        assert!(!setter.is_abandoned());
        setter.set(3).unwrap();
        assert_eq!(getter.try_take(), Some(Ok(3)));
        assert_eq!(getter.try_take(), Some(Err(Closed)));

        let (setter, mut getter) = cell::pair::<u8>();
        drop(setter);
        assert_eq!(getter.try_take(), Some(Err(Closed)));

        let (setter, getter) = cell::pair();
        drop(getter);
        assert!(setter.is_abandoned());
        assert_eq!(setter.set("not wanted"), Err("not wanted"));
    }

    #[test]
    fn a_dropped_getter_leaves_no_waker_and_no_value() {
        let waking = Arc::new(Unpark(thread::current()));
        let waker = Waker::from(Arc::clone(&waking));
        let value = Arc::new(());
        let (setter, mut getter) = cell::pair::<Arc<()>>();
        assert!(Pin::new(&mut getter).poll(&mut Context::from_waker(&waker)).is_pending());
        drop((getter, waker));
        assert_eq!(Arc::strong_count(&waking), 1, "the waker went with the getter");
        drop(setter);

        let (setter, getter) = cell::pair();
        setter.set(Arc::clone(&value)).unwrap();
        drop(getter);
        assert_eq!(Arc::strong_count(&value), 1, "the value went with the getter");
    }

    #[test]
    fn a_cell_is_reused_after_its_setter_is_dropped_without_old_state() {
        let (setter, getter) = cell::pair();
        setter.set(1).unwrap();
        let (setter, mut getter) = getter.rest().expect("its cell").pair().expect("nobody has the cell");
        assert_eq!(getter.try_take(), None, "the outcome of the first round is gone");
        assert!(!setter.is_abandoned());

        let resting = getter.rest().expect("its cell").pair().expect_err("the setter is still there");
        assert!(setter.is_abandoned());
        drop(setter);
        let (_setter, mut getter) = resting.pair().expect("nobody has the cell");
        assert_eq!(getter.try_take(), None);
    }

    #[test]
    fn reused_cells_carry_values_between_threads() {
        let calls: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let (mut requests, mut server) = spsc::ring::<(u64, cell::Setter<u64>)>(8);
        let serving = thread::spawn(move || {
            let mut served = 0;
            while served < calls {
                served += 1;
                match server.pop() {
                    // Every seventh call gets no value, every third waits until the getter sleeps or is about
                    // to.
                    Some((call, setter)) if call % 7 == 0 => drop(setter),
                    Some((call, setter)) => {
                        if call % 3 == 0 {
                            thread::yield_now();
                        }
                        setter.set(call * 2).unwrap();
                    }
                    None => {
                        served -= 1;
                        thread::yield_now();
                    }
                }
            }
        });
        let mut resting = None;
        for call in 0..calls {
            let (setter, mut getter) =
                resting.take().and_then(|cell: cell::Resting<_>| cell.pair().ok()).unwrap_or_else(cell::pair);
            requests.push((call, setter)).unwrap();
            let outcome = block_on(&mut getter);
            assert_eq!(outcome, if call % 7 == 0 { Err(Closed) } else { Ok(call * 2) });
            resting = getter.rest();
        }
        serving.join().unwrap();
    }
}
