use super::*;
use crate::identity::binding::{example, tests::different};
use crate::identity::seal::{LaneSeal, OVERHEAD, PhaseLimit};
use crate::identity::tests::{
    Authority, NAME, authority, credentials, identity, intermediate, issue, key, params, revocation_list,
    trust,
};
use crate::identity::{Identity, MOST_CERTIFICATES, Name};
use crate::wire::frame::{FrameKind, Header};
use rcgen::{CertificateParams, SerialNumber, date_time_ymd};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, NamedGroup, ServerConfig, SignatureScheme};
use trunkline_testkit::{CountingAllocator, Random, runs_alone};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

const DEADLINE: Time = Time(5_000_000_000);
const NOW: Time = Time(1_000_000_000);
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Outcomes of the client and the server; `None` for a side that is still waiting.
type Outcomes = [Option<Result<Proof, HandshakeFailure>>; 2];

/// Credentials of two nodes with one root.
fn pair() -> [Arc<Credentials>; 2] {
    let root = authority();
    ["a.example", "b.example"]
        .map(|name| Arc::new(credentials(&identity(&root, &params(&[name])), &trust(&root))))
}

fn exchanges(credentials: &[Arc<Credentials>; 2], bindings: [Binding; 2]) -> [Exchange; 2] {
    let [client, server] = bindings;
    [(Role::Client, client), (Role::Server, server)].map(|(role, binding)| {
        let own = &credentials[usize::from(role == Role::Server)];
        Exchange::new(role, own, binding, 0, DEADLINE).unwrap()
    })
}

fn begun(credentials: &[Arc<Credentials>; 2]) -> [Exchange; 2] {
    exchanges(credentials, [example(), example()])
}

/// Passes a frame to an exchange as a poller and a CM machine do.
fn deliver(to: &mut Exchange, frame: &[u8]) -> Result<(), HandshakeFailure> {
    match Header::parse(frame) {
        Ok(Header { kind: FrameKind::Handshake, .. }) => {}
        _ if to.state == State::Ended => {}
        _ => return Err(to.fail(Refused::Malformed)),
    }
    let mut is_ready = to.handle(frame.into())?;
    while is_ready {
        is_ready = to.advance()?;
    }
    to.confirm(NOW);
    Ok(())
}

/// Runs a handshake to its end. `change` is called with each frame, its sender and its number.
fn run(mut sides: [Exchange; 2], mut change: impl FnMut(usize, usize, &mut Vec<u8>)) -> Outcomes {
    let mut failures = [None; 2];
    let mut counts = [0; 2];
    loop {
        let mut is_quiet = true;
        for sender in [CLIENT, SERVER] {
            let receiver = 1 - sender;
            while let Some(frame) = sides[sender].poll_frame() {
                is_quiet = false;
                let mut frame = Vec::from(frame);
                change(sender, counts[sender], &mut frame);
                counts[sender] += 1;
                if let Err(failure) = deliver(&mut sides[receiver], &frame) {
                    failures[receiver].get_or_insert(failure);
                }
            }
        }
        if is_quiet {
            break;
        }
    }
    let mut failures = failures.into_iter();
    sides.map(|mut side| match failures.next().flatten() {
        Some(failure) => {
            assert!(side.take_proof().is_none() && side.next_timer().is_none(), "after {failure}");
            Some(Err(failure))
        }
        None => side.take_proof().map(Ok),
    })
}

fn proofs(outcomes: Outcomes) -> [Proof; 2] {
    outcomes.map(|outcome| outcome.unwrap().unwrap())
}

/// Asserts that a side ended the handshake and that the other was notified.
fn assert_refused(outcomes: &Outcomes, by: usize, cause: Refused, case: &str) {
    let [ours, theirs] = [by, 1 - by].map(|side| *outcomes[side].as_ref().unwrap().as_ref().unwrap_err());
    assert_eq!((ours.cause, ours.by), (cause, EndedBy::ThisNode), "{case}");
    assert_eq!((theirs.cause, theirs.field), (cause, ours.field), "{case}");
    assert_ne!(theirs.by, EndedBy::ThisNode, "{case}");
}

/// Returns the frames of a complete handshake, by sender.
fn recorded(credentials: &[Arc<Credentials>; 2]) -> [Vec<Vec<u8>>; 2] {
    let mut frames = [vec![], vec![]];
    proofs(run(begun(credentials), |sender, _, frame| frames[sender].push(frame.clone())));
    frames
}

