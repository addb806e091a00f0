//! The examples of `docs/book/src/reference/budgets.md`, and of `docs/book/src/operate/recipes.md`.

use trunkline::{InProcessNetwork, Limit, Node, NodeBuilder};

#[trunkline::service]
trait Kv {
    async fn get(&self, key: String) -> u32;
    async fn scan(&self, from: String) -> u32;
}

struct Store;

impl Kv for Store {
    async fn get(&self, _: String) -> u32 {
        1
    }

    async fn scan(&self, _: String) -> u32 {
        2
    }
}

fn bounded(builder: NodeBuilder) -> NodeBuilder {
    builder.handler_limit(Limit { per_peer: 1000, in_all: 4000 })
}

fn small(builder: NodeBuilder) -> NodeBuilder {
    builder.memory_limit(512 << 20)
}

fn smaller(builder: NodeBuilder) -> NodeBuilder {
    builder.max_message_bytes(16 << 20).memory_limit(384 << 20)
}

#[rustfmt::skip]
fn limited(builder: NodeBuilder, store: Store) -> NodeBuilder {
    builder.serve(KvServer::new(store).limit(1000).limit_scan(8))
}

#[test]
fn limits_of_service_and_method_are_reported() {
    let node = limited(Node::builder().in_process(&InProcessNetwork::new()), Store).start().unwrap();
    let limits = node.report().limits.iter().map(|row| row.limit).collect::<Vec<_>>();
    assert_eq!(limits, [1000, 8]);
}

#[test]
fn limits_of_peers_are_reported() {
    let node = bounded(Node::builder().in_process(&InProcessNetwork::new())).start().unwrap();
    let budgets = node.report().budgets;
    let handlers = budgets.iter().find(|budget| budget.name == "running handlers").unwrap();
    assert_eq!(handlers.limit, Limit { per_peer: 1000, in_all: 4000 });
}

#[test]
fn single_setting_lowers_limit_of_handlers() {
    for lowered in [small, smaller] {
        let node = lowered(Node::builder().in_process(&InProcessNetwork::new())).start().unwrap();
        let budgets = node.report().budgets;
        let handlers = budgets.iter().find(|budget| budget.name == "running handlers").unwrap();
        assert!((1_024..8_192).contains(&handlers.limit.in_all), "{handlers:?}");
    }
}
