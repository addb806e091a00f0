//! Nodes with identities: names of callers in handlers and in authorization, and refusals as seen by callers.

use crate::common::{Events, Reporter, events, fresh_address, node, until};
use crate::gate::Gate;
use crate::logged::Logged;
use crate::streams::items::Iterate;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ED25519, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use std::sync::Arc;
use std::time::Duration;
use trunkline::identity::{Identity, Level, Name, Trust};
use trunkline::report::{EventKind, RecordedEvent};
use trunkline::stream::Stream;
use trunkline::{
    CallOptions, Code, Connect, Context, IncomingCall, Metadata, Node, NodeBuilder, Peer, Policy, Reason,
    ServerList, StartError, Status, Target, block_on,
};
use trunkline_transport::NodeOptions;
use trunkline_transport::identity::Credentials;

pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(super) fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap()).unwrap()
}

/// Issues a revocation list with one revoked certificate.
pub(super) fn revocation_list(issuer: &Authority, serial: u64) -> String {
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(serial),
        revocation_time: date_time_ymd(2021, 1, 1),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2021, 1, 1),
        next_update: date_time_ymd(4000, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(issuer).unwrap().pem().unwrap()
}

/// Returns the parameters of a certificate that is valid between two years. `names` are separated by spaces.
fn params(names: &str, years: [i32; 2]) -> CertificateParams {
    let (uris, names) = names.split(' ').partition::<Vec<_>, _>(|name| name.starts_with("spiffe:"));
    let names = names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names).unwrap();
    params.subject_alt_names.extend(uris.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap())));
    [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
    params
}

/// Issues a certificate. Returns the certificate and its key as PEM.
fn issue_params(issuer: &Authority, params: &CertificateParams) -> [String; 2] {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    [params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem()]
}

/// Issues a certificate that is valid between two years. `names` are separated by spaces. Returns the certificate and its
/// key as PEM.
pub(super) fn issue_pem(issuer: &Authority, names: &str, years: [i32; 2]) -> [String; 2] {
    issue_params(issuer, &params(names, years))
}

pub(super) fn issue(issuer: &Authority, name: &str, years: [i32; 2]) -> Identity {
    let [chain, key] = issue_pem(issuer, name, years);
    Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap()
}

pub(super) fn trust(root: &Authority) -> Trust {
    Trust::from_pem(root.pem().as_bytes()).unwrap()
}

/// Adds an identity with this name. Its issuer is an authority that the node trusts.
pub(super) fn named(builder: NodeBuilder, root: &Authority, name: &str) -> NodeBuilder {
    builder.exempt_local_user(false).identity(issue(root, name, [2020, 4000])).trust(trust(root))
}

#[trunkline::service(name = "tests.Named")]
pub(super) trait Named {
    async fn caller(&self) -> Option<String>;
    async fn guarded(&self) -> u8;
    /// Reports the caller's name after the gate has opened.
    #[oneway]
    async fn later(&self);
    async fn count(&self, to: u32) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
}

struct Handler {
    gate: Gate,
    names: Reporter<Option<String>>,
}

/// Reports its callers.
struct Caller {
    peers: Reporter<Peer>,
}

impl Named for Caller {
    async fn caller(&self) -> Option<String> {
        self.peers.tell(Context::current()?.peer()?.clone());
        None
    }

    async fn guarded(&self) -> u8 {
        1
    }

    async fn later(&self) {}

    async fn count(&self, to: u32) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        Ok(Iterate((0..to).map(Ok)))
    }
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

    async fn count(&self, to: u32) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
        Ok(Iterate((0..to).map(Ok)))
    }
}

pub(super) fn service() -> (NamedServer, Gate, Events<Option<String>>) {
    let (gate, (names, told)) = (Gate::default(), events());
    (NamedServer::new(Handler { gate: gate.clone(), names }), gate, told)
}

/// Returns a client that expects the name of the test servers.
pub(super) fn client(node: &Node, server: &Node) -> NamedClient {
    client_of(node, Target::from(server.local_address()).named("server.example"))
}

fn client_of(node: &Node, target: impl Into<Target>) -> NamedClient {
    NamedClient::new(node.channel(target))
}

