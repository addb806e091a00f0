use trunkline::{Bytes, Status};

#[trunkline::service(name = "kv.Kv")]
pub trait Kv {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status>;
    async fn put(&self, key: String, value: Bytes) -> Result<(), Status>;
}

// Trunkline
use std::collections::HashMap;
use std::sync::Mutex;
use trunkline::Node;

#[derive(Default)]
struct Store {
    map: Mutex<HashMap<String, Bytes>>,
}

impl Kv for Store {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        Ok(self.map.lock().unwrap().get(&key).cloned())
    }

    async fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        self.map.lock().unwrap().insert(key, value);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::builder().listen("127.0.0.1:7000").serve(KvServer::new(Store::default())).start()?;
    std::thread::park();
    node.shutdown();
    Ok(())
}

// Trunkline
use std::time::Duration;
use trunkline::CallOptions;

async fn read(node: &Node) -> Result<Option<Bytes>, Status> {
    let client = KvClient::new(node.channel("127.0.0.1:7000"));
    client.with(&CallOptions::new().timeout(Duration::from_millis(200))).get("a".into()).await
}
