//! Changes that a type survives while old and new programs call each other: the rows of `docs/evolution.md`, each between an old
//! and a new side, in all four pairs.

#![cfg(feature = "message-pack")]

use super::{Bincode, CodecFor, MessagePack, Unlimited};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy)]
enum By {
    Bincode,
    MessagePack,
}

fn encode<T>(by: By, value: &T) -> Vec<u8>
where
    Bincode: CodecFor<T>,
    MessagePack: CodecFor<T>,
{
    let mut bytes = Vec::new();
    match by {
        By::Bincode => Bincode::encode(value, &mut bytes),
        By::MessagePack => MessagePack::encode(value, &mut bytes),
    }
    .unwrap();
    bytes
}

fn decode<T>(by: By, bytes: &[u8]) -> Option<T>
where
    Bincode: CodecFor<T>,
    MessagePack: CodecFor<T>,
{
    match by {
        By::Bincode => super::decode::<Bincode, T>(bytes, &Unlimited).ok(),
        By::MessagePack => super::decode::<MessagePack, T>(bytes, &Unlimited).ok(),
    }
}

/// One side of a call whose handler returns its argument.
struct Side {
    /// The argument of a call.
    sent: fn(By) -> Vec<u8>,
    /// The reply to an argument; `None` if that cannot be decoded.
    answered: fn(By, &[u8]) -> Option<Vec<u8>>,
    /// The value in a reply; `None` if it cannot be decoded.
    received: fn(By, &[u8]) -> Option<String>,
}

/// Returns the outcome of a call: the value that came back, or the reason why there is none.
fn outcome(by: By, client: &Side, server: &Side) -> String {
    let Some(reply) = (server.answered)(by, &(client.sent)(by)) else { return "BadArguments".to_owned() };
    (client.received)(by, &reply).unwrap_or_else(|| "BadReply".to_owned())
}

/// A change of a type: the types of both sides, and what comes of calls from old to old, old to new, new to old, and new to new
/// programs, which send `sample()` and get back what the server made of it.
macro_rules! change {
    (
        $name:ident
        old { $($old:item)* }
        new { $($new:item)* }
        bincode $bincode:expr;
        message_pack $message_pack:expr;
    ) => {
        mod $name {
            use super::*;

            change!(@side old { $($old)* });
            change!(@side new { $($new)* });

            #[test]
            fn $name() {
                let (old, new) = (old::SIDE, new::SIDE);
                let outcomes = |by| {
                    [(&old, &old), (&old, &new), (&new, &old), (&new, &new)]
                        .map(|(client, server)| outcome(by, client, server))
                };
                assert_eq!(outcomes(By::Bincode), $bincode, "bincode");
                assert_eq!(outcomes(By::MessagePack), $message_pack, "MessagePack");
            }
        }
    };
    (@side $side:ident { $($item:item)* }) => {
        mod $side {
            use super::*;

            $($item)*

            pub(super) const SIDE: Side = Side {
                sent: |by| encode(by, &sample()),
                answered: |by, bytes| Some(encode(by, &decode::<Value>(by, bytes)?)),
                received: |by, bytes| Some(format!("{:?}", decode::<Value>(by, bytes)?)),
            };
        }
    };
}

change! {
    an_optional_field_is_added
    old {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8 }
        fn sample() -> Value { Value { a: 1 } }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { b: Option<u8>, a: u8 }
        fn sample() -> Value { Value { b: Some(2), a: 1 } }
    }
    bincode ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { b: Some(2), a: 1 }"];
    message_pack ["Value { a: 1 }", "Value { a: 1 }", "Value { b: None, a: 1 }", "Value { b: Some(2), a: 1 }"];
}

change! {
    a_field_with_a_default_is_added
    old {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8 }
        fn sample() -> Value { Value { a: 1 } }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8, #[serde(default)] tags: Vec<String> }
        fn sample() -> Value { Value { a: 1, tags: vec!["x".to_owned()] } }
    }
    bincode ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { a: 1, tags: [\"x\"] }"];
    message_pack ["Value { a: 1 }", "Value { a: 1 }", "Value { a: 1, tags: [] }", "Value { a: 1, tags: [\"x\"] }"];
}

change! {
    a_required_field_is_added
    old {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8 }
        fn sample() -> Value { Value { a: 1 } }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8, b: u8 }
        fn sample() -> Value { Value { a: 1, b: 2 } }
    }
    bincode ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { a: 1, b: 2 }"];
    message_pack ["Value { a: 1 }", "BadArguments", "BadReply", "Value { a: 1, b: 2 }"];
}