#[test]
fn node_without_identity_does_not_call_server_by_name_to_prove() {
    let (server, node) = (node().start().unwrap(), Node::builder().start().unwrap());
    let target = Target::from(server.local_address());
    let client = NamedClient::new(node.channel(target.named("a.example")));
    let status = block_on(client.caller()).unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("no peer proves one to a node without an identity"), "{status}");
}

#[test]
fn named_node_accepting_level_none_may_listen_only_on_loopback() {
    let root = authority("root");
    let builder = || named(Node::builder().listen("0.0.0.0:0"), &root, "a.example");
    let error = builder().accept(Level::None).start().unwrap_err();
    assert!(matches!(error, StartError::NotLoopback(_)), "{error}");
    // Another program may hold the port at one of this host's addresses.
    assert!(!matches!(builder().start(), Err(StartError::NotLoopback(_))));
}

#[test]
fn handlers_and_authorizers_see_proven_name() {
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
fn handler_keeps_name_of_its_own_session() {
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

/// Returns the numbers of started and failed handshakes, and of sessions with and without a proven name.
fn counts(node: &Node) -> [u64; 4] {
    let report = node.report();
    ["handshakes_begun", "handshakes_failed", "sessions_proven", "sessions_unproven"]
        .map(|name| report.counter(name).expect("a node with an identity has the counter"))
}

/// Returns the status of a call that does not reach a handler.
fn refusal(node: &Node, server: &Node) -> Status {
    let status = block_on(client_of(node, server.local_address()).caller()).unwrap_err();
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Unreachable), false), "{status}");
    status
}

/// A clock that always shows the middle of a year.
#[derive(Debug)]
struct Year(i32);

impl TimeProvider for Year {
    fn current_time(&self) -> Option<UnixTime> {
        let at = u64::try_from(date_time_ymd(self.0, 7, 1).unix_timestamp()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(at)))
    }
}

/// Returns a builder for a node with these credentials, which bypass the checks of the public API.
fn with(credentials: Credentials) -> NodeBuilder {
    let options = NodeOptions::new().credentials(Arc::new(credentials)).exempt_local_user(false);
    Node::builder().transport(options).listen(fresh_address())
}

/// Returns the builder of a node whose certificate has expired or is not yet valid. The node's own clock is within the
/// validity of the certificate.
fn in_year(root: &Authority, year: i32) -> NodeBuilder {
    let identity = issue(root, "a.example", [year, year + 1]);
    with(Credentials::new(&identity, &trust(root), default_provider(), Arc::new(Year(year))).unwrap())
}

/// Returns the builder of a node that presents another node's certificate but signs with its own key.
fn impostor(root: &Authority) -> NodeBuilder {
    let [own, stolen] = [(); 2].map(|()| params("a.example", [2020, 4000]));
    let (key, other) = (KeyPair::generate_for(&PKCS_ED25519).unwrap(), KeyPair::generate().unwrap());
    let stolen = stolen.signed_by(&other, root).unwrap();
    let own = own.signed_by(&key, root).unwrap();
    let [chain, key_pem] = [own.pem(), key.serialize_pem()];
    let identity = Identity::from_pem(chain.as_bytes(), key_pem.as_bytes()).unwrap();
    let mut credentials = Credentials::of_system(&identity, &trust(root)).unwrap();
    let key = any_supported_type(&PrivateKeyDer::Pkcs8(key.serialize_der().into())).unwrap();
    let presented = SingleCertAndKey::from(CertifiedKey::new(vec![stolen.der().clone()], key));
    let presented = Arc::new(presented);
    Arc::make_mut(&mut credentials.client).client_auth_cert_resolver = presented.clone();
    Arc::make_mut(&mut credentials.server).cert_resolver = presented;
    with(credentials)
}

