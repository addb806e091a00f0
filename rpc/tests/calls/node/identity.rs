//! Nodes with identities: names of callers in handlers and authorization, and refusals as callers see them.

use crate::common::{Events, Reporter, events, node, until};
use crate::gate::Gate;
use crate::logged::Logged;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ED25519, date_time_ymd,
};
use std::time::Duration;
use trunkline::identity::{Identity, Level, Name, Trust};
use trunkline::{
    CallOptions, Code, Context, IncomingCall, Metadata, Node, NodeBuilder, Reason, StartError, Status,
    block_on,
};

pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(super) fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap()).unwrap()
}

/// Issues a certificate that is valid in these years. Returns it and its key, as PEM.
pub(super) fn issue_pem(issuer: &Authority, name: &str, years: [i32; 2]) -> [String; 2] {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    [params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem()]
}

pub(super) fn issue(issuer: &Authority, name: &str, years: [i32; 2]) -> Identity {
    let [chain, key] = issue_pem(issuer, name, years);
    Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap()
}

pub(super) fn trust(root: &Authority) -> Trust {
    Trust::from_pem(root.pem().as_bytes()).unwrap()
}

/// Adds an identity with this name, of an authority that the node trusts.
pub(super) fn named(builder: NodeBuilder, root: &Authority, name: &str) -> NodeBuilder {
    builder.exempt_local_user(false).identity(issue(root, name, [2020, 4000])).trust(trust(root))
}

#[trunkline::service(name = "tests.Named")]
pub(super) trait Named {
    async fn caller(&self) -> Option<String>;
    async fn guarded(&self) -> u8;
    /// Reports the caller's name as soon as the gate is open.
    #[oneway]
    async fn later(&self);
}

struct Handler {
    gate: Gate,
    names: Reporter<Option<String>>,
}

fn caller() -> Option<String> {
    Context::current()?.peer()?.name().map(Name::to_string)
}

impl Named for Handler {
    async fn caller(&self) -> Option<String> {
        caller()
    }

    async fn guarded(&self) -> u8 {
        1
    }

    async fn later(&self) {
        self.gate.pass().await;
        self.names.tell(caller());
    }
}

pub(super) fn service() -> (NamedServer, Gate, Events<Option<String>>) {
    let (gate, (names, told)) = (Gate::default(), events());
    (NamedServer::new(Handler { gate: gate.clone(), names }), gate, told)
}

pub(super) fn client(node: &Node, server: &Node) -> NamedClient {
    NamedClient::new(node.channel(server.local_address()))
}

#[test]
fn handlers_and_authorizers_see_the_proven_name() {
    let root = authority("root");
    let by_name = |call: &IncomingCall<'_>| match (call.method(), call.peer().name()) {
        ("guarded", Some(Name::Dns(name))) if &**name != "b.example" => {
            Err(Status::permission_denied(format!("{name} may not")))
        }
        _ => Ok(()),
    };
    let server = named(node(), &root, "server.example").serve(service().0).authorize(by_name);
    let server = server.start().unwrap();
    let [a, b] = ["a.example", "b.example"].map(|name| named(node(), &root, name).start().unwrap());
    let of_a = client(&a, &server);
    assert_eq!(block_on(of_a.caller()).unwrap().as_deref(), Some("a.example"));
    let mut metadata = Metadata::new();
    metadata.insert("name", "b.example").unwrap();
    let options = CallOptions::new().metadata(metadata);
    assert_eq!(block_on(of_a.with(&options).caller()).unwrap().as_deref(), Some("a.example"));
    let refused = block_on(of_a.guarded()).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().ends_with(": a.example may not"), "{refused}");
    let of_b = client(&b, &server);
    assert_eq!(block_on(of_b.guarded()).unwrap(), 1);
    assert_eq!(block_on(of_b.caller()).unwrap().as_deref(), Some("b.example"));
    assert_eq!(counts(&server), [2, 0, 2, 0]);
    let left = server.report().certificate_expires_in.unwrap();
    assert!(left > Duration::from_secs(365 * 86_400), "{left:?}");
}

