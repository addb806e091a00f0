//! Nodes with identities. The tests cover sessions after a handshake, and refusals at both sides.

use crate::common::{ECHO, Happened, Job, SIZES, TestNode, over_udp, pattern};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ED25519, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use trunkline_transport::identity::{Credentials, Identity, Level, Trust};
use trunkline_transport::{Connections, NodeOptions, PeerDown, PeerEvent, PeerIdentity};

pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap()).unwrap()
}

/// Issues a certificate that is valid until the year `until`, for a node that trusts `root`.
pub(crate) fn issue(issuer: &Authority, root: &Authority, name: &str, until: i32) -> Arc<Credentials> {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let chain = params.signed_by(&key, issuer).unwrap().pem();
    let identity = Identity::from_pem(chain.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let trust = Trust::from_pem(root.pem().as_bytes()).unwrap();
    Arc::new(Credentials::of_system(&identity, &trust).unwrap())
}

fn node(credentials: &Arc<Credentials>) -> NodeOptions {
    over_udp().credentials(Arc::clone(credentials)).exempt_local_user(false)
}

/// Returns options with an identity.
pub(crate) fn any_node() -> NodeOptions {
    let root = authority("root");
    node(&issue(&root, &root, "a.example", 4000))
}

/// Returns the proven name of the next session's peer.
fn proven(node: &mut TestNode) -> String {
    match node.identity() {
        PeerIdentity::Proven(proven) => proven.principal().to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn both_sides_get_proven_name_over_all_paths() {
    let root = authority("root");
    let [a, b] = ["a.example", "b.example"].map(|name| issue(&root, &root, name, 4000));
    for connections in [Connections::Xrc, Connections::Rc] {
        for (here, there) in [(1, 1), (3, 2)] {
            let mut server = TestNode::start(node(&b).connections(connections), there);
            let mut client = TestNode::start(node(&a).connections(connections), here);
            client.echoes(&server, &SIZES);
            assert_eq!(proven(&mut server), "a.example");
            for poller in 0..usize::from(here) {
                let peer = client.name(poller, server.address);
                for token in 0..4 {
                    let to = u16::try_from(token).unwrap() % there;
                    client.send_to(poller, peer, Some(to), &[ECHO], pattern(20_000, 3), token, None);
                }
                let answers = (0..4).map(|_| client.message().0.poller.0).collect::<HashSet<_>>();
                assert_eq!(answers, (0..there).collect());
            }
            assert_eq!(client.report().rnr + server.report().rnr, 0);
        }
    }
}

#[test]
fn crossing_dials_create_one_session() {
    let root = authority("root");
    let [a, b] = ["a.example", "b.example"].map(|name| issue(&root, &root, name, 4000));
    for _ in 0..20 {
        let [mut first, mut second] = [&a, &b].map(|own| TestNode::start(node(own), 1));
        let addresses = [first.address, second.address];
        first.job(0, Job::Connect(addresses[1]));
        second.job(0, Job::Connect(addresses[0]));
        assert_eq!((proven(&mut first), proven(&mut second)), ("b.example".into(), "a.example".into()));
        assert_eq!((first.report().qps(), second.report().qps()), (2, 2));
    }
}

/// Returns the reason why a session is refused.
fn refusal(client: &mut TestNode, server: &TestNode) -> String {
    let peer = client.name(0, server.address);
    let cause = client.down(peer);
    assert!(
        matches!(cause, PeerDown::Handshake(_) | PeerDown::Refused(_) | PeerDown::IdentityRequired),
        "{cause:?}"
    );
    cause.to_string()
}

#[test]
fn refusals_name_their_cause_at_both_sides() {
    let [root, other] = ["root", "other"].map(authority);
    let [a, b] = ["a.example", "b.example"].map(|name| issue(&root, &root, name, 4000));
    let expired = issue(&root, &root, "a.example", 2021);
    let stranger = issue(&other, &root, "a.example", 4000);
    let has_expired = "a certificate of the chain has expired";
    for (bad, causes) in [
        (&expired, [has_expired; 2]),
        (
            &stranger,
            [
                "the peer has no root for this node's certificate",
                "no path from the peer's certificate to a root",
            ],
        ),
    ] {
        // The node with the lower epoch verifies first, so either node may be the one that refuses.
        let [mut client, server] = [bad, &b].map(|own| TestNode::start(node(own), 1));
        let text = refusal(&mut client, &server);
        let expected = format!("the peer ended the handshake: {}", causes[0]);
        assert!(text.starts_with(&expected), "{text}");
        let [mut client, server] = [&a, bad].map(|own| TestNode::start(node(own), 1));
        let text = refusal(&mut client, &server);
        let expected = format!("this node ended the handshake: {}", causes[1]);
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn nodes_without_identity_are_refused_unless_accepted() {
    let root = authority("root");
    let b = issue(&root, &root, "b.example", 4000);
    let mut plain = TestNode::start(over_udp(), 1);
    let strict = TestNode::start(node(&b), 1);
    let text = refusal(&mut plain, &strict);
    assert!(text.contains("requires an identity, and this node has none"), "{text}");
    let mut strict_client = TestNode::start(node(&b), 1);
    let text = refusal(&mut strict_client, &plain);
    assert!(text.contains("lacks an identity"), "{text}");
    let mut open = TestNode::start(node(&b).accept(Level::None), 1);
    open.echoes(&plain, &[10]);
    assert_eq!(plain.identity(), PeerIdentity::Unproven);
    let mut other = TestNode::start(over_udp(), 1);
    other.echoes(&open, &[10]);
    assert_eq!(open.identity(), PeerIdentity::Unproven);
}

#[test]
fn processes_of_same_user_need_no_handshake_unless_required() {
    let [root, other] = ["root", "other"].map(authority);
    let here = issue(&root, &root, "a.example", 4000);
    // The other node does not trust this certificate.
    let there = issue(&other, &other, "b.example", 4000);
    let exempt = |credentials| node(credentials).exempt_local_user(true);
    let uid = nix::unistd::geteuid().as_raw();
    let mut server = TestNode::start(exempt(&there), 2);
    // Only the software device proves users.
    if server.report().provider == "softrdma" {
        let mut client = TestNode::start(exempt(&here), 3);
        client.echoes(&server, &SIZES);
        assert_eq!(server.identity(), PeerIdentity::LocalUser(uid));
        let mut plain = TestNode::start(over_udp(), 1);
        plain.echoes(&server, &[10]);
        assert_eq!(server.identity(), PeerIdentity::LocalUser(uid), "it needs no identity");
    }
    for (client, server) in [(node(&here), exempt(&here)), (exempt(&here), node(&here))] {
        let mut server = TestNode::start(server, 1);
        let mut client = TestNode::start(client, 1);
        client.echoes(&server, &[10]);
        assert_eq!(proven(&mut server), "a.example");
    }
}

#[test]
fn live_session_renews_identity_under_traffic() {
    let root = authority("root");
    let [a, b] = ["a.example", "b.example"].map(|name| issue(&root, &root, name, 4000));
    for connections in [Connections::Xrc, Connections::Rc] {
        let often = |own| node(own).connections(connections).renew_after(Duration::from_secs(1));
        let mut server = TestNode::start(often(&b), 2);
        let mut client = TestNode::start(often(&a), 2);
        let peer = client.connect(0, server.address);
        let mut renewed = 0;
        let mut token = 0;
        while renewed < 6 {
            client.send(0, peer, &[ECHO], pattern(if token % 2 == 0 { 0 } else { 20_000 }, 3), token);
            client.message();
            token += 1;
            client.take_passed(|event| match event {
                Happened::Peer(_, PeerEvent::Renewed { identity: PeerIdentity::Proven(proven) }) => {
                    assert_eq!(proven.principal().to_string(), "b.example");
                    renewed += 1;
                }
                Happened::Peer(_, PeerEvent::Down { cause }) => panic!("{cause}"),
                _ => {}
            });
        }
        let counted = |node: &TestNode| node.report().counter("handshakes_renewed").unwrap();
        assert!(counted(&server) >= 2, "{}", counted(&server));
        assert_eq!(server.identity().to_string(), "a.example");
    }
}

/// Clock of a hostile node. It blocks at one reading, in the middle of that node's handshake.
#[derive(Debug)]
struct Pausing {
    is_armed: AtomicBool,
    paused: mpsc::Sender<()>,
    goes_on: Mutex<mpsc::Receiver<()>>,
}

impl TimeProvider for Pausing {
    fn current_time(&self) -> Option<UnixTime> {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.paused.send(()).unwrap();
            let _ = self.goes_on.lock().unwrap().recv_timeout(Duration::from_secs(10));
        }
        Some(UnixTime::now())
    }
}

/// A peer delays its handshake until its certificate is revoked, and then completes it. The exchange checks the
/// certificate against the revocation lists that were valid when it began.
#[test]
fn certificate_revoked_during_handshake_ends_session() {
    for round in 0..4 {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let root: Authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let trust = Trust::from_pem(root.pem().as_bytes()).unwrap();
        let issue = |name: &str, serial: u64| {
            let mut params = CertificateParams::new([name.to_owned()]).unwrap();
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(4000, 1, 1));
            params.serial_number = Some(SerialNumber::from(serial));
            let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
            let chain = params.signed_by(&key, &root).unwrap().pem();
            Identity::from_pem(chain.as_bytes(), key.serialize_pem().as_bytes()).unwrap()
        };
        let own = issue("honest.example", 1);
        let before = Arc::new(Credentials::of_system(&own, &trust).unwrap());
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(77),
                revocation_time: date_time_ymd(2021, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&root).unwrap().pem().unwrap();
        let with_list = trust.clone().with_revocation_lists(list.as_bytes()).unwrap();
        let after = Arc::new(Credentials::of_system(&own, &with_list).unwrap());

        let (paused, is_paused) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        let clock =
            Arc::new(Pausing { is_armed: AtomicBool::new(false), paused, goes_on: Mutex::new(goes_on) });
        let stolen = issue("revoked.example", 77);
        let stolen = Credentials::new(&stolen, &trust, default_provider(), Arc::clone(&clock) as _).unwrap();
        let honest = TestNode::start(node(&before), 1);
        let mut hostile = TestNode::start(node(&Arc::new(stolen)), 1);
        clock.is_armed.store(true, Ordering::SeqCst);
        let peer = hostile.name(0, honest.address);
        is_paused.recv_timeout(Duration::from_secs(5)).unwrap();
        honest.node.as_ref().unwrap().set_credentials(after);
        // The node reads the list before it handles later frames.
        go_on.send(()).unwrap();
        let cause = hostile.down(peer);
        assert!(!matches!(cause, PeerDown::Unreachable | PeerDown::Restarted), "round {round}: {cause}");
    }
}

/// The files of two nodes change at the same time, as the files of all nodes do when a root is added. The TLS client
/// begins an exchange while the server's RENEW, which requests the same exchange, is in flight. The client ignores the
/// RENEW, because it has begun that exchange.
#[test]
fn simultaneous_renewals_keep_session_up() {
    const CLIENTS: usize = 12;
    let root = authority("root");
    let own = |name: &str| issue(&root, &root, name, 4000);
    let often = |own| node(own).renew_after(Duration::from_secs(5));
    let server_own = own("server.example");
    let mut server = TestNode::start(often(&server_own), 1);
    let owns = (0..CLIENTS).map(|_| own("client.example")).collect::<Vec<_>>();
    let mut clients = owns.iter().map(|own| TestNode::start(often(own), 1)).collect::<Vec<_>>();
    for client in &mut clients {
        client.connect(0, server.address);
    }
    for (client, own) in clients.iter().zip(&owns) {
        client.node.as_ref().unwrap().set_credentials(Arc::clone(own));
    }
    server.node.as_ref().unwrap().set_credentials(server_own);
    let renewed = |node: &TestNode| node.report().counter("handshakes_renewed").unwrap();
    trunkline_testkit::wait_until("the clients have renewed", Duration::from_secs(60), || {
        clients.iter().all(|client| renewed(client) > 0).then_some(())
    });
    let mut downs = Vec::new();
    for node in std::iter::once(&mut server).chain(&mut clients) {
        while let Ok((_, event)) = node.try_event() {
            if let Happened::Peer(peer, PeerEvent::Down { cause }) = event {
                downs.push(format!("{peer}: {cause}"));
            }
        }
    }
    assert!(downs.is_empty(), "{} of {CLIENTS} sessions and their other ends: {downs:#?}", downs.len());
}