change! {
    fields_are_put_in_another_order
    old {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8, b: String }
        fn sample() -> Value { Value { a: 1, b: "b".to_owned() } }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { b: String, a: u8 }
        fn sample() -> Value { Value { b: "b".to_owned(), a: 1 } }
    }
    // The new server takes the old one's bytes for `b: "\u{1}", a: 98`, and its reply is misread the other way round.
    bincode ["Value { a: 1, b: \"b\" }", "Value { a: 1, b: \"b\" }", "BadArguments", "Value { b: \"b\", a: 1 }"];
    message_pack ["Value { a: 1, b: \"b\" }", "Value { a: 1, b: \"b\" }", "Value { b: \"b\", a: 1 }", "Value { b: \"b\", a: 1 }"];
}

change! {
    a_field_is_renamed
    old {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8 }
        fn sample() -> Value { Value { a: 1 } }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { b: u8 }
        fn sample() -> Value { Value { b: 1 } }
    }
    bincode ["Value { a: 1 }", "Value { a: 1 }", "Value { b: 1 }", "Value { b: 1 }"];
    message_pack ["Value { a: 1 }", "BadArguments", "BadArguments", "Value { b: 1 }"];
}

change! {
    a_field_is_renamed_in_rust_only
    old {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { a: u8 }
        fn sample() -> Value { Value { a: 1 } }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        struct Value { #[serde(rename = "a")] b: u8 }
        fn sample() -> Value { Value { b: 1 } }
    }
    bincode ["Value { a: 1 }", "Value { a: 1 }", "Value { b: 1 }", "Value { b: 1 }"];
    message_pack ["Value { a: 1 }", "Value { a: 1 }", "Value { b: 1 }", "Value { b: 1 }"];
}

change! {
    a_variant_is_added_at_the_end_and_not_sent
    old {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A, B(u8) }
        fn sample() -> Value { let _ = Value::A; Value::B(1) }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A, B(u8), C }
        fn sample() -> Value { let _ = (Value::A, Value::C); Value::B(1) }
    }
    bincode ["B(1)", "B(1)", "B(1)", "B(1)"];
    message_pack ["B(1)", "B(1)", "B(1)", "B(1)"];
}

change! {
    a_variant_is_added_in_front
    old {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A, B }
        fn sample() -> Value { let _ = Value::A; Value::B }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { C, A, B }
        fn sample() -> Value { let _ = (Value::A, Value::C); Value::B }
    }
    bincode ["B", "B", "BadArguments", "B"];
    message_pack ["B", "B", "B", "B"];
}

change! {
    a_variant_is_sent_that_the_other_side_does_not_know
    old {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A }
        fn sample() -> Value { Value::A }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A, C }
        fn sample() -> Value { let _ = Value::A; Value::C }
    }
    bincode ["A", "A", "BadArguments", "C"];
    message_pack ["A", "A", "BadArguments", "C"];
}

change! {
    an_unknown_variant_may_be_taken_for_another
    old {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A, #[serde(other)] Unknown }
        fn sample() -> Value { Value::A }
    }
    new {
        #[derive(Debug, Serialize, Deserialize)]
        enum Value { A, C, #[serde(other)] Unknown }
        fn sample() -> Value { let _ = Value::A; Value::C }
    }
    // The variants are numbers there: `Unknown` of the old side is `C` of the new one.
    bincode ["A", "A", "C", "C"];
    message_pack ["A", "A", "Unknown", "C"];
}

change! {
    a_number_becomes_wider
    old {
        type Value = u16;
        fn sample() -> Value { 300 }
    }
    new {
        type Value = u64;
        fn sample() -> Value { 70_000 }
    }
    bincode ["300", "300", "BadArguments", "70000"];
    message_pack ["300", "300", "BadArguments", "70000"];
}

change! {
    a_value_becomes_optional
    old {
        type Value = (u8, String);
        fn sample() -> Value { (1, "b".to_owned()) }
    }
    new {
        type Value = (u8, Option<String>);
        fn sample() -> Value { (1, Some("b".to_owned())) }
    }
    bincode ["(1, \"b\")", "BadArguments", "BadArguments", "(1, Some(\"b\"))"];
    message_pack ["(1, \"b\")", "(1, \"b\")", "(1, Some(\"b\"))", "(1, Some(\"b\"))"];
}
