use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, CustomExtension,
    DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose,
    NameConstraints, PKCS_ED25519, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, IpAddr, ServerName, UnixTime};
use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
use rustls::time_provider::TimeProvider;
use rustls::{CipherSuite, Error, HandshakeKind, NamedGroup, ProtocolVersion};
use std::sync::Arc;
use std::time::Duration;
use webpki::EndEntityCert;

/// 15 January 2027. Certificates are valid from 2026 to 2030 unless a test changes that.
pub(super) const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
pub(super) const NAME: &str = "shop.example";

#[derive(Debug)]
struct Stopped;

impl TimeProvider for Stopped {
    fn current_time(&self) -> Option<UnixTime> {
        Some(NOW)
    }
}

pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(super) fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).unwrap()
}

/// Returns certificate parameters with these names. IP addresses, URIs and DNS names are distinguished by form.
pub(super) fn params(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names
        .iter()
        .map(|&name| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains(':') => SanType::URI(name.try_into().unwrap()),
            Err(_) => SanType::DnsName(name.try_into().unwrap()),
        })
        .collect();
    (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2030, 1, 1));
    params
}

fn authority_params(subject: &str) -> CertificateParams {
    let mut params = params(&[]);
    params.distinguished_name.push(DnType::CommonName, subject);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

pub(super) fn authority() -> Authority {
    CertifiedIssuer::self_signed(authority_params("root"), key()).unwrap()
}

pub(super) fn intermediate(subject: &str, issuer: &Authority) -> Authority {
    CertifiedIssuer::signed_by(authority_params(subject), key(), issuer).unwrap()
}

/// Returns the parameters of a certificate with this number of DNS names.
fn named(count: usize) -> CertificateParams {
    let names = (0..count).map(|number| format!("n{number}")).collect::<Vec<_>>();
    params(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(super) fn issue(issuer: &Authority, params: &CertificateParams) -> CertificateDer<'static> {
    params.signed_by(&key(), issuer).unwrap().der().clone()
}

pub(super) fn identity(issuer: &Authority, params: &CertificateParams) -> Identity {
    let key = key();
    let certificate = params.signed_by(&key, issuer).unwrap();
    Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
}

pub(super) fn trust(root: &Authority) -> Trust {
    Trust::from_pem(root.pem().as_bytes()).unwrap()
}

pub(super) fn credentials(identity: &Identity, trust: &Trust) -> Credentials {
    Credentials::new(identity, trust, default_provider(), Arc::new(Stopped)).unwrap()
}

/// Returns the credentials of a node with this name and a separate root.
pub(crate) fn node_credentials(name: &str) -> Credentials {
    let root = authority();
    credentials(&identity(&root, &params(&[name])), &trust(&root))
}

fn verifier(trust: &Trust) -> Arc<Verifier> {
    let own = authority();
    credentials(&identity(&own, &params(&[NAME])), trust).verifier
}

/// Returns a list of one revoked certificate. The list is past its next update, but is still used.
pub(super) fn revocation_list(issuer: &Authority, serial: u64) -> String {
    CertificateRevocationListParams {
        this_update: date_time_ymd(2026, 1, 1),
        next_update: date_time_ymd(2026, 2, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    }
    .signed_by(issuer)
    .unwrap()
    .pem()
    .unwrap()
}

/// Returns the names of a verified certificate with these names.
fn proven(names: &[&str]) -> Result<Proven, Refused> {
    let root = authority();
    verifier(&trust(&root)).check(&[issue(&root, &params(names))], NOW)
}

fn matches(expected: &str, names: &[&str]) -> bool {
    expected.parse::<Expected>().unwrap().matches(&proven(names).unwrap())
}

#[test]
fn refusals_name_cause_and_remedy() {
    let root = authority();
    let verifier = verifier(&trust(&root));
    let first = intermediate("first", &root);
    let second = intermediate("second", &first);
    let third = intermediate("third", &second);
    let (first_der, second_der, third_der) = (first.der(), second.der(), third.der());
    let good = issue(&root, &params(&[NAME]));
    let with = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = params(&[NAME]);
        change(&mut params);
        vec![issue(&root, &params)]
    };
    let mut forged = good.to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let mut short = good.to_vec();
    short.pop();
    let ends_2026 = with(&|params| params.not_after = date_time_ymd(2026, 12, 31));
    let begins_2028 = with(&|params| params.not_before = date_time_ymd(2028, 1, 1));
    let for_code = with(&|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning]);
    let mut bound = authority_params("bound");
    bound.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("test".into())],
        excluded_subtrees: vec![],
    });
    let bound = CertifiedIssuer::signed_by(bound, key(), &root).unwrap();
    let outside = vec![issue(&bound, &params(&[NAME])), bound.der().clone()];
    let third_leaf = issue(&third, &params(&[NAME]));
    for (chain, refused, cause, remedy) in [
        (vec![], Refused::NoCertificate, "no certificate", "give the node an identity"),
        (
            vec![issue(&authority(), &params(&[NAME]))],
            Refused::BadSignature,
            "bad signature",
            "trust the present root",
        ),
        (
            vec![issue(&intermediate("other", &authority()), &params(&[NAME]))],
            Refused::UnknownRoot,
            "no path",
            "add the root",
        ),
        (vec![issue(&first, &params(&[NAME]))], Refused::UnknownRoot, "no path", "intermediate certificates"),
        (ends_2026, Refused::Expired, "has expired", "renew it"),
        (begins_2028, Refused::NotYetValid, "not valid yet", "correct the clock"),
        (vec![issue(&root, &params(&[]))], Refused::NoUsableName, "no usable name", "issue one with"),
        (vec![issue(&root, &named(257))], Refused::NoUsableName, "no usable name", "at most 256"),
        (outside, Refused::NoUsableName, "no usable name", "constraints of its issuer"),
        (vec![forged.into()], Refused::BadSignature, "bad signature", "again"),
        (vec![short.into()], Refused::Malformed, "malformed", "update"),
        (
            vec![
                third_leaf.clone(),
                third_der.clone(),
                second_der.clone(),
                first_der.clone(),
                root.der().clone(),
            ],
            Refused::Malformed,
            "more than 4",
            "shorten",
        ),
        (for_code, Refused::OtherUse, "for other uses", "issue one for client or server"),
        (vec![first_der.clone()], Refused::OtherUse, "for other uses", "not that of an authority"),
    ] {
        let found = verifier.check(&chain, NOW).unwrap_err();
        let text = found.to_string();
        assert_eq!(found, refused, "{cause}");
        assert!(
            text.split_once(": ").is_some_and(|(a, b)| a.contains(cause) && b.contains(remedy)),
            "{text}"
        );
    }
    verifier.check(&[third_leaf, third_der.clone(), second_der.clone(), first_der.clone()], NOW).unwrap();
    verifier.check(&[issue(&root, &named(256))], NOW).unwrap();
}

