//! Coverage of the contract's items by tests outside this suite, and the reasons why some items are not tested.
//!
//! An item can be in this table, in [`crate::ITEMS`] and in [`crate::PROCESS_ITEMS`]. A test checks that each item is in at
//! least one of them.

/// Coverage of an item outside this suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherCoverage {
    /// A test: the path of its file, relative to the project's root, and the test's name.
    Test(&'static str, &'static str),
    /// Not tested, for this reason: the device does not implement the item, or the item does not apply to a device.
    NotHeld(&'static str),
    /// Not tested, for this reason: the item states a fact about other devices or programs.
    Fact(&'static str),
    /// Covered by the tests of another item, which has this number.
    Same(&'static str),
}

use OtherCoverage::{Fact, NotHeld, Same, Test};

const LEGACY: &str = "transport/softrdma/tests/device/legacy.rs";
/// Checks that need Debian's packages or namespaces.
const LEGACY_IN_C: &str = "deploy/checks/32-legacy-xrc.sh";
const PROGRAMS: &str = "deploy/checks/30-verbs-programs.sh";
const PYVERBS: &str = "deploy/checks/31-pyverbs.sh";
const POLLERS: &str = "transport/tests/nodes/pollers.rs";
const RESPONDER: &str = "transport/roce/src/engine/responder/tests.rs";
const CM_CAPTURED: &str = "transport/roce/src/cm/tests/interop.rs";
const PACKET: &str = "transport/roce/src/wire/packet.rs";
const CM_ENDING: &str = "transport/roce/src/cm/tests/ending.rs";
const REMOVAL: &str = "transport/softrdma/tests/device/removal.rs";
const POLICIES: &str = "transport/softrdma/tests/conformance/links.rs";

/// The tests of the C API. A macro lists them by item.
const IN_C: &str = "transport/dropin/tests/conformance_c.rs";

/// The tests of librdmacm's C functions.
const CM_C: &str = "transport/dropin/tests/cm/endpoints.rs";

/// A test that covers J2 to J6.
const CM_C_XRC: &str = "j2_to_j6_xrc_endpoints_exchange_srq_number_and_message";

/// Coverage of each item, in the order of the contract.
pub const COVERAGE: &[(&str, &[OtherCoverage])] = &[
    ("A5", &[Test(IN_C, "a5")]),
    ("A7", &[Test(IN_C, "a7")]),
    ("A8", &[Test(IN_C, "a8")]),
    ("A9", &[Test(POLICIES, "a9_without_xrc"), Test(IN_C, "a9")]),
    ("A13", &[Test(IN_C, "a13")]),
    ("A14", &[Test(IN_C, "a14")]),
    ("A15", &[Test(IN_C, "a15")]),
    ("B1", &[Test(LEGACY_IN_C, "legacy_xrc")]),
    ("B3", &[Test(LEGACY, "b3_device_without_xrc_returns_enosys")]),
    ("B7", &[NotHeld("the present sender replaces it (B8)")]),
    ("C1", &[Test(IN_C, "c1")]),
    ("C4", &[Test(IN_C, "c4")]),
    ("C5", &[Test(IN_C, "c5")]),
    ("C10", &[Test(IN_C, "c10")]),
    ("C11", &[Test(IN_C, "c11")]),
    ("C13", &[Test(IN_C, "c13")]),
    ("C14", &[Fact("this device can open TGTs: C4")]),
    ("D1", &[Test(IN_C, "d1")]),
    ("D2", &[Test(IN_C, "d2")]),
    ("D6", &[Test(IN_C, "d6")]),
    ("D7", &[Test(IN_C, "d7")]),
    ("E1", &[Test(IN_C, "e1")]),
    ("F6", &[Test(IN_C, "f6")]),
    ("G6", &[NotHeld("the device has no memory windows, and does not announce any")]),
    ("G7", &[Test(POLICIES, "g7_nak62"), Test(POLICIES, "g7_drop")]),
    ("G8", &[Test(POLICIES, "g7_drop")]),
    ("G11", &[Test(RESPONDER, "srq_may_not_change_inside_message")]),
    ("G12", &[Test(RESPONDER, "first_message_is_acknowledged_with_msn_one_and_no_credits")]),
    ("H1", &[Test(IN_C, "h1")]),
    ("H5", &[Test(IN_C, "h5")]),
    ("H6", &[Test(IN_C, "h6")]),
    ("I5", &[Test(REMOVAL, "i5_calls_on_removed_device_return_gone")]),
    ("J1", &[Test(CM_C, "j1_tcp_port_space_makes_every_type_rc_on_wire")]),
    ("J2", &[Test(IN_C, "j2"), Test(CM_C, CM_C_XRC)]),
    ("J3", &[Test(IN_C, "j2"), Test(CM_C, CM_C_XRC)]),
    ("J4", &[Test(IN_C, "j2"), Test(CM_C, CM_C_XRC)]),
    ("J5", &[Test(CM_C, CM_C_XRC)]),
    ("J6", &[Test(CM_C, CM_C_XRC)]),
    (
        "J8",
        &[
            Test(CM_CAPTURED, "active_side_speaks_like_kernel"),
            Test(CM_CAPTURED, "passive_side_speaks_like_kernel"),
            Test(PACKET, "srq_number_precedes_immediate_data"),
        ],
    ),
    ("J9", &[Test(CM_ENDING, "releasing_target_sends_no_dreq")]),
    ("J11", &[Test(CM_ENDING, "qp_number_of_restarted_peer_ends_old_connection")]),
    ("K1", &[Test(IN_C, "k1")]),
    ("K2", &[Fact("other devices")]),
    ("K3", &[Fact("other devices")]),
    ("K4", &[NotHeld("the device has no on-demand paging"), Test(IN_C, "k4")]),
    ("K5", &[Test(PROGRAMS, "ibv_xsrq_pingpong"), Test(PROGRAMS, "rdma_xserver"), Test(PYVERBS, "pyverbs")]),
    ("K6", &[Fact("other devices")]),
    ("L", &[Test(POLLERS, "messages_of_one_trunk_reach_every_poller_of_peer")]),
    ("M1", &[Same("C11")]),
    ("M2", &[Fact("other devices")]),
    ("M3", &[Same("G7")]),
    ("M4", &[Same("A9")]),
    ("M5", &[Same("D2")]),
    ("M6", &[Same("C10")]),
    ("M7", &[Fact("other libraries; here these calls work or do not exist")]),
    ("M8", &[Same("J11")]),
    ("M10", &[Same("G8")]),
    ("M11", &[Same("A5")]),
    ("M12", &[Same("D9")]),
    ("M13", &[Same("B10")]),
    ("N", &[Fact("no test can cover what is unknown")]),
];

/// Returns the coverage of an item outside this suite, which is empty for most items.
#[must_use]
pub(crate) fn other_coverage(id: &str) -> &'static [OtherCoverage] {
    COVERAGE.iter().find(|(of, _)| *of == id).map_or(&[], |(_, held)| held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ITEMS, PROCESS_ITEMS, clauses};
    use std::fs;
    use std::path::Path;

    #[test]
    fn every_item_has_coverage_line() {
        for clause in clauses() {
            let in_suite = ITEMS.iter().any(|item| item.id == clause.id)
                || PROCESS_ITEMS.iter().any(|item| item.id == clause.id);
            assert!(
                in_suite || !other_coverage(clause.id).is_empty(),
                "{} has neither a check nor a line in COVERAGE",
                clause.id
            );
        }
    }

    #[test]
    fn every_coverage_line_belongs_to_item() {
        let known = |id: &str| clauses().any(|clause| clause.id == id);
        for (index, (id, held)) in COVERAGE.iter().enumerate() {
            assert!(COVERAGE[..index].iter().all(|(other, _)| other != id), "{id} has two lines");
            assert!(
                known(id) && !held.is_empty(),
                "{id} is not an item of the contract, or its line is empty"
            );
            for proof in *held {
                let Same(other) = proof else { continue };
                assert!(known(other) && other != id, "{id} refers to {other}, which is not another item");
            }
        }
        for id in ITEMS.iter().map(|item| item.id).chain(PROCESS_ITEMS.iter().map(|item| item.id)) {
            assert!(known(id), "{id} is checked but not in the contract");
        }
    }

    #[test]
    fn every_named_test_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (id, held) in COVERAGE {
            for proof in *held {
                let Test(file, name) = proof else { continue };
                let text = fs::read_to_string(root.join(file)).unwrap_or_default();
                let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
                let there = words.any(|word| word == *name);
                assert!(there, "{id}: {file} has no test {name}");
            }
        }
    }
}
