//! Stubs written to a file by `trunkline-codegen` instead of the attribute macro.

use crate::common::pair;
use crate::streams::items::Iterate;
use std::collections::BTreeMap;
use std::sync::Mutex;
use trunkline::{Bytes, Status, Stream, block_on};

#[allow(unreachable_pub, unnameable_types, reason = "they are written for a crate that exports them")]
mod stubs {
    include!("../../../../codegen/tests/golden/kv.rs");
}

#[derive(Default)]
struct Store(Mutex<BTreeMap<String, Bytes>>);

impl stubs::Kv for Store {
    async fn put(&self, key: String, value: Bytes) -> u64 {
        let mut values = self.0.lock().unwrap();
        values.insert(key, value);
        values.len() as u64
    }
    async fn values(&self, prefix: String) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        let mut values = self.0.lock().unwrap().clone();
        values.retain(|key, _| key.starts_with(&prefix));
        Ok(Iterate(values.into_values().map(Ok)))
    }
}

#[test]
fn generated_stubs_work_like_stubs_of_macro() {
    stubs::other();
    let (server, node) = pair(stubs::KvServer::new(Store::default()));
    let client = stubs::KvClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.put("key".into(), "value".into())), Ok(1));
    assert_eq!(block_on(client.put("other".into(), "hidden".into())), Ok(2));
    let mut values = block_on(client.values("k".into())).unwrap();
    assert_eq!(block_on(values.message()), Ok(Some("value".into())));
    assert_eq!(block_on(values.message()), Ok(None));
}
