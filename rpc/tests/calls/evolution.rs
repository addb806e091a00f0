//! What may change in a service while old and new programs call each other: the rows of `docs/evolution.md`, each between an
//! old and a new side, in all four pairs.

use crate::common::node;
use serde::{Deserialize, Serialize};
use trunkline::codec::{Bincode, MessagePack};
use trunkline::{CallError, Code, Node, Reason, Status, block_on};

/// What became of a call: the value that came back, or why there is none.
fn outcome<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(status) => format!("{:?}", status.reason().expect("a node's")),
    }
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

            change!(@codec bincode Bincode { $($old)* } { $($new)* });
            change!(@codec message_pack MessagePack { $($old)* } { $($new)* });

            #[test]
            fn $name() {
                assert_eq!(bincode::outcomes(), $bincode, "bincode");
                assert_eq!(message_pack::outcomes(), $message_pack, "MessagePack");
            }
        }
    };
    (@codec $codec:ident $type:ident { $($old:item)* } { $($new:item)* }) => {
        mod $codec {
            use super::*;

            change!(@side old $type { $($old)* });
            change!(@side new $type { $($new)* });

            pub(super) fn outcomes() -> [String; 4] {
                let from = node().start().unwrap();
                let (old, new) = (old::server(), new::server());
                [
                    old::call(&from, &old),
                    old::call(&from, &new),
                    new::call(&from, &old),
                    new::call(&from, &new),
                ]
            }
        }
    };
    (@side $side:ident $codec:ident { $($item:item)* }) => {
        mod $side {
            use super::*;

            $($item)*

            #[trunkline::service(name = "tests.Evolving", codec = $codec)]
            trait Evolving {
                async fn echo(&self, value: Value) -> Result<Value, Status>;
            }

            struct Echo;

            impl Evolving for Echo {
                async fn echo(&self, value: Value) -> Result<Value, Status> {
                    Ok(value)
                }
            }

            pub(super) fn server() -> Node {
                node().serve(EvolvingServer::new(Echo)).start().unwrap()
            }

            pub(super) fn call(from: &Node, server: &Node) -> String {
                let client = EvolvingClient::connect(from, server.local_address()).unwrap();
                outcome(block_on(client.echo(sample())))
            }
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

/// An interface in three versions, of which the second can do with the first.
mod versions {
    macro_rules! version {
        ($module:ident $($options:tt)*) => {
            pub(super) mod $module {
                #[trunkline::service(name = "tests.Versioned", $($options)*)]
                pub(crate) trait Versioned {
                    async fn get(&self) -> Result<u8, trunkline::Status>;
                }

                impl Versioned for super::super::Versions {
                    async fn get(&self) -> Result<u8, trunkline::Status> {
                        Ok(1)
                    }
                }
            }
        };
    }

    version!(first version = 1);
    version!(second version = 2, accepts = 1..=2);
    version!(third version = 3);
    version!(packed version = 1, codec = trunkline::codec::MessagePack);
}

struct Versions;

/// A call from each of these versions.
fn by_version(from: &Node, server: &Node) -> [Result<u8, Status>; 4] {
    let at = server.local_address();
    [
        block_on(versions::first::VersionedClient::connect(from, at).unwrap().get()),
        block_on(versions::second::VersionedClient::connect(from, at).unwrap().get()),
        block_on(versions::third::VersionedClient::connect(from, at).unwrap().get()),
        block_on(versions::packed::VersionedClient::connect(from, at).unwrap().get()),
    ]
}

#[test]
fn a_side_may_accept_older_versions() {
    let first = node().serve(versions::first::VersionedServer::new(Versions)).start().unwrap();
    let second = node().serve(versions::second::VersionedServer::new(Versions)).start().unwrap();
    let third = node().serve(versions::third::VersionedServer::new(Versions)).start().unwrap();
    let from = node().start().unwrap();
    let taken = |server| by_version(&from, server).map(|result| result.is_ok());
    // Twice: the second time by the number of the method, if that was learned.
    for _ in 0..2 {
        assert_eq!(taken(&first), [true, true, false, false]);
        assert_eq!(taken(&second), [true, true, false, false]);
        assert_eq!(taken(&third), [false, false, true, false]);
    }
    let [_, second_to_third, ..] = by_version(&from, &third);
    let status = second_to_third.unwrap_err();
    let told = (status.code(), status.reason(), status.may_have_run());
    assert_eq!(told, (Code::FailedPrecondition, Some(Reason::OtherSchema), false), "{status}");
    assert!(status.message().contains("version 1 to 2, the server has 3"), "{status}");
}

#[test]
fn another_codec_is_refused_by_name() {
    let first = node().serve(versions::first::VersionedServer::new(Versions)).start().unwrap();
    let packed = node().serve(versions::packed::VersionedServer::new(Versions)).start().unwrap();
    let from = node().start().unwrap();
    for (server, names) in
        [(&first, "MessagePack (1), the server's service has bincode (0)"), (&packed, "bincode (0)")]
    {
        let [bincode, _, _, message_pack] = by_version(&from, server);
        let refused = if names.starts_with("Mess") { message_pack } else { bincode };
        let status = refused.unwrap_err();
        let told = (status.code(), status.reason(), status.may_have_run());
        assert_eq!(told, (Code::FailedPrecondition, Some(Reason::OtherCodec), false), "{status}");
        assert!(status.message().contains(names), "{status}");
    }
    // A number that one client has learned is none for the other.
    let [_, _, _, message_pack] = by_version(&from, &packed);
    assert_eq!(message_pack, Ok(1));
    assert_eq!(by_version(&from, &packed)[0].as_ref().unwrap_err().reason(), Some(Reason::OtherCodec));
}

/// Errors of a service's own, of which the new side has one more.
mod errors {
    use serde::{Deserialize, Serialize};

    macro_rules! side {
        ($module:ident $($variant:ident)*) => {
            pub(super) mod $module {
                use super::*;

                #[derive(Debug, PartialEq, Serialize, Deserialize)]
                pub(crate) enum Refusal {
                    $($variant,)*
                }

                #[trunkline::service(name = "tests.Refusing", codec = trunkline::codec::MessagePack)]
                pub(crate) trait Refusing {
                    async fn shut(&self) -> Result<(), Refusal>;
                    async fn last(&self) -> Result<(), Refusal>;
                }

                impl Refusing for super::super::Versions {
                    async fn shut(&self) -> Result<(), Refusal> {
                        Err(Refusal::Shut)
                    }
                    async fn last(&self) -> Result<(), Refusal> {
                        Err([$(Refusal::$variant),*].into_iter().next_back().unwrap())
                    }
                }
            }
        };
    }

    side!(old Shut);
    side!(new Full Shut Gone);
}

#[test]
fn a_variant_is_added_to_an_error() {
    let old = node().serve(errors::old::RefusingServer::new(Versions)).start().unwrap();
    let new = node().serve(errors::new::RefusingServer::new(Versions)).start().unwrap();
    let from = node().start().unwrap();
    for server in [&old, &new] {
        let client = errors::old::RefusingClient::connect(&from, server.local_address()).unwrap();
        assert_eq!(block_on(client.shut()), Err(CallError::Handler(errors::old::Refusal::Shut)));
        let client = errors::new::RefusingClient::connect(&from, server.local_address()).unwrap();
        assert_eq!(block_on(client.shut()), Err(CallError::Handler(errors::new::Refusal::Shut)));
    }
    let client = errors::old::RefusingClient::connect(&from, new.local_address()).unwrap();
    let error = block_on(client.last()).unwrap_err();
    let status = error.status().expect("the variant is unknown");
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::BadReply), true), "{status}");
    assert!(status.message().contains("Gone"), "{status}");
}