#[test]
fn revoked_certificates_are_refused() {
    let root = authority();
    let issuer = intermediate("issuer", &root);
    let mut with_serial = params(&[NAME]);
    with_serial.serial_number = Some(SerialNumber::from(7));
    let chain = [issue(&issuer, &with_serial), issuer.der().clone()];
    let check = |lists: &str| {
        verifier(&trust(&root).with_revocation_lists(lists.as_bytes()).unwrap()).check(&chain, NOW).map(drop)
    };
    assert_eq!(check(&revocation_list(&issuer, 7)), Err(Refused::Revoked));
    assert_eq!(check(&revocation_list(&issuer, 8)), Ok(()));
    assert_eq!(
        check(&revocation_list(&intermediate("other", &root), 7)),
        Ok(()),
        "of no authority in the chain"
    );
    assert_eq!(
        check(&revocation_list(&authority(), 7)),
        Err(Refused::BadSignature),
        "of a root with the same name"
    );

    let mut params = authority_params("revoked");
    params.serial_number = Some(SerialNumber::from(7));
    let revoked = CertifiedIssuer::signed_by(params, key(), &root).unwrap();
    let chain = [issue(&revoked, &with_serial), revoked.der().clone()];
    let trust = trust(&root).with_revocation_lists(revocation_list(&root, 7).as_bytes()).unwrap();
    assert_eq!(verifier(&trust).check(&chain, NOW), Err(Refused::Revoked), "an intermediate");
    assert_eq!(Refused::Revoked.to_string(), "a certificate of the chain is revoked: issue another one");
}

