//! The examples of `docs/evolution.md`: a service's codec, and its versions.

use trunkline::{Code, InProcessNetwork, Node, block_on};

struct Store;

mod packed {
    #[trunkline::service(codec = trunkline::codec::MessagePack)]
    pub(super) trait Kv {
        async fn get(&self, key: String) -> String;
    }

    impl Kv for super::Store {
        async fn get(&self, key: String) -> String {
            key
        }
    }
}

mod second {
    #[trunkline::service(version = 2)]
    pub(super) trait Kv {
        async fn get(&self, key: String) -> String;
    }
}

mod third {
    #[trunkline::service(version = 3, accepts = 2..=3)]
    pub(super) trait Kv {
        async fn get(&self, key: String) -> String;
    }

    impl Kv for super::Store {
        async fn get(&self, key: String) -> String {
            key
        }
    }
}

#[test]
fn service_has_codec_and_accepts_older_version() {
    let network = InProcessNetwork::new();
    let build = || Node::builder().in_process(&network);
    let packed = build().serve(packed::KvServer::new(Store)).start().unwrap();
    let third = build().serve(third::KvServer::new(Store)).start().unwrap();
    let node = build().start().unwrap();
    let client = packed::KvClient::new(node.channel(packed.local_address()));
    assert_eq!(block_on(client.get("a".into())), Ok("a".to_owned()));
    let client = second::KvClient::new(node.channel(third.local_address()));
    assert_eq!(block_on(client.get("a".into())), Ok("a".to_owned()));
    let client = second::KvClient::new(node.channel(packed.local_address()));
    assert_eq!(block_on(client.get("a".into())).unwrap_err().code(), Code::FailedPrecondition);
}
