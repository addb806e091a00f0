//! Drops and reuse of the completion cell. Loom models in the crate check it with two threads.

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Wake, Waker};
    use std::thread;

    use trunkline_machine::rings::cell::{self, Closed};

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn each_half_reports_drop_of_other_half() {
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
    fn dropped_getter_releases_waker_and_value() {
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
    fn cell_reused_after_setter_drop_has_no_old_state() {
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
}