#[test]
fn client_or_server_authentication_usage_suffices() {
    use ExtendedKeyUsagePurpose::{ClientAuth, CodeSigning, ServerAuth};
    let root = authority();
    let verifier = verifier(&trust(&root));
    for uses in [
        vec![],
        vec![ClientAuth],
        vec![ServerAuth],
        vec![CodeSigning, ClientAuth],
        vec![ServerAuth, ClientAuth],
    ] {
        let mut params = params(&[NAME]);
        params.extended_key_usages = uses.clone();
        assert!(verifier.check(&[issue(&root, &params)], NOW).is_ok(), "{uses:?}");
    }
}

#[test]
fn earliest_expiry_in_chain_counts() {
    let root = authority();
    let mut params_2028 = authority_params("issuer");
    params_2028.not_after = date_time_ymd(2028, 1, 1);
    let issuer = CertifiedIssuer::signed_by(params_2028, key(), &root).unwrap();
    let unused = intermediate("unused", &root);
    let chain = [issue(&issuer, &params(&[NAME])), unused.der().clone(), issuer.der().clone()];
    let proven = verifier(&trust(&root)).check(&chain, NOW).unwrap();
    assert_eq!(i64::try_from(proven.not_after().as_secs()), Ok(date_time_ymd(2028, 1, 1).unix_timestamp()));
    assert_eq!(proven.certificates()[..], chain);
}

#[test]
fn principal_is_uri_then_dns_name_then_address() {
    let principal = |names: &[&str]| proven(names).map(|proven| proven.principal().to_string());
    let all = ["10.0.0.1", "Shop.Example", "https://shop.example/", "b.example"];
    assert_eq!(principal(&["10.0.0.1", "spiffe://prod/shop", "a.example"]), Ok("spiffe://prod/shop".into()));
    assert_eq!(principal(&all), Ok(NAME.into()));
    assert_eq!(principal(&["fd00::1", "10.0.0.1"]), Ok("fd00::1".into()));
    let listed = proven(&all).unwrap().names().iter().map(Name::to_string).collect::<Vec<_>>();
    assert_eq!(listed, [NAME, "b.example", "10.0.0.1"]);
}

#[test]
fn ambiguous_and_malformed_spiffe_uris_are_unusable() {
    for names in [
        &["spiffe://prod/shop", "spiffe://prod/other", NAME][..],
        &["https://shop.example", "spiffe://prod/shop", NAME],
        &["spiffe:///shop", NAME],
        &["SPIFFE://prod/shop", NAME],
        &["spiffe://Prod/shop", NAME],
        &["spiffe://prod:80/shop", NAME],
        &["spiffe://prod/", NAME],
        &["spiffe://prod/../shop", NAME],
        &["https://shop.example"],
        &[],
    ] {
        assert_eq!(proven(names), Err(Refused::NoUsableName), "{names:?}");
    }
    assert!(proven(&["https://shop.example", "https://b.example", NAME]).is_ok());
}

#[test]
fn name_matching_agrees_with_webpki() {
    let certificates = [
        &[NAME][..],
        &["SHOP.Example", "10.0.0.1"],
        &["*.example.org", "fd00::1"],
        &["spiffe://prod/shop", "10.0.0.2"],
        &["a_b.example.org", "::ffff:10.0.0.1"],
    ];
    let expected = [
        "shop.example",
        "Shop.EXAMPLE.",
        "b.shop.example",
        "example",
        "a.example.org",
        "A.example.org",
        "a.b.example.org",
        "example.org",
        "a_b.example.org",
        "10.0.0.1",
        "10.0.0.2",
        "fd00::1",
        "fd00::2",
    ];
    let root = authority();
    let verifier = verifier(&trust(&root));
    let mut matched = 0;
    for names in certificates {
        let certificate = issue(&root, &params(names));
        let proven = verifier.check(std::slice::from_ref(&certificate), NOW).unwrap();
        for name in expected {
            let by_webpki = EndEntityCert::try_from(&certificate)
                .unwrap()
                .verify_is_valid_for_subject_name(&ServerName::try_from(name).unwrap())
                .is_ok();
            assert_eq!(name.parse::<Expected>().unwrap().matches(&proven), by_webpki, "{name} and {names:?}");
            matched += usize::from(by_webpki);
        }
    }
    assert_eq!(matched, 11);
    assert!(matches("spiffe://prod/shop", &["spiffe://prod/shop"]));
    assert!(!matches("spiffe://prod/shop", &["spiffe://prod/shop/a"]));
    for name in ["", "*.example.org", "a..b", "spiffe://", "10.0.0.300", "https://shop.example", "a b"] {
        let error = name.parse::<Expected>().unwrap_err().to_string();
        assert!(error.contains("expected a DNS name without wildcard"), "{error}");
    }
}

