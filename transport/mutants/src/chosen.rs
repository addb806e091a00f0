//! The fault that is on in this thread.

use std::cell::{Cell, RefCell};

thread_local! {
    static CHOSEN: RefCell<Option<String>> = const { RefCell::new(None) };
    static REACHED: Cell<bool> = const { Cell::new(false) };
}

/// Switches a fault on for this thread, and all others off; `None` switches all off.
pub fn choose(name: Option<&str>) {
    REACHED.set(false);
    CHOSEN.with(|chosen| *chosen.borrow_mut() = name.map(str::to_owned));
}

/// Returns true if this fault is on.
#[must_use]
pub fn is_chosen(name: &str) -> bool {
    let is_on = CHOSEN.with(|chosen| chosen.borrow().as_deref() == Some(name));
    if is_on {
        REACHED.set(true);
    }
    is_on
}

/// Returns true if the code has asked about the chosen fault since it was chosen. If it never does, a change of
/// the code has removed the place.
#[must_use]
pub fn was_reached() -> bool {
    REACHED.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_is_on_at_a_time_and_reaching_it_is_noted() {
        assert!(!crate::mutant!(first));
        choose(Some("first"));
        assert!(!crate::mutant!(second) && !was_reached());
        assert!(crate::mutant!(first) && was_reached());
        choose(None);
        assert!(!crate::mutant!(first));
    }
}
