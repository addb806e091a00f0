//! Stubs that `trunkline-codegen` wrote to a file, in place of the attribute macro.

use crate::common::pair;
use std::cell::RefCell;
use std::collections::BTreeMap;
use trunkline::{Bytes, Status, block_on};

#[allow(unreachable_pub, unnameable_types, reason = "they are written for a crate that exports them")]
mod stubs {
    include!("../../../codegen/tests/golden/kv.rs");
}

#[derive(Default)]
struct Store(RefCell<BTreeMap<String, Bytes>>);

impl stubs::Kv for Store {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        Ok(self.0.borrow().get(&key).cloned())
    }
    async fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        self.0.borrow_mut().insert(key, value);
        Ok(())
    }
    async fn count(&self) -> u64 {
        self.0.borrow().len() as u64
    }
    async fn forget(&self, _: u8, key: String) {
        self.0.borrow_mut().remove(&key);
    }
}

#[test]
fn generated_stubs_are_those_of_the_macro() {
    stubs::other();
    let (server, node) = pair(stubs::KvServer::per_poller(|_| Ok::<_, Status>(Store::default())));
    let client = stubs::KvClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.put("key".into(), "value".into())), Ok(()));
    assert_eq!(block_on(client.get("key".into())), Ok(Some("value".into())));
    assert_eq!(block_on(client.count()), Ok(1));
}