/// Methods that only one side has.
mod methods {
    #[trunkline::service(name = "tests.Methods")]
    pub(super) trait Old {
        async fn get(&self, key: u8) -> Result<u8, trunkline::Status>;
    }

    #[trunkline::service(name = "tests.Methods")]
    pub(super) trait New {
        /// It was `get` in Rust, and its argument had another name.
        #[name = "get"]
        async fn load(&self, number: u8) -> Result<u8, trunkline::Status>;
        async fn put(&self, key: u8) -> Result<u8, trunkline::Status>;
    }
}

impl methods::Old for Versions {
    async fn get(&self, key: u8) -> Result<u8, Status> {
        Ok(key)
    }
}

impl methods::New for Versions {
    async fn load(&self, number: u8) -> Result<u8, Status> {
        Ok(number)
    }
    async fn put(&self, key: u8) -> Result<u8, Status> {
        Ok(key)
    }
}

#[test]
fn methods_are_added_and_renamed_in_rust() {
    let old = node().serve(methods::OldServer::new(Versions)).start().unwrap();
    let new = node().serve(methods::NewServer::new(Versions)).start().unwrap();
    let from = node().start().unwrap();
    for server in [&old, &new] {
        let client = methods::OldClient::connect(&from, server.local_address()).unwrap();
        assert_eq!(block_on(client.get(7)), Ok(7));
        let client = methods::NewClient::connect(&from, server.local_address()).unwrap();
        assert_eq!(block_on(client.load(7)), Ok(7));
    }
    let client = methods::NewClient::connect(&from, old.local_address()).unwrap();
    let status = block_on(client.put(7)).unwrap_err();
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::NoMethod), false), "{status}");
    let client = methods::NewClient::connect(&from, new.local_address()).unwrap();
    assert_eq!(block_on(client.put(7)), Ok(7));
}
