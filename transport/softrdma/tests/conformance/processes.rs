//! The items of the conformance suite that need processes, over UDP on one address and through shared memory.
//!
//! The tests start this program again for each puppet.

use crate::common;
use crate::common::processes::{PUPPET, Soft};
use trunkline_conformance::{PROCESS_ITEMS, assert_process_item};

/// Faults of the runs with packet loss.
const PLAN: &str = "drop=0.03,reorder=0.03,duplicate=0.03,corrupt=0.01,seed=5";

/// Entry point of a puppet. Does nothing unless [`PUPPET`] is set.
#[test]
fn puppet() {
    if std::env::var_os(PUPPET).is_some() {
        common::processes::serve().expect("the puppet serves");
    }
}

fn bench() -> Soft {
    Soft::from_test(module_path!(), "puppet")
}

macro_rules! items {
    ($($id:ident)*) => {
        $(
            #[test]
            fn $id() {
                assert_process_item(&bench(), stringify!($id));
            }
        )*

        mod memory {
            $(
                #[test]
                fn $id() {
                    super::assert_process_item(&super::bench().by_memory(), stringify!($id));
                }
            )*
        }

        mod lossy {
            $(
                #[test]
                fn $id() {
                    let bench = super::bench().with_faults(super::PLAN);
                    super::assert_process_item(&bench, stringify!($id));
                }
            )*
        }

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
    c4 c6 c7 c8 c9
    d6
    f4
    g1 g4 g8 g9 g10
    h1 h2 h3
    i2 i4
}
