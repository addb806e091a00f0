//! Choice of a deliberate fault, if this program was built with them.

/// Switches a fault on in this thread.
pub(crate) fn choose(name: Option<&str>) {
    #[cfg(feature = "mutants")]
    trunkline_machine::mutants::choose(name);
    #[cfg(not(feature = "mutants"))]
    let _ = name;
}

/// Returns true if this program was built with deliberate faults.
pub(crate) const fn are_built_in() -> bool {
    cfg!(feature = "mutants")
}
