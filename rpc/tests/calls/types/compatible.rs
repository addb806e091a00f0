//! Callers and servers whose arguments for the same method differ.

use crate::common::{node, pair};
use trunkline::{Bytes, Code, Node, Origin, Reason, Status, block_on};

/// An alias for an optional argument.
type Days = Option<u32>;

/// The first version of the interface.
mod first {
    #[trunkline::service(name = "tests.Library")]
    pub(super) trait Library {
        async fn lend(&self, title: String) -> Result<String, trunkline::Status>;
        async fn store(&self, shelf: u8, text: trunkline::Bytes) -> Result<String, trunkline::Status>;
        async fn close(&self) -> Result<String, trunkline::Status>;
    }
}

/// The service with additional optional arguments.
mod optional {
    use super::Days;
    use std::option::Option as Perhaps;

    #[trunkline::service(name = "tests.Library")]
    pub(super) trait Library {
        async fn lend(
            &self,
            title: String,
            days: Days,
            reader: Perhaps<String>,
        ) -> Result<String, trunkline::Status>;
        async fn store(
            &self,
            shelf: u8,
            text: trunkline::Bytes,
            days: Days,
        ) -> Result<String, trunkline::Status>;
        async fn close(&self, days: Days) -> Result<String, trunkline::Status>;
    }
}

/// The service with an additional argument that every caller must send.
mod required {
    #[trunkline::service(name = "tests.Library")]
    pub(super) trait Library {
        async fn lend(&self, title: String, days: u32) -> Result<String, trunkline::Status>;
    }
}

struct Desk;

impl first::Library for Desk {
    async fn lend(&self, title: String) -> Result<String, Status> {
        Ok(title)
    }
    async fn store(&self, shelf: u8, text: Bytes) -> Result<String, Status> {
        Ok(format!("{shelf} {}", text.len()))
    }
    async fn close(&self) -> Result<String, Status> {
        Ok("closed".to_owned())
    }
}

impl optional::Library for Desk {
    async fn lend(&self, title: String, days: Days, reader: Option<String>) -> Result<String, Status> {
        Ok(format!("{title} {days:?} {reader:?}"))
    }
    async fn store(&self, shelf: u8, text: Bytes, days: Days) -> Result<String, Status> {
        Ok(format!("{shelf} {} {days:?}", text.len()))
    }
    async fn close(&self, days: Days) -> Result<String, Status> {
        Ok(format!("closed {days:?}"))
    }
}

impl required::Library for Desk {
    async fn lend(&self, title: String, days: u32) -> Result<String, Status> {
        Ok(format!("{title} {days}"))
    }
}

fn servers() -> [Node; 2] {
    let first = node().serve(first::LibraryServer::new(Desk)).start().unwrap();
    [first, node().serve(optional::LibraryServer::new(Desk)).start().unwrap()]
}

#[test]
fn optional_arguments_may_be_added_at_end() {
    let [old_server, new_server] = servers();
    let node = node().start().unwrap();
    let text = || Bytes::from_static(b"raw");
    let ok = |text: &str| Ok(text.to_owned());

    let old_to_old = first::LibraryClient::connect(&node, old_server.local_address()).unwrap();
    assert_eq!(block_on(old_to_old.lend("Emma".into())), ok("Emma"));
    assert_eq!(block_on(old_to_old.store(3, text())), ok("3 3"));

    let old_to_new = first::LibraryClient::connect(&node, new_server.local_address()).unwrap();
    assert_eq!(block_on(old_to_new.lend("Emma".into())), ok("Emma None None"));
    assert_eq!(block_on(old_to_new.store(3, text())), ok("3 3 None"));
    assert_eq!(block_on(old_to_new.close()), ok("closed None"));

    let new_to_old = optional::LibraryClient::connect(&node, old_server.local_address()).unwrap();
    assert_eq!(block_on(new_to_old.lend("Emma".into(), Some(7), Some("Ann".into()))), ok("Emma"));
    assert_eq!(block_on(new_to_old.store(3, text(), Some(7))), ok("3 3"));
    assert_eq!(block_on(new_to_old.close(Some(7))), ok("closed"));

    let new_to_new = optional::LibraryClient::connect(&node, new_server.local_address()).unwrap();
    let lent = block_on(new_to_new.lend("Emma".into(), Some(7), None));
    assert_eq!(lent, ok("Emma Some(7) None"));
    assert_eq!(block_on(new_to_new.store(3, text(), Some(7))), ok("3 3 Some(7)"));
}

#[test]
fn missing_required_argument_is_named() {
    let (server, node) = pair(required::LibraryServer::new(Desk));
    let client = first::LibraryClient::connect(&node, server.local_address()).unwrap();
    let status = block_on(client.lend("Emma".into())).unwrap_err();
    assert_eq!((status.code(), status.origin()), (Code::InvalidArgument, Origin::Peer), "{status}");
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::BadArguments), false));
    assert!(status.message().contains("argument `days`"), "{status}");
    // In the other direction, the old server skips the unknown arguments.
    let (server, node) = pair(first::LibraryServer::new(Desk));
    let client = required::LibraryClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.lend("Emma".into(), 7)), Ok("Emma".to_owned()));
}
