//! Changes to the methods and versions of a service that are allowed while old and new programs call each other, as listed
//! in `docs/book/src/guide/evolution.md`. `src/codec/evolution.rs` tests changes to types.

use crate::common::node;
use trunkline::{Code, Node, Reason, Status, block_on};

/// Three versions of an interface. The second version is compatible with the first.
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

/// Calls the server with each of four clients: three versions, and another codec.
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
fn side_may_accept_older_versions() {
    let first = node().serve(versions::first::VersionedServer::new(Versions)).start().unwrap();
    let second = node().serve(versions::second::VersionedServer::new(Versions)).start().unwrap();
    let third = node().serve(versions::third::VersionedServer::new(Versions)).start().unwrap();
    let from = node().start().unwrap();
    let taken = |server| by_version(&from, server).map(|result| result.is_ok());
    // The second call uses the method's number if the client has received it.
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
fn different_codec_is_refused_by_name() {
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
    // Clients do not share method numbers.
    let [_, _, _, message_pack] = by_version(&from, &packed);
    assert_eq!(message_pack, Ok(1));
    assert_eq!(by_version(&from, &packed)[0].as_ref().unwrap_err().reason(), Some(Reason::OtherCodec));
}

/// Methods that exist on only one side.
mod methods {
    #[trunkline::service(name = "tests.Methods")]
    pub(super) trait Old {
        async fn get(&self, key: u8) -> Result<u8, trunkline::Status>;
    }

    #[trunkline::service(name = "tests.Methods")]
    pub(super) trait New {
        /// The method's Rust name was `get`, and its argument had a different name.
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