#[test]
fn both_sides_prove_their_names_and_have_same_keys() {
    let credentials = pair();
    let bindings = [7, 8].map(|n| Binding { settings: vec![n], ..example() });
    let sides = exchanges(&credentials, bindings);
    assert_eq!(sides[CLIENT].next_timer(), Some(DEADLINE));
    let [client, server] = proofs(run(sides, |_, _, _| {}));
    for (proof, name, settings) in [(&client, "b.example", 8), (&server, "a.example", 7)] {
        assert_eq!(*proof.proven.principal(), Name::Dns(name.into()));
        assert_eq!((&proof.settings[..], proof.proven.certificates().len()), (&[settings][..], 1));
    }
    let limit = PhaseLimit { frames: 9, time: Duration::MAX };
    let lane =
        |proof: Proof| LaneSeal::new(proof.lanes().into_iter().flatten().next().unwrap(), limit, Time(0));
    let [mut ours, mut theirs] = [lane(client), lane(server)];
    let mut frame = vec![0; 9 + OVERHEAD];
    ours.seal(&mut frame, Time(0));
    let [mut other, mut back] = [frame.clone(), frame.clone()];
    assert_eq!(theirs.open(&mut frame, Time(0)), Ok(9));
    let [_, mut of_other] = proofs(run(begun(&credentials), |_, _, _| {})).map(lane);
    assert!(of_other.open(&mut other, Time(0)).is_err(), "two handshakes share keys");
    assert!(ours.open(&mut back, Time(0)).is_err(), "two directions share keys");
    assert_eq!(
        [(1, 2), (2, 1), (1, 1)].map(|(ours, theirs)| Role::of(ours, theirs)),
        [Some(Role::Client), Some(Role::Server), None]
    );
}

/// Changes one byte per handshake. Every seventh position is changed, from a start that differs between runs.
#[test]
fn changed_byte_ends_handshake_with_cause_on_both_sides() {
    const STEP: usize = 7;
    let credentials = pair();
    let mut random = Random::from_entropy();
    let start = random.below(STEP);
    let recorded = recorded(&credentials);
    let mut count = 0;
    for (sender, number, length) in recorded.iter().enumerate().flat_map(|(sender, frames)| {
        frames.iter().enumerate().map(move |(n, frame)| (sender, n, frame.len()))
    }) {
        let is_sealed = recorded[sender][number][12] == 1;
        for at in (start..length).step_by(STEP) {
            let bit = 1 << random.below(8);
            let outcomes = run(begun(&credentials), |s, n, frame| {
                if (s, n) == (sender, number) {
                    frame[at] ^= bit;
                }
            });
            let case = format!("bit {bit:#x} of byte {at} of frame {number} of side {sender}, from {start}");
            // Positions, and the unused fields of frames in clear.
            if matches!(at, 4..8) || !is_sealed && matches!(at, 2..4 | 18..20) {
                proofs(outcomes);
                continue;
            }
            for outcome in &outcomes {
                assert!(matches!(outcome, Some(Err(_))), "{case}: {outcomes:?}");
            }
            count += 1;
        }
    }
    assert!(count * STEP > 1000, "{count} changes");
}

#[test]
fn different_view_ends_handshake_with_field_name_on_both_sides() {
    let credentials = pair();
    for (name, other) in different() {
        // Here the server compares first, as all servers do.
        let server_first = exchanges(&credentials, [other.clone(), example()]);
        // Here the list that the server sends differs from the list that it compares.
        let mut client_first = exchanges(&credentials, [example(), other]);
        client_first[SERVER].binding = example();
        for (by, sides) in [(SERVER, server_first), (CLIENT, client_first)] {
            let outcomes = run(sides, |_, _, _| {});
            assert_refused(&outcomes, by, Refused::Binding, &name);
            for outcome in outcomes {
                let text = outcome.unwrap().unwrap_err().to_string();
                assert!(
                    text.ends_with(&format!(
                        "the two nodes saw different values of \"{name}\": a node between them changed it"
                    )),
                    "{text}"
                );
            }
        }
    }
}