#[test]
fn a_handler_keeps_the_name_of_its_own_session() {
    let root = authority("root");
    let (service, gate, names) = service();
    let server = named(node(), &root, "server.example").serve(service).start().unwrap();
    let first = named(node(), &root, "first.example").start().unwrap();
    let address = first.local_address();
    block_on(client(&first, &server).later()).unwrap();
    until("the handler waits", || (gate.arrived() == 1).then_some(()));
    first.shutdown();
    let second = named(Node::builder().listen(address), &root, "second.example").start().unwrap();
    let of_second = client(&second, &server);
    assert_eq!(block_on(of_second.caller()).unwrap().as_deref(), Some("second.example"));
    gate.open();
    assert_eq!(names.next().as_deref(), Some("first.example"));
}

/// Returns the numbers of handshakes that began and failed, and of sessions with and without a proven name.
fn counts(node: &Node) -> [u64; 4] {
    let report = node.report();
    ["handshakes_begun", "handshakes_failed", "sessions_proven", "sessions_unproven"].map(|name| {
        let counter = report.counters.iter().find(|counter| counter.name == name);
        counter.expect("a node with an identity has the counter").value
    })
}

/// Returns the status of a call that does not reach a handler.
fn refusal(node: &Node, server: &Node) -> Status {
    let status = block_on(client(node, server).caller()).unwrap_err();
    assert!(!status.may_have_run(), "{status}");
    assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
    status
}

#[test]
fn failed_handshakes_are_named_at_the_caller() {
    let [root, other] = ["root", "other"].map(authority);
    let server = named(node(), &root, "server.example").serve(service().0).start().unwrap();
    let stranger = node()
        .exempt_local_user(false)
        .identity(issue(&other, "a.example", [2020, 4000]))
        .trust(trust(&root));
    let stranger = stranger.start().unwrap();
    let status = refusal(&stranger, &server);
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("no path from the certificate to a root"), "{status}");
    until("the server counts the failure", || (counts(&server)[1] > 0).then_some(()));
    assert_eq!(counts(&server)[2..], [0, 0]);
    let status = refusal(&node().start().unwrap(), &server);
    assert!(status.message().contains("requires an identity, and this node has none"), "{status}");
}

#[test]
fn peers_without_a_name_are_accepted_on_request() {
    let (root, log) = (authority("root"), Logged::at(tracing::Level::WARN));
    let open = named(node(), &root, "server.example").serve(service().0).accept(Level::None);
    let server = tracing::subscriber::with_default(log.clone(), || open.start()).unwrap();
    assert_eq!(log.count("accepts peers that have proved no name"), 1);
    let plain = node().start().unwrap();
    assert_eq!(block_on(client(&plain, &server).caller()).unwrap(), None);
    assert_eq!(counts(&server), [0, 0, 0, 1]);
    let other = named(node(), &root, "a.example").start().unwrap();
    assert_eq!(block_on(client(&other, &server).caller()).unwrap().as_deref(), Some("a.example"));
}

#[test]
fn an_unusable_identity_is_named_at_the_start() {
    let [root, other] = ["root", "other"].map(authority);
    let own = || issue(&root, "a.example", [2020, 4000]);
    for (builder, text) in [
        (
            node().exempt_local_user(false).identity(own()),
            "has no trust: give the node the roots of its peers' certificates",
        ),
        (node().trust(trust(&root)), "there is none: give the node its certificates and private key"),
        (node().accept(Level::Encrypted), "there is none: give the node its certificates and private key"),
        (
            node()
                .exempt_local_user(false)
                .identity(issue(&root, "a.example", [2020, 2021]))
                .trust(trust(&root)),
            "expired on 2021-01-01: renew it",
        ),
        (
            node()
                .exempt_local_user(false)
                .identity(issue(&root, "a.example", [3000, 4000]))
                .trust(trust(&root)),
            "not valid yet: correct the clock",
        ),
        (
            node()
                .exempt_local_user(false)
                .identity(issue(&other, "a.example", [2020, 2021]))
                .trust(trust(&root)),
            "expired on 2021-01-01: renew it",
        ),
    ] {
        let error = builder.start().unwrap_err();
        assert!(matches!(error, StartError::BadIdentity(_)), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let log = Logged::at(tracing::Level::WARN);
    let unknown = node().exempt_local_user(false).identity(own()).trust(trust(&other));
    let _node = tracing::subscriber::with_default(log.clone(), || unknown.start()).unwrap();
    assert_eq!(log.count("peers with the trust of this node would refuse its certificate"), 1);
}