/// Changes each byte to several values. If webpki still accepts the certificate, both agree about its names.
#[test]
fn damaged_certificates_have_only_names_accepted_by_webpki() {
    let root = authority();
    let long = format!("{}.example", "a".repeat(60));
    let names = [&*long, "b.example", "10.0.0.1", "fd00::1", "https://shop.example", "10.0.0.2"];
    let certificate = issue(&root, &params(&names)).to_vec();
    let (mut read, mut addresses) = (0, 0);
    for at in 0..certificate.len() {
        for change in [1, 0x20, 0x80, 0xff] {
            let mut damaged = certificate.clone();
            damaged[at] ^= change;
            let damaged = CertificateDer::from(damaged);
            let Ok(parsed) = EndEntityCert::try_from(&damaged) else { continue };
            read += 1;
            let Some(names) = names::names(&parsed) else { continue };
            for name in &names {
                if let Name::Ip(address) = name {
                    let address = ServerName::IpAddress(IpAddr::from(*address));
                    parsed.verify_is_valid_for_subject_name(&address).unwrap();
                    addresses += 1;
                }
            }
        }
    }
    assert!(read > 100 && addresses > 100, "{read} certificates, {addresses} addresses");
    for length in 0..certificate.len() {
        assert!(EndEntityCert::try_from(&CertificateDer::from(&certificate[..length])).is_err());
    }
}

#[test]
fn malformed_alternative_names_are_unusable() {
    let root = authority();
    let verifier = verifier(&trust(&root));
    for (content, is_usable) in [
        (&[0x30, 6, 0x87, 4, 10, 0, 0, 1][..], true),
        (&[0x30, 11, 0x87, 4, 10, 0, 0, 1, 0x87, 3, 10, 0, 1], true),
        (&[0x30, 5, 0x87, 3, 10, 0, 1], false),
        (&[0x30, 7, 0x87, 0x81, 4, 10, 0, 0, 1], false),
        (&[0x30, 8, 0x87, 0x82, 0, 4, 10, 0, 0, 1], false),
        (&[0x30, 7, 0x87, 4, 10, 0, 0, 1, 0x87], false),
        (&[0x30, 8, 0x87, 4, 10, 0, 0, 1, 0x9f, 0], false),
        (&[0x30, 6, 0x87, 5, 10, 0, 0, 1], false),
    ] {
        let mut params = params(&[]);
        params.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], content.into())];
        let proven = verifier.check(&[issue(&root, &params)], NOW);
        assert_eq!(proven.is_ok(), is_usable, "{content:02x?}: {proven:?}");
    }
}