/// Replaces the certificates that a node presents.
fn presenting(
    credentials: &Credentials,
    chain: Vec<CertificateDer<'static>>,
    key: &rcgen::KeyPair,
) -> Credentials {
    let key = any_supported_type(&PrivateKeyDer::Pkcs8(key.serialize_der().into())).unwrap();
    let own = Arc::new(CertifiedKey::new(chain, key));
    let resolver = Arc::new(SingleCertAndKey::from(own.clone()));
    let mut client = ClientConfig::clone(&credentials.client);
    client.client_auth_cert_resolver = resolver.clone();
    let mut server = ServerConfig::clone(&credentials.server);
    server.cert_resolver = resolver;
    let Credentials { verifier, not_before, not_after, .. } = credentials;
    let (verifier, not_before, not_after) = (verifier.clone(), *not_before, *not_after);
    Credentials { client: client.into(), server: server.into(), verifier, not_before, not_after, own }
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Returns credentials of nodes that a node with this root refuses, with the causes.
fn refused_by_certificate(root: &Authority) -> Vec<(Refused, Credentials)> {
    let own_trust = trust(root);
    let with = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = params(&[NAME]);
        change(&mut params);
        credentials(&identity(root, &params), &own_trust)
    };
    let unnamed = key();
    let chain = vec![params(&[]).signed_by(&unnamed, root).unwrap().der().clone()];
    let good = with(&|_| {});
    let stolen = vec![issue(root, &params(&[NAME]))];
    let own = key();
    let (mut issuer, mut long) = (intermediate("0", root), vec![]);
    for n in 1..=MOST_CERTIFICATES {
        long.insert(0, issuer.der().clone());
        if n < MOST_CERTIFICATES {
            issuer = intermediate(&n.to_string(), &issuer);
        }
    }
    long.insert(0, params(&[NAME]).signed_by(&own, &issuer).unwrap().der().clone());
    assert_eq!(long.len(), 5);
    let foreign = identity(&intermediate("other", &authority()), &params(&[NAME]));
    vec![
        (Refused::UnknownRoot, credentials(&foreign, &own_trust)),
        (Refused::Expired, with(&|params| params.not_after = date_time_ymd(2026, 12, 31))),
        (Refused::NotYetValid, with(&|params| params.not_before = date_time_ymd(2028, 1, 1))),
        (Refused::Revoked, with(&|params| params.serial_number = Some(SerialNumber::from(7)))),
        (Refused::NoUsableName, presenting(&good, chain, &unnamed)),
        (Refused::BadSignature, presenting(&good, stolen, &key())),
        (Refused::Malformed, presenting(&good, long, &own)),
    ]
}

#[test]
fn certificates_are_refused_in_both_roles_with_cause_on_both_sides() {
    let root = authority();
    let lists = trust(&root).with_revocation_lists(revocation_list(&root, 7).as_bytes()).unwrap();
    let judge = Arc::new(credentials(&identity(&root, &params(&["judge.example"])), &lists));
    let mut without = ClientConfig::clone(&judge.client);
    without.client_auth_cert_resolver = Arc::new(NoCertificate);
    let outcomes = run(begun(&[with_client(&judge, without), judge.clone()]), |_, _, _| {});
    assert_refused(&outcomes, SERVER, Refused::NoCertificate, "no certificate");
    for (cause, peer) in refused_by_certificate(&root) {
        let peer = Arc::new(peer);
        let case = cause.to_string();
        let outcomes = run(begun(&[judge.clone(), peer.clone()]), |_, _, _| {});
        assert_refused(&outcomes, CLIENT, cause, &case);
        let outcomes = run(begun(&[peer, judge.clone()]), |_, _, _| {});
        assert_refused(&outcomes, SERVER, cause, &case);
    }
}

#[test]
fn both_sides_state_cause_in_words() {
    let credentials = pair();
    for code in 1..=15 {
        let cause = Refused::from_code(code);
        assert_eq!(cause.code(), code);
        for (is_sealed, theirs) in [
            (false, "the peer, or a node between, ended the handshake: "),
            (true, "the peer ended the handshake: "),
        ] {
            let [mut client, mut server] = begun(&credentials);
            while let Some(frame) = client.poll_frame().filter(|_| is_sealed) {
                deliver(&mut server, &frame).unwrap();
            }
            while let Some(frame) = server.poll_frame() {
                deliver(&mut client, &frame).unwrap();
            }
            let ours = server.fail(cause);
            let frame = server.poll_frame().unwrap();
            let received = deliver(&mut client, &frame).unwrap_err();
            if cause == Refused::UnknownRoot {
                let text = "this node ended the handshake: no path from the peer's certificate to a root of this node's trust: ";
                assert!(ours.to_string().starts_with(text), "{ours}");
                let text = format!("{theirs}the peer has no root for this node's certificate: ");
                assert!(received.to_string().starts_with(&text), "{received}");
            } else {
                assert_eq!(ours.to_string(), format!("this node ended the handshake: {cause}"));
                assert_eq!(received.to_string(), format!("{theirs}{cause}"));
            }
            assert!(
                client.poll_frame().is_none_or(|frame| frame[13] == Part::Tls as u8),
                "no answer to FAILURE"
            );
            assert_eq!(deliver(&mut client, &frame), Ok(()), "frames after the end are ignored");
        }
    }
    assert_eq!(Refused::from_code(0), Refused::Malformed);
    assert_eq!(Refused::from_code(16), Refused::Malformed);
}

