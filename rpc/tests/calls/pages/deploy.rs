//! The examples of `docs/book/src/operate/certificates.md`.

use trunkline::{Context, Node, NodeBuilder, StartError, Status, Target};

#[trunkline::service]
pub(super) trait Orders {
    async fn place(&self, cx: &Context, item: String) -> Result<String, Status>;
}

fn shop(orders: impl Orders + Send + Sync + 'static) -> Result<Node, StartError> {
    Node::builder()
        .listen("127.0.0.1:7000")
        .identity_files("shop.pem", "shop.key")
        .trust_files("ca/root.pem")
        // For a try on one host: by default processes of one user do without certificates.
        .exempt_local_user(false)
        .serve(OrdersServer::new(orders))
        .start()
}

fn till() -> Result<(Node, OrdersClient), StartError> {
    let node = Node::builder()
        .listen("127.0.0.1:0")
        .identity_files("till.pem", "till.key")
        .trust_files("ca/root.pem")
        .exempt_local_user(false)
        .start()?;
    let orders = OrdersClient::new(node.channel(Target::from("127.0.0.1:7000").named("shop.example")));
    Ok((node, orders))
}

fn cert_manager() -> NodeBuilder {
    Node::builder().identity_files("/tls/tls.crt", "/tls/tls.key").trust_files("/tls/ca.crt")
}

fn spiffe_helper() -> NodeBuilder {
    Node::builder()
        .identity_files("/run/svid/svid.pem", "/run/svid/svid_key.pem")
        .trust_files("/run/svid/svid_bundle.pem")
}

fn vault_agent() -> NodeBuilder {
    Node::builder()
        .identity_files("/run/vault/node.pem", "/run/vault/node.key")
        .trust_files("/run/vault/ca.pem")
}
