//! Type-erased errors returned by handlers.

use crate::common::pair;
use trunkline::{Code, Status, block_on};

#[trunkline::service]
trait Archive {
    async fn read(&self, path: String) -> anyhow::Result<String>;
    async fn find(&self, path: String) -> eyre::Result<String>;
}

struct Shelf;

impl Archive for Shelf {
    async fn read(&self, path: String) -> anyhow::Result<String> {
        use anyhow::Context as _;
        std::fs::read_to_string(&path).with_context(|| format!("{path} is not a receipt"))
    }
    async fn find(&self, path: String) -> eyre::Result<String> {
        Err(Status::not_found(path).into())
    }
}

#[test]
fn foreign_errors_become_status_with_causes() {
    let (server, node) = pair(ArchiveServer::new(Shelf));
    let client = ArchiveClient::connect(&node, server.local_address()).unwrap();
    let status = block_on(client.read("/no such directory/file".to_owned())).unwrap_err();
    assert_eq!((status.code(), status.causes().len()), (Code::Unknown, 1), "{status}");
    assert!(status.message().contains("is not a receipt"), "{status}");
    let status = block_on(client.find("receipt".to_owned())).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "receipt"), "{status}");
}