#[test]
fn replayed_side_is_refused_without_proof() {
    let credentials = pair();
    let recorded = recorded(&credentials);
    for live in [CLIENT, SERVER] {
        let mut side = begun(&credentials).into_iter().nth(live).unwrap();
        let results = recorded[1 - live].iter().map(|frame| deliver(&mut side, frame)).collect::<Vec<_>>();
        let causes = results.iter().filter_map(|result| result.err()).map(|failure| failure.cause);
        assert_eq!(causes.collect::<Vec<_>>(), [Refused::Malformed], "side {live}");
        assert!(side.take_proof().is_none());
    }
}

#[test]
fn frames_out_of_order_end_handshake() {
    let credentials = pair();
    let recorded = recorded(&credentials);
    let hello = &recorded[CLIENT][0];
    let fragment = |total: u16, offset: u16, length: usize| {
        let mut frame = hello[..FRAGMENT].to_vec();
        frame[14..16].copy_from_slice(&offset.to_le_bytes());
        frame[16..18].copy_from_slice(&total.to_le_bytes());
        frame.resize(FRAGMENT + length, 1);
        frame
    };
    let other = |at: usize, value: u8| {
        let mut frame = hello.clone();
        frame[at] = value;
        frame
    };
    let (first, second) = (fragment(4000, 0, 2028), fragment(4000, 2028, 1972));
    for (case, frames) in [
        ("reordered", vec![second]),
        ("repeated", vec![first.clone(), first.clone()]),
        ("of another total", vec![first.clone(), fragment(4001, 2028, 1973)]),
        ("short", vec![fragment(4000, 0, 2027)]),
        ("oversize", vec![fragment(4000, 0, 2029)]),
        ("a large flight", vec![fragment(4097, 0, 2028)]),
        ("without bytes", vec![hello[..FRAGMENT].to_vec()]),
        ("without a header", vec![hello[..FRAGMENT - 1].to_vec()]),
        ("of another exchange", vec![other(8, 1)]),
        ("RENEW", vec![[&hello[..13], &[3, 0, 0, 0, 0, 0, 0]].concat()]),
        ("sealed before the keys", vec![recorded[CLIENT][1].clone()]),
        ("an answer", vec![recorded[SERVER][0].clone()]),
        ("a second flight", vec![hello.clone(), hello.clone()]),
    ] {
        let mut server = begun(&credentials).into_iter().nth(SERVER).unwrap();
        let (last, before) = frames.split_last().unwrap();
        for frame in before {
            server.handle(frame.clone().into()).unwrap();
        }
        let failure = server.handle(last.clone().into()).unwrap_err();
        assert_eq!((failure.cause, failure.by), (Refused::Malformed, EndedBy::ThisNode), "{case}");
        assert_eq!(server.poll_frame().map(|frame| frame[13]), Some(Part::Failure as u8), "{case}");
    }
}

/// Drives a client until it waits for the ServerHello. Returns both sides, and the server's frames.
fn answered(credentials: &[Arc<Credentials>; 2]) -> (Exchange, Exchange, Vec<Box<[u8]>>) {
    let [mut client, mut server] = begun(credentials);
    while let Some(frame) = client.poll_frame() {
        deliver(&mut server, &frame).unwrap();
    }
    let frames = std::iter::from_fn(|| server.poll_frame()).collect();
    (client, server, frames)
}

