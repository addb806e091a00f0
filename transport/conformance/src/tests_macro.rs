//! Generates one `#[test]` for each item.

/// Generates one test per item for a bench. Use it as `conformance_tests!(BENCH);` in a test module named after the link. A
/// test passes if its item holds or is skipped, and prints the reason if it is skipped.
#[macro_export]
macro_rules! conformance_tests {
    ($bench:expr) => {
        $crate::conformance_tests! { @each $bench;
            a1 a2 a3 a4 a5 a6 a7 a9 a10 a11 a12 a13 a16
            b2 b3 b4 b5 b6 b8 b9 b10
            c1 c2 c3 c4 c5 c6 c8 c9 c10 c11 c12
            d1 d2 d3 d4 d5 d6 d7 d8 d9 d10
            e1 e2 e3 e4 e5 e6 e7 e8
            f1 f2 f3 f4 f5
            g1 g2 g3 g4 g5 g7 g8 g9 g10
            h1 h2 h3 h4 h5
            i1 i2 i3
            j1 j5 j6 j7 j8 j9 j10 j11 j12
            k1
            m9
            r1 r2 r3 r4 r5 r6 r7 r8 r9 r10 r11
        }
    };
    (@each $bench:expr; $($id:ident)*) => {
        $(
            #[test]
            fn $id() {
                $crate::assert_item(&$bench, stringify!($id));
            }
        )*

        #[test]
        fn every_item_has_its_test() {
            let tests: &[&str] = &[$(stringify!($id)),*];
            $crate::assert_complete(tests);
        }
    };
}

use crate::{Bench, ITEMS, Outcome, run};

/// Runs the item with the number `id`, for [`conformance_tests`].
///
/// # Panics
/// Panics if the item fails.
#[doc(hidden)]
pub fn assert_item(bench: &dyn Bench, id: &str) {
    let Some(item) = ITEMS.iter().find(|item| item.id.eq_ignore_ascii_case(id)) else {
        panic!("the suite has no item {id}");
    };
    pass(bench, (item.id, item.title), run(bench, item));
}

/// Panics if an item failed. Prints the reason if it was skipped.
pub(crate) fn pass<B: Bench + ?Sized>(bench: &B, (id, title): (&str, &str), outcome: Outcome) {
    let on = format!("{}/{}", bench.provider(), bench.link());
    match outcome {
        Outcome::Held => {}
        Outcome::Skipped(why) => println!("SKIPPED {id} on {on}: {why}"),
        Outcome::Failed(why) => panic!("{id} ({title}) on {on}: {why}"),
    }
}

/// Checks that every item has a test, for [`conformance_tests`].
///
/// # Panics
/// Panics if `tests` differs from the list of items.
#[doc(hidden)]
pub fn assert_complete(tests: &[&str]) {
    let items: Vec<String> = ITEMS.iter().map(|item| item.id.to_ascii_lowercase()).collect();
    assert_eq!(items, tests, "the items of the suite and their tests differ");
}
