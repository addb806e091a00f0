// Trunkline
use trunkline::{Bytes, Status};

#[trunkline::service]
pub trait Kv {
    async fn get(&self, key: String) -> Option<Bytes>;
    async fn put(&self, key: String, value: Bytes);
}

// Trunkline
use std::collections::HashMap;
use std::sync::Mutex;
use trunkline::{Node, StartError};

#[derive(Default)]
struct Store {
    map: Mutex<HashMap<String, Bytes>>,
}

impl Kv for Store {
    async fn get(&self, key: String) -> Option<Bytes> {
        self.map.lock().unwrap().get(&key).cloned()
    }

    async fn put(&self, key: String, value: Bytes) {
        self.map.lock().unwrap().insert(key, value);
    }
}

async fn serve() -> Result<Node, StartError> {
    Node::builder().listen("127.0.0.1:7000").serve(KvServer::new(Store::default())).start_async().await
}

// Trunkline
async fn read(node: &Node) -> Result<Option<Bytes>, Status> {
    let client = KvClient::new(node.channel("127.0.0.1:7000"));
    client.get("a".into()).await
}