#[test]
fn both_flights_of_server_may_wait_for_client() {
    let credentials = pair();
    let (mut client, mut server, frames) = answered(&credentials);
    server.fail(Refused::TimedOut);
    let failure = server.poll_frame().unwrap();
    let mut queued = answered(&credentials);
    for frame in queued.2 {
        assert_eq!(queued.0.handle(frame), Ok(true));
    }
    assert_eq!(queued.0.advance(), Ok(true), "the second flight is whole");
    assert_eq!(queued.0.advance(), Ok(false));
    queued.0.confirm(NOW);
    let proofs = proofs(run([queued.0, queued.1], |_, _, _| {}));
    assert_eq!(proofs[SERVER].proven.principal().to_string(), "a.example");

    for frame in &frames {
        assert_eq!(client.handle(frame.clone()), Ok(true));
    }
    assert_eq!(client.handle(failure), Ok(true), "opened after the ServerHello");
    let failure = client.advance().unwrap_err();
    assert_eq!((failure.cause, failure.by), (Refused::TimedOut, EndedBy::Peer));

    let (mut client, _, frames) = answered(&credentials);
    client.handle(frames[0].clone()).unwrap();
    for _ in 0..MOST_WAITING {
        client.handle(frames[1].clone()).unwrap();
    }
    assert_eq!(client.handle(frames[1].clone()).unwrap_err().cause, Refused::Malformed, "one more");
}

#[test]
fn invalid_done_or_later_frame_is_refused() {
    let credentials = pair();
    let refused =
        |to: &mut Exchange, frame: &[u8]| deliver(to, frame).unwrap_err().cause == Refused::Malformed;
    for (wrong, is_early) in [(true, true), (true, false), (false, false)] {
        let (mut client, mut server, frames) = answered(&credentials);
        for frame in &frames[..frames.len() - usize::from(is_early)] {
            deliver(&mut client, frame).unwrap();
        }
        if is_early {
            // The frame replaces the server's flight, with the same number.
            server.sealed = 0;
        }
        if wrong {
            server.queue(Part::Done, &[1; 32]);
            assert!(refused(&mut client, &server.poll_frame().unwrap()) && client.take_proof().is_none());
            continue;
        }
        let answer = client.poll_frame().unwrap();
        deliver(&mut server, &answer).unwrap();
        assert!(client.take_proof().is_none(), "before DONE");
        deliver(&mut client, &server.poll_frame().unwrap()).unwrap();
        assert!(client.take_proof().is_some() && client.take_proof().is_none(), "once");
        server.queue(Part::Done, &client.done);
        assert!(refused(&mut client, &server.poll_frame().unwrap()), "a second DONE");
        client.queue(Part::Tls, &[20, 0, 0, 0]);
        assert!(refused(&mut server, &client.poll_frame().unwrap()), "a flight after the last");
        assert!(server.take_proof().is_none(), "after the end");
    }
}

/// rustls would accept both messages.
#[test]
fn encrypted_extensions_in_clear_end_handshake() {
    let credentials = pair();
    let (mut client, _, frames) = answered(&credentials);
    let mut hello = frames[0][FRAGMENT..].to_vec();
    hello.extend([8, 0, 0, 2, 0, 0]);
    let frame = Fragment::all(0, false, Part::Tls, &hello).next().unwrap().emit();
    assert_eq!(client.handle(frame.into()).unwrap_err().cause, Refused::Malformed);
}

/// Replaces the configuration of a TLS client.
fn with_client(credentials: &Credentials, client: ClientConfig) -> Arc<Credentials> {
    let Credentials { server, verifier, not_before, not_after, own, .. } = credentials;
    let (server, verifier, own) = (server.clone(), verifier.clone(), own.clone());
    let (not_before, not_after) = (*not_before, *not_after);
    Arc::new(Credentials { client: client.into(), server, verifier, not_before, not_after, own })
}

