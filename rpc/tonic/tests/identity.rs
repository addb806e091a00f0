//! Names and certificates of callers, as seen by tonic services.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use tokio::runtime::Handle;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use trunkline::identity::{Identity, Level, Trust};
use trunkline::{Node, NodeBuilder, Peer, Target};
use trunkline_tonic::{Channel, Server, peer_certs};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).unwrap()
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, key()).unwrap()
}

/// Returns the builder of a node with this name, and the node's certificate.
fn named(root: &Authority, name: &str) -> (NodeBuilder, Vec<u8>) {
    let key = key();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, root).unwrap();
    let identity = Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let trust = Trust::from_pem(root.pem().as_bytes()).unwrap();
    (node().exempt_local_user(false).identity(identity).trust(trust), certificate.der().to_vec())
}

fn node() -> NodeBuilder {
    Node::builder().listen("127.0.0.1:0")
}

/// A service that returns the identities of its callers in response metadata.
struct Callers;

#[tonic::async_trait]
impl Health for Callers {
    type WatchStream = BoxStream<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let peer = request.extensions().get::<Peer>().ok_or_else(|| Status::internal("no peer"))?;
        let mut response = Response::new(HealthCheckResponse::default());
        let metadata = response.metadata_mut();
        metadata.insert("address", peer.address().to_string().parse().unwrap());
        if let Some(name) = peer.name() {
            metadata.insert("name", name.to_string().parse().unwrap());
        }
        for certificate in peer_certs(&request).iter().flat_map(|chain| chain.iter()) {
            metadata.append_bin("certificate-bin", tonic::metadata::MetadataValue::from_bytes(certificate));
        }
        Ok(response)
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("watch"))
    }
}

/// Returns the name and the certificates of this node, as reported by the server.
async fn reported(node: &Node, server: Target) -> (Option<String>, Vec<Vec<u8>>) {
    let mut client = HealthClient::new(Channel::new(node, server));
    let response = client.check(HealthCheckRequest::default()).await.unwrap();
    let metadata = response.metadata();
    assert_eq!(metadata.get("address").unwrap(), &node.local_address().to_string());
    let name = metadata.get("name").map(|name| name.to_str().unwrap().to_owned());
    let certificates = metadata.get_all_bin("certificate-bin").iter();
    (name, certificates.map(|certificate| certificate.to_bytes().unwrap().to_vec()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_see_name_and_certificates_of_caller() {
    let root = authority();
    let routes = || Server::new(Routes::new(HealthServer::new(Callers)));
    for service in [routes().runtime(Handle::current()), routes().on_pollers()] {
        let (server, _) = named(&root, "server.example");
        let server = server.accept(Level::None).serve(service).start_async().await.unwrap();
        let target = Target::from(server.local_address());
        for name in ["a.example", "b.example"] {
            let (node, certificate) = named(&root, name);
            let node = node.start_async().await.unwrap();
            let target = target.clone().named("server.example");
            assert_eq!(reported(&node, target).await, (Some(name.to_owned()), vec![certificate]));
        }
        let unproven = node().start_async().await.unwrap();
        assert_eq!(reported(&unproven, target).await, (None, Vec::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channel_expecting_another_name_is_refused() {
    let root = authority();
    let (server, _) = named(&root, "server.example");
    let service = Server::new(Routes::new(HealthServer::new(Callers))).on_pollers();
    let server = server.serve(service).start_async().await.unwrap();
    let node = named(&root, "a.example").0.start_async().await.unwrap();
    let target = Target::from(server.local_address()).named("shop.example");
    let mut client = HealthClient::new(Channel::new(&node, target));
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
}