#[test]
fn failed_handshakes_are_named_at_both_nodes() {
    let [root, other] = ["root", "other"].map(authority);
    let lists = trust(&root).with_revocation_lists(revocation_list(&root, 77).as_bytes()).unwrap();
    let judge = node().exempt_local_user(false).identity(issue(&root, "server.example", [2020, 4000]));
    let judge = judge.trust(lists).serve(service().0).start().unwrap();
    let of = |[chain, key]: [String; 2]| {
        let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        node().exempt_local_user(false).identity(identity).trust(trust(&root))
    };
    let mut revoked = params("a.example", [2020, 4000]);
    revoked.serial_number = Some(SerialNumber::from(77));
    let handshakes = [
        (of(issue_params(&root, &revoked)), "a certificate of the chain is revoked: issue another one"),
        (in_year(&root, 2020), "a certificate of the chain has expired: renew it"),
        (in_year(&root, 3500), "a certificate of the chain is not valid yet: correct the clock"),
        (impostor(&root), "bad signature of a certificate, a revocation list or the handshake: "),
    ];
    let handshakes = handshakes.map(|(node, cause)| {
        let texts = ["this node", "the peer"].map(|by| format!("{by} ended the handshake: {cause}"));
        (node, [Code::Unauthenticated; 2], texts)
    });
    let stranger = (
        of(issue_pem(&other, "a.example", [2020, 4000])),
        [Code::Unauthenticated; 2],
        [
            "this node ended the handshake: no path from the peer's certificate to a root of this node's trust: add the root",
            "the peer ended the handshake: the peer has no root for this node's certificate: have it issued by an authority",
        ]
        .map(str::to_owned),
    );
    let plain = (
        node(),
        [Code::Unavailable, Code::Unauthenticated],
        [
            "it lacks an identity, or another feature that this node requires: give it an identity",
            "it requires an identity, and this node has none: give this node one",
        ]
        .map(str::to_owned),
    );
    for (peer, codes, texts) in handshakes.into_iter().chain([stranger, plain]) {
        let peer = peer.serve(service().0).start().unwrap();
        // The peer calls first.
        let statuses = [refusal(&peer, &judge), refusal(&judge, &peer)];
        for (status, (code, text)) in statuses.iter().rev().zip(codes.iter().zip(&texts)) {
            assert_eq!(status.code(), *code, "{status}");
            assert!(status.message().contains(text), "{text}: {status}");
        }
    }
    until("the judge counts the failures", || (counts(&judge)[1] >= 5).then_some(()));
    for cause in ["no path from the peer's certificate to a root", "a certificate of the chain is revoked"] {
        let text = format!("this node ended the handshake: {cause}");
        let is_recorded =
            |event: &RecordedEvent| event.kind == EventKind::SessionNotMade && event.cause.starts_with(&text);
        // The first status belongs to the peer's call, the second to the judge's call.
        until("the judge records both", || {
            (judge.record().into_iter().filter(is_recorded).count() == 2).then_some(())
        });
    }
    assert_eq!(counts(&judge)[2..], [0, 0]);
}

#[test]
fn peers_without_name_are_accepted_on_request() {
    let (root, log) = (authority("root"), Logged::at(tracing::Level::WARN));
    let open = named(node(), &root, "server.example").serve(service().0).accept(Level::None);
    let server = tracing::subscriber::with_default(log.clone(), || open.start()).unwrap();
    assert_eq!(log.count("unauthenticated peers accepted"), 1);
    let plain = node().start().unwrap();
    assert_eq!(block_on(client_of(&plain, server.local_address()).caller()).unwrap(), None);
    assert_eq!(counts(&server), [0, 0, 0, 1]);
    let other = named(node(), &root, "a.example").start().unwrap();
    assert_eq!(block_on(client(&other, &server).caller()).unwrap().as_deref(), Some("a.example"));
}

#[test]
fn refused_peer_is_named_in_log_of_server() {
    let log = Logged::by_all();
    let server = named(node(), &authority("root"), "server.example").serve(service().0).start().unwrap();
    let plain = node().start().unwrap();
    block_on(client_of(&plain, server.local_address()).caller()).unwrap_err();
    let peer = format!("peer={}:", plain.local_address().ip());
    let is_refusal = |line: &&String| line.contains(&peer) && line.contains("session request refused");
    let line = until("it is logged", || log.lines().iter().find(is_refusal).cloned());
    assert!(line.starts_with("WARN") && line.contains("give the peer an identity"), "{line}");
}

#[test]
fn unusable_identity_is_named_at_start() {
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
    assert_eq!(log.count("certificate of this node does not verify against its own trust"), 1);
}

/// Starts a server at a new address. `IP` in `names` stands for this address.
fn server_with(service: NamedServer, root: &Authority, names: &str) -> Node {
    let at = fresh_address();
    let names = names.replace("IP", &at.ip().to_string());
    named(Node::builder().listen(at), root, &names).serve(service).start().unwrap()
}

fn server(root: &Authority, names: &str) -> Node {
    server_with(service().0, root, names)
}