#[test]
fn server_refuses_other_protocols_and_sends_no_hello_retry_request() {
    let [client, server] = pair();
    let mut other_protocol = ClientConfig::clone(&client.client);
    other_protocol.alpn_protocols = vec![b"h3".to_vec()];
    // The ClientHello lists the server's group without a key share for it.
    let mut provider = default_provider();
    provider.kx_groups.retain(|group| group.name() != NamedGroup::X25519);
    provider.kx_groups.extend(&server.server.crypto_provider().kx_groups);
    let mut retry = ClientConfig::builder_with_details(provider.into(), other_protocol.time_provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(client.verifier.clone())
        .with_client_cert_resolver(other_protocol.client_auth_cert_resolver.clone());
    retry.alpn_protocols = vec![PROTOCOL.to_vec()];
    let retry = with_client(&client, retry);

    let [mut hello, _] = begun(&[retry.clone(), server.clone()]);
    let mut tls = ServerConnection::new(server.server.clone(), Version::V1, vec![]).unwrap();
    tls.read_hs(&hello.poll_frame().unwrap()[FRAGMENT..]).unwrap();
    let mut answer = vec![];
    assert!(tls.write_hs(&mut answer).is_none() && answer[0] == 2, "not a HelloRetryRequest: {answer:?}");

    for client in [retry, with_client(&client, other_protocol)] {
        let outcomes = run(begun(&[client, server.clone()]), |_, _, _| {});
        assert_refused(&outcomes, SERVER, Refused::NoCommonSuite, "retry or protocol");
    }
}

#[test]
fn waiting_exchange_times_out() {
    let credentials = pair();
    let [mut client, mut server] = begun(&credentials);
    assert_eq!(server.handle_timer(NOW), Ok(()));
    assert_eq!(server.handle_timer(DEADLINE).unwrap_err().cause, Refused::TimedOut);
    assert_eq!((server.next_timer(), server.handle_timer(Time::MAX)), (None, Ok(())));
    let failure = deliver(&mut client, &server.poll_frame().unwrap()).unwrap_err();
    assert_eq!((failure.cause, failure.by), (Refused::TimedOut, EndedBy::Unknown));

    // A client of a renewal waits once more for DONE.
    let mut sides = [(Role::Client, 0), (Role::Server, 1)]
        .map(|(role, own)| Exchange::new(role, &credentials[own], example(), 3, DEADLINE).unwrap());
    for sender in [CLIENT, SERVER] {
        while let Some(frame) = sides[sender].poll_frame() {
            deliver(&mut sides[1 - sender], &frame).unwrap();
        }
    }
    assert_eq!(sides.map(|side| side.next_timer()), [Some(NOW + RENEWAL), Some(DEADLINE)]);
}

/// Returns an identity with four certificates that nearly fill a flight.
fn largest(root: &Authority) -> Identity {
    let mut issuer = intermediate("1", root);
    let mut chain = issuer.pem();
    for subject in ["2", "3"] {
        issuer = intermediate(subject, &issuer);
        chain.insert_str(0, &issuer.pem());
    }
    let label = "a".repeat(60);
    let names = (0..33).map(|n| format!("{n}.{label}.{label}.{label}.{label}")).collect::<Vec<_>>();
    let params = params(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let own = key();
    chain.insert_str(0, &params.signed_by(&own, &issuer).unwrap().pem());
    Identity::from_pem(chain.as_bytes(), own.serialize_pem().as_bytes()).unwrap()
}

/// Frames in transit belong to the poller and are not counted.
#[test]
fn exchange_takes_at_most_40_kib() {
    if !runs_alone(module_path!(), "exchange_takes_at_most_40_kib") {
        return;
    }
    let root = authority();
    let own = Arc::new(credentials(&largest(&root), &trust(&root)));
    let begin = |side| {
        let role = if side == CLIENT { Role::Client } else { Role::Server };
        Box::new(Exchange::new(role, &own, example(), 0, DEADLINE).unwrap())
    };
    // The first handshake fills caches of the process.
    proofs(run([CLIENT, SERVER].map(|side| *begin(side)), |_, _, _| {}));
    for watched in [CLIENT, SERVER] {
        let mut peer = begin(1 - watched);
        let before = HEAP.in_use_bytes();
        let mut side = begin(watched);
        let mut used = HEAP.in_use_bytes() - before;
        let mut most = used;
        for _ in 0..3 {
            while let Some(frame) = side.poll_frame() {
                used -= frame.len();
                deliver(&mut peer, &frame).unwrap();
            }
            let frames = std::iter::from_fn(|| peer.poll_frame()).collect::<Vec<_>>();
            let mut count = |side: &mut Exchange, action: &dyn Fn(&mut Exchange) -> bool| {
                let before = HEAP.in_use_bytes();
                let is_ready = action(side);
                used = used + HEAP.in_use_bytes() - before;
                most = most.max(used);
                is_ready
            };
            // Deliver all frames first, so that a client keeps both flights.
            let mut is_ready = false;
            for frame in &frames {
                is_ready |= count(&mut side, &|side| side.handle(frame.clone()).unwrap());
            }
            while is_ready {
                is_ready = count(&mut side, &|side| {
                    let is_more = side.advance().unwrap();
                    side.confirm(NOW);
                    is_more
                });
            }
        }
        assert!(side.take_proof().is_some());
        assert!((20 << 10..=40 << 10).contains(&most), "{most} bytes at side {watched}");
    }
}
