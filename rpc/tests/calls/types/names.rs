//! Names of services, methods, arguments and types that could conflict with names in the stubs.

use crate::common::{node, pair};
use trunkline::{Bytes, Status, block_on};

/// Two traits whose names differ only in case, a trait named like a common type parameter, and a trait named like a method
/// of a stub.
#[trunkline::service]
trait Kv {
    async fn get(&self) -> u8;
}

#[trunkline::service]
trait KV {
    async fn get(&self) -> u8;
}

#[trunkline::service]
trait T {
    async fn service(&self, handler: u8, request: Bytes) -> u8;
    async fn limit(&self) -> u8;
    /// Called `connect` on the wire, which is a reserved name in the client.
    #[name = "connect"]
    async fn join(&self) -> Result<u8, Status>;
}

/// The same methods under their names on the wire.
mod other {
    #[trunkline::service(name = "T")]
    pub(super) trait Wire {
        async fn join(&self) -> Result<u8, trunkline::Status>;
        #[name = "connect"]
        async fn attach(&self) -> Result<u8, trunkline::Status>;
    }
}

struct Handler;

impl Kv for Handler {
    async fn get(&self) -> u8 {
        1
    }
}

impl KV for Handler {
    async fn get(&self) -> u8 {
        2
    }
}

impl T for Handler {
    async fn service(&self, handler: u8, request: Bytes) -> u8 {
        handler + request[0]
    }
    async fn limit(&self) -> u8 {
        3
    }
    async fn join(&self) -> Result<u8, Status> {
        Ok(4)
    }
}

#[test]
fn services_with_names_differing_only_in_case_coexist_in_module() {
    let server = node().serve(KvServer::new(Handler)).serve(KVServer::new(Handler)).start().unwrap();
    let node = node().start().unwrap();
    let lower = KvClient::connect(&node, server.local_address()).unwrap();
    let upper = KVClient::connect(&node, server.local_address()).unwrap();
    assert_eq!((block_on(lower.get()), block_on(upper.get())), (Ok(1), Ok(2)));
}

#[test]
fn trait_may_be_named_t_and_have_method_named_service() {
    let (server, node) = pair(TServer::new(Handler).limit(9).limit_limit(9));
    let client = TClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.service(2, Bytes::from_static(&[5]))), Ok(7));
    assert_eq!(block_on(client.limit()), Ok(3));
}

#[test]
fn method_may_have_another_name_on_wire() {
    let (server, node) = pair(TServer::new(Handler));
    let client = TClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.join()), Ok(4));
    let other = other::WireClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(other.attach()), Ok(4));
    let status = block_on(other.join()).unwrap_err();
    assert_eq!(status.reason(), Some(trunkline::Reason::NoMethod), "{status}");
}

/// Methods named like items of the stubs and like common methods of types.
#[trunkline::service]
trait Items {
    async fn SERVICE(&self) -> u8;
    async fn Service(&self) -> u8;
    async fn new(&self) -> u8;
    async fn from(&self) -> Result<u8, String>;
    async fn r#type(&self, r#fn: u8, pool: u8) -> u8;
    async fn default(&self) -> u8;
    async fn fmt(&self) -> u8;
    async fn drop(&self) -> u8;
    async fn shared(&self) -> u8;
    async fn __register(&self) -> u8;
    async fn call(&self, from: u8) -> u8;
    async fn send(&self, into: u8) -> u8;
    async fn channel(&self, methods: u8, handler: u8) -> u8;
    #[offload]
    async fn pool(&self, handler: u8, context: u8) -> u8;
}

#[allow(non_snake_case, reason = "as in the trait")]
impl Items for Handler {
    async fn SERVICE(&self) -> u8 {
        10
    }
    async fn Service(&self) -> u8 {
        11
    }
    async fn new(&self) -> u8 {
        12
    }
    async fn from(&self) -> Result<u8, String> {
        Ok(13)
    }
    async fn r#type(&self, r#fn: u8, pool: u8) -> u8 {
        r#fn + pool
    }
    async fn default(&self) -> u8 {
        14
    }
    async fn fmt(&self) -> u8 {
        15
    }
    async fn drop(&self) -> u8 {
        16
    }
    async fn shared(&self) -> u8 {
        17
    }
    async fn __register(&self) -> u8 {
        18
    }
    async fn call(&self, from: u8) -> u8 {
        from
    }
    async fn send(&self, into: u8) -> u8 {
        into
    }
    async fn channel(&self, methods: u8, handler: u8) -> u8 {
        methods + handler
    }
    async fn pool(&self, handler: u8, context: u8) -> u8 {
        handler + context
    }
}