#[test]
fn identity_errors_of_invalid_pem_name_mistake() {
    let root = authority();
    let own = key();
    let certificate = params(&[NAME]).signed_by(&own, &root).unwrap().pem();
    let pem = own.serialize_pem();
    let unnamed = params(&[]).signed_by(&own, &root).unwrap().pem();
    let broken = certificate.replacen("MII", "M!!", 1);
    let cut = certificate.replace("-----END", "----");
    let text = |chain: &str, key: &str| {
        Identity::from_pem(chain.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert_eq!(text("", &pem), "no section CERTIFICATE in the PEM");
    assert_eq!(
        text(&certificate, ""),
        "no section PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY in the PEM"
    );
    assert_eq!(text(&certificate, &certificate), text(&certificate, ""));
    assert!(text(&cut, &pem).starts_with("malformed PEM with certificates: "));
    assert!(
        text(&certificate, &pem.replace("-----END", "")).starts_with("malformed PEM with the private key: ")
    );
    assert!(text(&certificate.repeat(5), &pem).starts_with("a chain of 5 certificates: expected at most 4"));
    let mut large = params(&[NAME]);
    large.subject_alt_names = vec![SanType::DnsName("a".repeat(12_000).try_into().unwrap())];
    let large = large.signed_by(&own, &root).unwrap().pem();
    assert!(text(&large, &pem).ends_with(" bytes in a chain: expected at most 9728, without the root"));
    assert!(text(&certificate, &key().serialize_pem()).starts_with("the private key does not match"));
    assert!(text(&(root.pem() + &certificate), &pem).starts_with("the private key does not match"));
    assert!(text(&unnamed, &pem).starts_with("no usable name"));
    assert!(text(&broken, &pem).starts_with("malformed PEM with certificates: "));
    assert!(Identity::from_pem(certificate.as_bytes(), pem.as_bytes()).is_ok());

    let refused = |roots: &str| Trust::from_pem(roots.as_bytes()).unwrap_err().to_string();
    assert_eq!(refused(""), "no section CERTIFICATE in the PEM");
    assert!(
        refused("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----")
            .starts_with("unusable root: ")
    );
    let lists = trust(&root).with_revocation_lists(b"").unwrap_err().to_string();
    assert_eq!(lists, "no section X509 CRL in the PEM");
}

/// Runs a handshake. Returns both connections, or the cause for which one side ended it.
fn handshake(client: &Credentials, server: &Credentials) -> Result<[Connection; 2], Refused> {
    // A DNS name, since an address would never be sent as SNI.
    let name = ServerName::try_from("peer.example").unwrap();
    let client = ClientConnection::new(client.client.clone(), Version::V1, name, vec![1]).unwrap();
    let server = ServerConnection::new(server.server.clone(), Version::V1, vec![2]).unwrap();
    let mut sides = [Connection::from(client), Connection::from(server)];
    let mut sender = 0;
    loop {
        let mut quiet = true;
        loop {
            let mut flight = Vec::new();
            let keys = sides[sender].write_hs(&mut flight);
            if flight.is_empty() && keys.is_none() {
                break;
            }
            if !flight.is_empty() {
                quiet = false;
                sides[1 - sender].read_hs(&flight).map_err(|error| Refused::from(&error))?;
            }
        }
        if quiet {
            return Ok(sides);
        }
        sender = 1 - sender;
    }
}

#[test]
fn handshakes_have_documented_settings() {
    let root = authority();
    let (a, b) = (identity(&root, &params(&["a.example"])), identity(&root, &params(&["b.example"])));
    let (a, b) = (credentials(&a, &trust(&root)), credentials(&b, &trust(&root)));
    // A second handshake would resume the first session if that were possible.
    for _ in 0..2 {
        let sides = handshake(&a, &b).unwrap();
        for (side, (peer, verifier)) in
            sides.iter().zip([("b.example", &a.verifier), ("a.example", &b.verifier)])
        {
            assert!(!side.is_handshaking());
            assert_eq!(side.protocol_version(), Some(ProtocolVersion::TLSv1_3));
            assert_eq!(side.alpn_protocol(), Some(&b"trunkline"[..]));
            assert_eq!(side.handshake_kind(), Some(HandshakeKind::Full));
            assert_eq!(side.negotiated_key_exchange_group().unwrap().name(), NamedGroup::X25519);
            let suite = side.negotiated_cipher_suite().unwrap().suite();
            assert!(matches!(
                suite,
                CipherSuite::TLS13_AES_256_GCM_SHA384 | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            ));
            let proven = verifier.check(side.peer_certificates().unwrap(), NOW).unwrap();
            assert_eq!(proven.principal().to_string(), peer);
        }
        let Connection::Server(server) = &sides[1] else { unreachable!() };
        assert_eq!(server.server_name(), None);
    }
    for config_suites in [a.client.crypto_provider(), a.server.crypto_provider()] {
        assert_eq!((config_suites.cipher_suites.len(), config_suites.kx_groups.len()), (2, 1));
    }
    assert_eq!((b.server.send_tls13_tickets, b.server.max_early_data_size), (0, 0));
}

#[test]
fn both_roles_refuse_for_same_causes() {
    let (root, other) = (authority(), intermediate("other", &authority()));
    let good = identity(&root, &params(&[NAME]));
    let foreign = identity(&other, &params(&[NAME]));
    let mut ended = params(&[NAME]);
    ended.not_after = date_time_ymd(2026, 12, 31);
    let ended = identity(&root, &ended);
    let trust = trust(&root);
    let judge = credentials(&good, &trust);
    for (identity, refused) in [(foreign, Refused::UnknownRoot), (ended, Refused::Expired)] {
        let peer = credentials(&identity, &trust);
        assert_eq!(handshake(&peer, &judge).err(), Some(refused), "a client's certificate");
        assert_eq!(handshake(&judge, &peer).err(), Some(refused), "a server's certificate");
    }
    assert_eq!(Refused::from(&Error::NoCertificatesPresented).code(), 1);
    assert_eq!(Refused::from(&Error::NoApplicationProtocol).code(), 12);
}