/// Fails unless a call to this target is refused because the server has not proved the expected name.
fn refused(node: &Node, target: impl Into<Target>, expected: &str, proved: &str) {
    let status = block_on(client_of(node, target).caller()).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::Unauthenticated, false), "{status}");
    let text = format!("expected {expected}, the peer proved {proved}: ");
    assert!(status.message().contains(&text), "{status}");
}

fn runs(node: &Node, target: impl Into<Target>) {
    assert_eq!(block_on(client_of(node, target).caller()).unwrap().as_deref(), Some("a.example"));
}

#[test]
fn target_address_is_expected_name() {
    let root = authority("root");
    let right = server(&root, "server.example IP");
    let [wrong, unnumbered] =
        ["server.example 127.0.0.2", "server.example"].map(|names| server(&root, names));
    let client = named(node(), &root, "a.example").start().unwrap();
    let [right, wrong, unnumbered] = [&right, &wrong, &unnumbered].map(Node::local_address);
    runs(&client, right);
    refused(&client, unnumbered, &unnumbered.ip().to_string(), "server.example");
    let expected = wrong.ip().to_string();
    refused(&client, wrong, &expected, "server.example");
    // A channel with several addresses uses one whose name matches. A channel with a resolver expects the same name.
    runs(&client, [wrong, right]);
    runs(&client, Target::resolver(ServerList::new("servers", [wrong, right])));
    refused(&client, Target::resolver(ServerList::new("servers", [wrong])), &expected, "server.example");
    // A node without an identity does not compare names.
    let open = named(node(), &root, "server.example 127.0.0.2").serve(service().0).accept(Level::None);
    let open = open.start().unwrap();
    let plain = node().start().unwrap();
    assert_eq!(block_on(client_of(&plain, open.local_address()).caller()).unwrap(), None);
}

#[test]
fn target_host_name_is_expected_name() {
    let root = authority("root");
    let start = |names| {
        let server = named(Node::builder().listen("127.0.0.1:0"), &root, names);
        server.serve(service().0).start().unwrap()
    };
    let (right, wrong) = (start("localhost 127.0.0.2"), start("server.example 127.0.0.1"));
    let client = named(node(), &root, "a.example").start().unwrap();
    runs(&client, ("localhost", right.local_address().port()));
    let wrong = wrong.local_address();
    refused(&client, ("localhost", wrong.port()), "localhost", "server.example");
    // The session serves a channel that expects its name.
    runs(&client, wrong);
    runs(&client, Target::from(("localhost", wrong.port())).named("server.example"));
}

#[test]
fn given_name_is_expected_at_all_addresses() {
    let root = authority("root");
    let server = server(&root, "spiffe://prod/shop server.example IP");
    let client = named(node(), &root, "a.example").start().unwrap();
    let at = server.local_address();
    for name in ["spiffe://prod/shop", "server.example", &at.ip().to_string()] {
        runs(&client, Target::from(at).named(name));
        runs(&client, Target::resolver(ServerList::new("servers", [at])).named(name));
    }
    for name in ["spiffe://prod/till", "other.example", "127.0.0.2"] {
        refused(&client, Target::from(at).named(name), name, "spiffe://prod/shop");
        refused(
            &client,
            Target::resolver(ServerList::new("servers", [at])).named(name),
            name,
            "spiffe://prod/shop",
        );
    }
    let status = block_on(client_of(&client, Target::from(at).named("*.example")).caller()).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("invalid name \"*.example\": expected a DNS name"), "{status}");
}

#[test]
fn peers_without_name_match_defaults_only() {
    let root = authority("root");
    let server = Node::builder().listen("127.0.0.1:0").serve(service().0).start().unwrap();
    let open = named(node(), &root, "a.example").accept(Level::None).start().unwrap();
    let at = server.local_address();
    assert_eq!(block_on(client_of(&open, at).caller()).unwrap(), None);
    assert_eq!(block_on(client_of(&open, ("localhost", at.port())).caller()).unwrap(), None);
    refused(&open, Target::from(at).named("127.0.0.1"), "127.0.0.1", "no name");
}

