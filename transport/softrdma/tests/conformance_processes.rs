//! The items of the conformance suite that need processes, over UDP on one address.
//!
//! The tests start this program again as puppets.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::processes::{PUPPET, Soft};
use trunkline_conformance::{PROCESS_ITEMS, assert_process_item};

/// A puppet. Without the variable, a test of its own that has nothing to do.
#[test]
fn puppet() {
    if std::env::var_os(PUPPET).is_some() {
        common::processes::serve().expect("the puppet serves");
    }
}

macro_rules! items {
    ($($id:ident)*) => {
        $(
            #[test]
            fn $id() {
                assert_process_item(&Soft::from_test("puppet"), stringify!($id));
            }
        )*

        #[test]
        fn every_item_has_its_test() {
            let items: Vec<String> = PROCESS_ITEMS.iter().map(|item| item.id.to_ascii_lowercase()).collect();
            assert_eq!(items, [$(stringify!($id)),*]);
        }
    };
}

items! {
    a1 a3 a4 a5 a6 a10 a11 a12 a14
    b10
    c4 c6 c7 c8
    d6
    g1 g4 g8 g9 g10
    h1 h2
    i2 i4
}
