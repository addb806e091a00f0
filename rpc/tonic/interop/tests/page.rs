//! The Rust examples of docs/book/src/guide/grpc.md, verbatim.

use tonic::Request;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use trunkline::{Node, PollerIndex, StartError, Target};
use trunkline_tonic_interop::{Interop, TestServiceClient as GreeterClient, routes};

fn client(node: &Node) -> GreeterClient<trunkline_tonic::Channel> {
    #[allow(clippy::let_and_return, clippy::needless_borrow, reason = "it is the text of the document")]
    let client = GreeterClient::new(trunkline_tonic::Channel::new(&node, "127.0.0.1:7100"));
    client
}

async fn server(routes: Routes) -> Result<Node, StartError> {
    let service = trunkline_tonic::Server::new(routes).runtime(tokio::runtime::Handle::current());
    let node = Node::builder().listen("127.0.0.1:7100").serve(service).start_async().await?;
    Ok(node)
}

#[rustfmt::skip]
fn limited(routes: Routes) -> trunkline::stub::Service {
    #[allow(clippy::let_and_return, reason = "it is the text of the document")]
    let service = trunkline_tonic::Server::new(routes)
        .limit("/shop.Orders", 1000)               // calls of the service that run at once
        .limit("/shop.Orders/Export", 8)           // and of one method
        .message_limit("/shop.Orders/Place", 4096) // bytes of a message in a request
        .runtime(tokio::runtime::Handle::current());
    service
}

async fn on_pollers(routes: Routes) -> Result<Node, StartError> {
    let service = trunkline_tonic::Server::new(routes).on_pollers();
    let node = Node::builder().tokio(tokio::runtime::Handle::current()).serve(service).start_async().await?;
    Ok(node)
}

fn health_of(node: &Node) -> Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    // `health` is one of the routes that the node serves
    node.run_on(PollerIndex(0), |poller| async move {
        poller.draining().await;
        reporter.set_service_status("", ServingStatus::NotServing).await; // watchers see NOT_SERVING
    });
    Routes::new(health)
}

#[rustfmt::skip]
fn callers<T>(request: Request<T>) -> (Option<String>, bool) {
    let caller = request.extensions().get::<trunkline::Peer>().and_then(|peer| peer.name());
    let certificates = trunkline_tonic::peer_certs(&request); // instead of `request.peer_certs()`
    (caller.map(ToString::to_string), certificates.is_some())
}

fn named(node: &Node) -> trunkline_tonic::Channel {
    #[allow(clippy::let_and_return, clippy::needless_borrow, reason = "it is the text of the document")]
    let channel = trunkline_tonic::Channel::new(&node, Target::from("10.0.0.1:7100").named("shop.example"));
    channel
}

#[tokio::test]
async fn examples_are_made() {
    let network = trunkline::InProcessNetwork::new();
    let node = Node::builder().in_process(&network).start_async().await.unwrap();
    let _client = client(&node);
    let _named = named(&node);
    assert_eq!(callers(Request::new(())), (None, false));
    let _health = health_of(&node);
    let _not_started = (server(routes(Interop::default())), on_pollers(routes(Interop::default())));
    let _service = limited(routes(Interop::default()));
}
