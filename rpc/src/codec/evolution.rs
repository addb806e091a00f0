//! Tests of changes to a type while old and new programs call each other. They cover the rows of
//! `docs/book/src/guide/evolution.md`, each with an old and a new side in all four pairs.

#![cfg(feature = "message-pack")]

use super::{Bincode, CodecFor, MessagePack, Unlimited};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

fn encoded<C: CodecFor<T>, T>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    C::encode(value, &mut bytes).unwrap();
    bytes
}

/// Returns the outcome of a call whose handler returns its argument. The argument has the type `B` in the handler. The
/// outcome is the returned value, or the reason of the failure.
fn outcome<C: CodecFor<A> + CodecFor<B>, A: Debug, B>(argument: &A) -> String {
    let Ok(value) = super::decode::<C, B>(&encoded::<C, A>(argument), &Unlimited) else {
        return "BadArguments".to_owned();
    };
    super::decode::<C, A>(&encoded::<C, B>(&value), &Unlimited)
        .map_or_else(|_| "BadReply".to_owned(), |value| format!("{value:?}"))
}

/// Returns the outcomes of calls from old to old, old to new, new to old, and new to new programs.
fn outcomes<C: CodecFor<A> + CodecFor<B>, A: Debug, B: Debug>(old: &A, new: &B) -> [String; 4] {
    [outcome::<C, A, A>(old), outcome::<C, A, B>(old), outcome::<C, B, A>(new), outcome::<C, B, B>(new)]
}

/// A change to a type, with the types of both sides, the values that they send, and the outcomes.
macro_rules! change {
    (
        $name:ident
        old { $($old:item)* } $from_old:expr;
        new { $($new:item)* } $from_new:expr;
        bincode $bincode:expr;
        message_pack $message_pack:expr;
    ) => {
        #[test]
        #[allow(dead_code, reason = "not all variants are sent")]
        fn $name() {
            let old = { $(#[derive(Debug, Serialize, Deserialize)] $old)* $from_old };
            let new = { $(#[derive(Debug, Serialize, Deserialize)] $new)* $from_new };
            assert_eq!(outcomes::<Bincode, _, _>(&old, &new), $bincode, "bincode");
            assert_eq!(outcomes::<MessagePack, _, _>(&old, &new), $message_pack, "MessagePack");
        }
    };
}

change! {
    an_optional_field_is_added
    old { struct Value { a: u8 } } Value { a: 1 };
    new { struct Value { b: Option<u8>, a: u8 } } Value { b: Some(2), a: 1 };
    bincode ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { b: Some(2), a: 1 }"];
    message_pack ["Value { a: 1 }", "Value { a: 1 }", "Value { b: None, a: 1 }", "Value { b: Some(2), a: 1 }"];
}

change! {
    a_field_with_a_default_is_added
    old { struct Value { a: u8 } } Value { a: 1 };
    new { struct Value { a: u8, #[serde(default)] tags: Vec<String> } } Value { a: 1, tags: vec!["x".to_owned()] };
    bincode ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { a: 1, tags: [\"x\"] }"];
    message_pack ["Value { a: 1 }", "Value { a: 1 }", "Value { a: 1, tags: [] }", "Value { a: 1, tags: [\"x\"] }"];
}

change! {
    a_required_field_is_added
    old { struct Value { a: u8 } } Value { a: 1 };
    new { struct Value { a: u8, b: u8 } } Value { a: 1, b: 2 };
    bincode ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { a: 1, b: 2 }"];
    message_pack ["Value { a: 1 }", "BadArguments", "BadReply", "Value { a: 1, b: 2 }"];
}

change! {
    fields_are_put_in_another_order
    old { struct Value { a: u8, b: String } } Value { a: 1, b: "b".to_owned() };
    new { struct Value { b: String, a: u8 } } Value { b: "b".to_owned(), a: 1 };
    // The new server decodes the old caller's bytes as `b: "\u{1}", a: 98`, and the old caller misreads the reply in the
    // opposite way.
    bincode ["Value { a: 1, b: \"b\" }", "Value { a: 1, b: \"b\" }", "BadArguments", "Value { b: \"b\", a: 1 }"];
    message_pack ["Value { a: 1, b: \"b\" }", "Value { a: 1, b: \"b\" }", "Value { b: \"b\", a: 1 }", "Value { b: \"b\", a: 1 }"];
}

change! {
    a_field_is_renamed
    old { struct Value { a: u8 } } Value { a: 1 };
    new { struct Value { b: u8 } } Value { b: 1 };
    bincode ["Value { a: 1 }", "Value { a: 1 }", "Value { b: 1 }", "Value { b: 1 }"];
    message_pack ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { b: 1 }"];
}

change! {
    a_field_is_renamed_in_rust_only
    old { struct Value { a: u8 } } Value { a: 1 };
    new { struct Value { #[serde(rename = "a")] b: u8 } } Value { b: 1 };
    bincode ["Value { a: 1 }", "Value { a: 1 }", "Value { b: 1 }", "Value { b: 1 }"];
    message_pack ["Value { a: 1 }", "Value { a: 1 }", "Value { b: 1 }", "Value { b: 1 }"];
}

change! {
    a_variant_is_added_at_the_end_and_not_sent
    old { enum Value { A, B(u8) } } Value::B(1);
    new { enum Value { A, B(u8), C } } Value::B(1);
    bincode ["B(1)", "B(1)", "B(1)", "B(1)"];
    message_pack ["B(1)", "B(1)", "B(1)", "B(1)"];
}

change! {
    a_variant_is_added_in_front
    old { enum Value { A, B } } Value::B;
    new { enum Value { C, A, B } } Value::B;
    bincode ["B", "B", "BadArguments", "B"];
    message_pack ["B", "B", "B", "B"];
}

change! {
    a_variant_is_sent_that_the_other_side_does_not_know
    old { enum Value { A } } Value::A;
    new { enum Value { A, C } } Value::C;
    bincode ["A", "A", "BadArguments", "C"];
    message_pack ["A", "A", "BadArguments", "C"];
}

change! {
    an_unknown_variant_may_be_taken_for_another
    old { enum Value { A, #[serde(other)] Unknown } } Value::A;
    new { enum Value { A, C, #[serde(other)] Unknown } } Value::C;
    // Variants are numbers in bincode, so `Unknown` of the old side is `C` of the new side.
    bincode ["A", "A", "C", "C"];
    message_pack ["A", "A", "Unknown", "C"];
}

change! {
    a_number_becomes_wider
    old {} 300_u16;
    new {} 70_000_u64;
    bincode ["300", "300", "BadArguments", "70000"];
    message_pack ["300", "300", "BadArguments", "70000"];
}

change! {
    a_value_becomes_optional
    old {} (1_u8, "b".to_owned());
    new {} (1_u8, Some("b".to_owned()));
    bincode ["(1, \"b\")", "BadArguments", "BadArguments", "(1, Some(\"b\"))"];
    message_pack ["(1, \"b\")", "(1, \"b\")", "(1, Some(\"b\"))", "(1, Some(\"b\"))"];
}