#[test]
fn method_may_have_name_of_emitted_item() {
    let (server, node) = pair(ItemsServer::new(Handler));
    let client = <ItemsClient as From<trunkline::Channel>>::from(node.channel(server.local_address()));
    assert_eq!((block_on(client.SERVICE()), block_on(client.Service())), (Ok(10), Ok(11)));
    assert_eq!((block_on(client.new()), block_on(client.from())), (Ok(12), Ok(13)));
    assert_eq!((block_on(client.r#type(1, 2)), block_on(client.default())), (Ok(3), Ok(14)));
    assert_eq!((block_on(client.fmt()), block_on(client.drop())), (Ok(15), Ok(16)));
    assert_eq!((block_on(client.shared()), block_on(client.__register())), (Ok(17), Ok(18)));
    assert_eq!((block_on(client.call(6)), block_on(client.send(8))), (Ok(6), Ok(8)));
    assert_eq!((block_on(client.channel(2, 3)), block_on(client.pool(3, 4))), (Ok(5), Ok(7)));
}

/// Other parts of a trait: attributes, arguments named like variables of the stubs, and types in every notation.
mod odd {
    #![deny(warnings)]

    use super::{Handler, block_on, pair};
    use std::borrow::Cow;

    macro_rules! number {
        () => {
            u8
        };
    }

    #[trunkline::service]
    pub(crate) trait Odd {
        /// A comment of
        /// two lines.
        #[doc(alias = "numbers")]
        #[allow(clippy::too_many_arguments, reason = "the names are the point")]
        async fn names(
            &self,
            self_: u8,
            cx: u8,
            client: u8,
            options: u8,
            value: u8,
            error: u8,
            request: u8,
            call: u8,
            answer: u8,
            make: u8,
            reply: u8,
            body: u8,
        ) -> u8;
        #[doc(hidden)]
        async fn stubs(&self, server: u8, krate: u8, r#await: u8, message: u8, channel: u8, f: u8) -> u8;
        #[must_use]
        async fn important(&self) -> u8;
        async fn unit(&self) -> ();
        async fn nothing(&self);
        async fn spelled(
            &self,
            number: number!(),
            text: Cow<'static, str>,
            nested: <u8 as core::ops::Add>::Output,
        ) -> Box<str>;
        async fn arrays(&self, list: Box<[u8]>, array: [u8; 1 + 1]) -> (u8,);
        async fn r#move(&self, r#type: u8) -> u8;
        async fn poll(&self) -> u8;
        async fn into_future(&self) -> u8;
        async fn to_owned(&self) -> u8;
        async fn borrow(&self) -> u8;
        async fn as_ref(&self) -> u8;
        async fn limit(&self, limit: u8) -> u8;
        async fn per_poller(&self) -> u8;
    }

    impl Odd for Handler {
        async fn names(
            &self,
            self_: u8,
            cx: u8,
            client: u8,
            options: u8,
            value: u8,
            error: u8,
            request: u8,
            call: u8,
            answer: u8,
            make: u8,
            reply: u8,
            body: u8,
        ) -> u8 {
            self_ + cx + client + options + value + error + request + call + answer + make + reply + body
        }
        async fn stubs(&self, server: u8, krate: u8, r#await: u8, message: u8, channel: u8, f: u8) -> u8 {
            server + krate + r#await + message + channel + f
        }
        async fn important(&self) -> u8 {
            3
        }
        async fn unit(&self) {}
        async fn nothing(&self) {}
        async fn spelled(&self, number: u8, text: Cow<'static, str>, nested: u8) -> Box<str> {
            format!("{number}{text}{nested}").into()
        }
        async fn arrays(&self, list: Box<[u8]>, array: [u8; 2]) -> (u8,) {
            (list.iter().chain(&array).sum(),)
        }
        async fn r#move(&self, r#type: u8) -> u8 {
            r#type
        }
        async fn poll(&self) -> u8 {
            4
        }
        async fn into_future(&self) -> u8 {
            5
        }
        async fn to_owned(&self) -> u8 {
            6
        }
        async fn borrow(&self) -> u8 {
            7
        }
        async fn as_ref(&self) -> u8 {
            8
        }
        async fn limit(&self, limit: u8) -> u8 {
            limit
        }
        async fn per_poller(&self) -> u8 {
            9
        }
    }

    #[test]
    fn traits_with_unusual_signatures_are_services() {
        let (server, node) = pair(OddServer::new(Handler).limit_limit(9));
        let client = OddClient::connect(&node, server.local_address()).unwrap();
        assert_eq!(block_on(client.names(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)), Ok(78));
        assert_eq!(block_on(client.stubs(1, 2, 3, 4, 5, 6)), Ok(21));
        assert_eq!(block_on(client.important()), Ok(3));
        assert_eq!((block_on(client.unit()), block_on(client.nothing())), (Ok(()), Ok(())));
        assert_eq!(block_on(client.spelled(1, "a".into(), 2)), Ok("1a2".into()));
        assert_eq!(block_on(client.arrays([1, 2].into(), [3, 4])), Ok((10,)));
        assert_eq!((block_on(client.r#move(3)), block_on(client.poll())), (Ok(3), Ok(4)));
        assert_eq!((block_on(client.into_future()), block_on(client.to_owned())), (Ok(5), Ok(6)));
        assert_eq!((block_on(client.borrow()), block_on(client.as_ref())), (Ok(7), Ok(8)));
        assert_eq!((block_on(client.limit(2)), block_on(client.per_poller())), (Ok(2), Ok(9)));
    }
}

/// Types, traits, modules and macros that shadow the prelude, and the library under a different path.
mod shadowed {
    use super::facade;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct String(pub(super) ::core::primitive::u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct Vec(pub(super) ::core::primitive::u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(super) struct Box(pub(super) ::core::primitive::u8);
    #[allow(dead_code, non_camel_case_types)]
    type u32 = String;
    pub(super) mod own {
        //! Names that derives of the standard library need.
        #[allow(dead_code)]
        pub(in super::super) trait Send {}
        #[allow(dead_code)]
        pub(in super::super) trait Sync {}
        #[allow(dead_code)]
        pub(in super::super) trait Fn {}
        #[allow(dead_code)]
        pub(in super::super) trait Into {}
        #[allow(dead_code)]
        pub(in super::super) trait Future {}
        #[allow(dead_code)]
        pub(in super::super) struct Arc;
        #[allow(dead_code)]
        pub(in super::super) enum Outcome {
            Ok,
            Err,
            Some,
            None,
        }
    }
    #[allow(unused_imports)]
    use own::Outcome::{Err, None, Ok, Some};
    #[allow(unused_imports)]
    use own::{Arc, Fn, Future, Into, Send, Sync};
    mod std {}
    mod core {}
    mod alloc {}
    mod trunkline {}

    #[facade::rpc::service(crate = facade::rpc, name = "tests.Shadowed")]
    pub(super) trait Shadowed {
        async fn join(&self, first: String, second: Vec) -> Box;
        async fn fail(&self, why: u32) -> ::core::result::Result<Box, String>;
        #[blocking]
        async fn refuse(&self, cx: &facade::rpc::Context)
        -> ::core::result::Result<Vec, facade::rpc::Status>;
    }
}

/// A crate that re-exports the library.
mod facade {
    pub(super) use trunkline as rpc;
}

impl shadowed::Shadowed for Handler {
    async fn join(&self, first: shadowed::String, second: shadowed::Vec) -> shadowed::Box {
        shadowed::Box(first.0 + second.0)
    }
    async fn fail(&self, why: shadowed::String) -> Result<shadowed::Box, shadowed::String> {
        Err(why)
    }
    async fn refuse(&self, _: &trunkline::Context) -> Result<shadowed::Vec, Status> {
        Ok(shadowed::Vec(9))
    }
}

#[test]
fn service_works_with_shadowed_prelude_names() {
    use shadowed::{Box, ShadowedClient, ShadowedServer, String, Vec};
    let (server, node) = pair(ShadowedServer::new(Handler).limit_join(3));
    let client = ShadowedClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.join(String(1), Vec(2))), Ok(Box(3)));
    assert_eq!(block_on(client.fail(String(4))), Err(trunkline::CallError::Handler(String(4))));
    assert_eq!(block_on(client.refuse()), Ok(Vec(9)));
}

/// Stubs cause no warnings, even if the author deprecates items, leaves them unused, or generates them with a macro.
mod quiet {
    #![deny(warnings)]

    use super::{Handler, block_on, pair};
    use trunkline::{Bytes, Status};

    #[trunkline::service]
    trait Deprecated {
        #[deprecated = "use something else"]
        async fn old(&self) -> u8;
    }

    #[allow(deprecated, reason = "the handler implements what its callers should not use any more")]
    impl Deprecated for Handler {
        async fn old(&self) -> u8 {
            5
        }
    }

    #[test]
    #[expect(deprecated, reason = "the author's attribute is for callers")]
    fn deprecated_method_is_callable() {
        let (server, node) = pair(DeprecatedServer::new(Handler));
        let client = DeprecatedClient::connect(&node, server.local_address()).unwrap();
        assert_eq!(block_on(client.old()), Ok(5));
    }

    macro_rules! services {
        ($($name:ident $method:ident($argument:ident: $ty:ty) -> $result:ty;)*) => {
            $(
                #[trunkline::service]
                trait $name {
                    async fn $method(&self, $argument: $ty) -> $result;
                }
            )*
        };
    }

    services! {
        Unused nothing(number: u8) -> u8;
        Made back(bytes: Bytes) -> Result<Bytes, Status>;
        Failing fail(number: u8) -> Result<u8, String>;
    }

    /// The same service, written without a macro.
    mod written {
        #[trunkline::service]
        pub(super) trait Made {
            async fn back(&self, bytes: trunkline::Bytes) -> Result<trunkline::Bytes, trunkline::Status>;
        }
    }

    impl Made for Handler {
        async fn back(&self, bytes: Bytes) -> Result<Bytes, Status> {
            Ok(bytes)
        }
    }

    #[test]
    fn trait_generated_by_macro_is_service() {
        let (server, node) = pair(MadeServer::new(Handler));
        let client = written::MadeClient::connect(&node, server.local_address()).unwrap();
        assert_eq!(block_on(client.back("raw".into())), Ok("raw".into()), "both send it as raw bytes");
    }
}