#[test]
fn every_kind_of_call_to_misnamed_server_is_refused_before_sending() {
    let root = authority("root");
    let (service, gate, _names) = service();
    let server = server_with(service, &root, "server.example IP");
    let node = named(node(), &root, "a.example").start().unwrap();
    let at = server.local_address();
    for is_up in [false, true] {
        for target in [Target::from(at), Target::resolver(ServerList::new("servers", [at]))] {
            let channel = node.channel(target.named("other.example"));
            for client in [channel.clone(), channel.ordered(), channel.balanced(Policy::RoundRobin)] {
                let client = NamedClient::new(client);
                for status in [
                    block_on(client.caller()).map(|_| ()).unwrap_err(),
                    block_on(client.later()).unwrap_err(),
                    block_on(client.count(1)).map(|_| ()).unwrap_err(),
                ] {
                    assert_eq!(
                        (status.code(), status.may_have_run()),
                        (Code::Unauthenticated, false),
                        "{status}"
                    );
                }
            }
            assert!(!channel.is_connected());
            let status = block_on(channel.ready()).unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        }
        if !is_up {
            // These channels cannot use the session of another channel.
            runs(&node, at);
        }
    }
    assert_eq!(gate.arrived(), 0);
    let served = server.report().served;
    assert_eq!(served.iter().map(|method| method.calls).sum::<u64>(), 1);
}

#[test]
fn balanced_channel_passes_over_server_with_another_name() {
    let root = authority("root");
    let (right, wrong) = (server(&root, "server.example"), server(&root, "other.example IP"));
    let client = named(node(), &root, "a.example").start().unwrap();
    // Establish a session with the wrong server.
    runs(&client, wrong.local_address());
    let target = Target::from([wrong.local_address(), right.local_address()]).named("server.example");
    for policy in [Policy::PickFirst, Policy::RoundRobin, Policy::PowerOfTwo] {
        let channel = client.channel(target.clone()).balanced(policy);
        let client = NamedClient::new(channel);
        for _ in 0..20 {
            block_on(client.caller()).unwrap();
        }
    }
}

#[test]
fn waiting_call_reaches_server_with_expected_name_after_replacement() {
    let root = authority("root");
    let client = named(node(), &root, "a.example").start().unwrap();
    let wrong = server(&root, "other.example IP");
    let at = wrong.local_address();
    runs(&client, at);
    let options = CallOptions::new().connect(Connect::Wait).timeout(Duration::from_secs(60));
    let targets = [Target::from(at), Target::resolver(ServerList::new("servers", [at]))];
    let waiting = targets.map(|target| client_of(&client, target.named("server.example")));
    let mut calls = waiting.each_ref().map(|client| Box::pin(async { client.with(&options).caller().await }));
    let soon = CallOptions::new().connect(Connect::Wait).timeout(Duration::from_millis(50));
    let late = block_on(waiting[0].with(&soon).caller()).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert!(late.message().contains("expected server.example, the peer proved other.example"), "{late}");
    wrong.shutdown();
    let (service, _gate, _names) = service();
    let _right = named(Node::builder().listen(at), &root, "server.example").serve(service).start().unwrap();
    for call in &mut calls {
        assert_eq!(block_on(call).unwrap().as_deref(), Some("a.example"));
    }
    // The channels have lost their sessions with the first server.
    refused(&client, at, &at.ip().to_string(), "server.example");
}

#[test]
fn channel_to_caller_expects_its_name() {
    let root = authority("root");
    let (peers, told) = events();
    let server =
        named(node(), &root, "server.example").serve(NamedServer::new(Caller { peers })).start().unwrap();
    let first = named(node(), &root, "first.example").serve(service().0).start().unwrap();
    let at = first.local_address();
    block_on(client(&first, &server).caller()).unwrap();
    let back = NamedClient::new(server.channel_to(&told.next()));
    assert_eq!(block_on(back.caller()).unwrap().as_deref(), Some("server.example"));
    first.shutdown();
    let second = named(Node::builder().listen(at), &root, "second.example").serve(service().0);
    let _second = second.start().unwrap();
    let status = block_on(async {
        loop {
            // A call may be the first to detect the end of the first session.
            let status = back.caller().await.unwrap_err();
            if status.code() != Code::Unavailable {
                break status;
            }
        }
    });
    assert_eq!((status.code(), status.may_have_run()), (Code::Unauthenticated, false), "{status}");
    assert!(status.message().contains("expected first.example, the peer proved second.example"), "{status}");
}
