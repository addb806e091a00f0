//! Names of services, methods, arguments and types that could clash with those of the stubs.

use crate::common::{node, pair};
use trunkline::{Bytes, Status, block_on};

/// Two traits whose names differ in case only, a name that type parameters like to have, and one that a method of the
/// stubs has.
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
    /// `connect` on the wire, which the client has for itself.
    #[name = "connect"]
    async fn join(&self) -> Result<u8, Status>;
}

/// The same methods by the names that they have on the wire.
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
fn services_whose_names_differ_in_case_only_live_in_one_module() {
    let server = node().serve(KvServer::new(Handler)).serve(KVServer::new(Handler)).start().unwrap();
    let node = node().start().unwrap();
    let lower = KvClient::connect(&node, server.local_address()).unwrap();
    let upper = KVClient::connect(&node, server.local_address()).unwrap();
    assert_eq!((block_on(lower.get()), block_on(upper.get())), (Ok(1), Ok(2)));
}

#[test]
fn a_trait_may_be_named_t_and_have_a_method_named_service() {
    let (server, node) = pair(TServer::new(Handler).limit(9).limit_limit(9));
    let client = TClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.service(2, Bytes::from_static(&[5]))), Ok(7));
    assert_eq!(block_on(client.limit()), Ok(3));
}

#[test]
fn a_method_may_have_another_name_on_the_wire() {
    let (server, node) = pair(TServer::new(Handler));
    let client = TClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.join()), Ok(4));
    let other = other::WireClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(other.attach()), Ok(4));
    let status = block_on(other.join()).unwrap_err();
    assert_eq!(status.reason(), Some(trunkline::Reason::NoMethod), "{status}");
}

/// The stubs warn of nothing, whatever the author deprecates, does not use, or makes by a macro.
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
    fn a_deprecated_method_warns_its_callers_only() {
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
    }

    /// Written without a macro.
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
    fn a_trait_may_come_from_a_macro() {
        let (server, node) = pair(MadeServer::new(Handler));
        let client = written::MadeClient::connect(&node, server.local_address()).unwrap();
        assert_eq!(block_on(client.back("raw".into())), Ok("raw".into()), "both send it as raw bytes");
    }
}
