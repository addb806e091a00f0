//! Certificates of simulated nodes, and handshakes that are reproducible from a seed.
//!
//! rustls takes random numbers from its provider. The exception is the secret of the key exchange, which ring's X25519
//! takes from the operating system. This provider therefore implements X25519 itself. Ed25519 signatures need no random
//! numbers. All other algorithms come from ring.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use rustls::crypto::ring::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::crypto::ring::default_provider;
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret, SupportedKxGroup,
};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use rustls::{Error, NamedGroup, PeerMisbehaved};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_testkit::ed25519;
use trunkline_transport::identity::{Credentials, Identity, Trust};
use trunkline_verbs::{Clock, Time};
use x25519_dalek::{PublicKey, StaticSecret};

/// Calendar time at which the virtual clock is zero: 15 January 2027.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);
/// Validity period of node certificates.
const VALID: Duration = Duration::from_secs(365 * 24 * 3600);

/// Converts a time of the virtual clock to calendar time.
pub(crate) fn calendar(time: Time) -> UnixTime {
    UnixTime::since_unix_epoch(EPOCH + (time - Time(0)))
}

/// Source of calendar time for rustls, derived from the virtual clock.
#[derive(Debug)]
pub(crate) struct VirtualTime(pub(crate) Clock);

impl TimeProvider for VirtualTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(calendar(self.0.now()))
    }
}

/// Seeded random number generator of a process, and the key exchange based on it.
#[derive(Debug)]
struct Seeded {
    random: Mutex<fastrand::Rng>,
    time: HandshakeTime,
}

/// Simulated duration of all cryptography in a handshake. The key exchange charges it to the running machine.
#[derive(Debug, Clone)]
struct HandshakeTime {
    clock: Clock,
    time: Duration,
}

impl Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}

impl SecureRandom for Seeded {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        self.fill(bytes);
        Ok(())
    }
}

impl SupportedKxGroup for Seeded {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let mut secret = [0; 32];
        self.fill(&mut secret);
        let secret = StaticSecret::from(secret);
        Ok(Box::new(KeyExchange { public: PublicKey::from(&secret), secret, time: self.time.clone() }))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// An X25519 key exchange that awaits the peer's key.
struct KeyExchange {
    secret: StaticSecret,
    public: PublicKey,
    time: HandshakeTime,
}

impl ActiveKeyExchange for KeyExchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer = <[u8; 32]>::try_from(peer).map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        if let Some(clock) = self.time.clock.as_virtual() {
            clock.charge(self.time.time);
        }
        let shared = self.secret.diffie_hellman(&PublicKey::from(peer));
        // RFC 8446 §7.4.2: an all-zero secret ends the handshake.
        if !shared.was_contributory() {
            return Err(PeerMisbehaved::InvalidKeyShare.into());
        }
        Ok(shared.as_bytes()[..].into())
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_bytes()
    }
}

/// Returns ring's cryptography with the random number generator of a simulated process. Each handshake takes the given
/// time.
///
/// There is only one cipher suite, because the preference among several depends on the processor. rustls takes `'static`
/// references, so each call leaks some bytes. Call this function once per process.
pub(crate) fn provider(runtime: &Runtime, time: Duration) -> CryptoProvider {
    let random = Mutex::new(fastrand::Rng::with_seed(runtime.random()));
    let time = HandshakeTime { clock: runtime.clock().clone(), time };
    let seeded: &Seeded = Box::leak(Box::new(Seeded { random, time }));
    CryptoProvider {
        cipher_suites: vec![TLS13_AES_256_GCM_SHA384],
        kx_groups: vec![seeded],
        secure_random: seeded,
        ..default_provider()
    }
}

/// PEM files of a node. All processes of the node use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PemFiles {
    pub(crate) names: Vec<String>,
    pub(crate) root: String,
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl PemFiles {
    /// Returns credentials for a process of the node. They use [`provider`].
    pub(crate) fn credentials(&self, runtime: &Runtime, handshake: Duration) -> Arc<Credentials> {
        let identity = Identity::from_pem(self.chain.as_bytes(), self.key.as_bytes());
        let trust = Trust::from_pem(self.root.as_bytes());
        let (identity, trust) = (identity.expect("usable identity"), trust.expect("usable root"));
        let time = Arc::new(VirtualTime(runtime.clock().clone()));
        let credentials = Credentials::new(&identity, &trust, provider(runtime, handshake), time);
        Arc::new(credentials.expect("suitable provider"))
    }
}

/// Returns the DNS name of the node with this address.
pub(crate) fn dns_name(address: SocketAddr) -> String {
    format!("n{}.example", address.port())
}

/// A certificate authority. The same seed and sequence of calls produce the same files.
pub(crate) struct Authority {
    random: fastrand::Rng,
    root: CertifiedIssuer<'static, KeyPair>,
    /// Serial number of the last certificate.
    serial: u64,
}

impl Authority {
    /// Creates an authority with a root certificate that is valid in all runs. Different seeds give the roots different
    /// subjects.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("root {seed}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(1.into());
        let root = CertifiedIssuer::self_signed(params, key(&mut random)).expect("valid parameters");
        Self { random, root, serial: 1 }
    }

    /// Issues a certificate for the node with this address, valid in all runs.
    pub(crate) fn node(&mut self, address: SocketAddr) -> PemFiles {
        self.named(&[&dns_name(address), &address.ip().to_string()])
    }

    /// Issues a certificate for names in the format of [`Self::issue`], valid in all runs.
    pub(crate) fn named(&mut self, names: &[&str]) -> PemFiles {
        self.issue(names, calendar(Time(0)), calendar(Time(0) + VALID))
    }

    /// Issues a certificate for names, each of which is an IP address, a URI or a DNS name. Both ends of the validity
    /// period are inclusive and rounded down to seconds.
    pub(crate) fn issue(&mut self, names: &[&str], not_before: UnixTime, not_after: UnixTime) -> PemFiles {
        let date = |time: UnixTime| date_time_ymd(1970, 1, 1) + Duration::from_secs(time.as_secs());
        let name = |&name: &&str| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains(':') => SanType::URI(name.try_into().expect("ASCII name")),
            Err(_) => SanType::DnsName(name.try_into().expect("ASCII name")),
        };
        self.serial += 1;
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.iter().map(name).collect();
        (params.not_before, params.not_after) = (date(not_before), date(not_after));
        params.serial_number = Some(self.serial.into());
        let key = key(&mut self.random);
        let certificate = params.signed_by(&key, &self.root).expect("valid parameters");
        let names = names.iter().map(|&name| name.to_owned()).collect();
        PemFiles { names, root: self.root.pem(), chain: certificate.pem(), key: key.serialize_pem() }
    }
}

fn key(random: &mut fastrand::Rng) -> KeyPair {
    let mut seed = [0; 32];
    random.fill(&mut seed);
    ed25519(seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::Coverage;
    use crate::scheduler::Scheduler;
    use crate::trace::Trace;
    use rustls::pki_types::ServerName;
    use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};
    use std::net::Ipv6Addr;
    use trunkline_transport::identity::Refused;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Processes of two nodes. The first node's certificate is valid for an hour.
    struct Pair {
        clock: Clock,
        sides: [Arc<Credentials>; 2],
    }

    /// All bytes sent by both sides, in order, and the keying material exported by each side.
    #[derive(Debug, PartialEq, Eq)]
    struct Handshake {
        flights: Vec<Vec<u8>>,
        exported: [[u8; 32]; 2],
    }

    impl Pair {
        fn new(seed: u64) -> Self {
            let mut authority = Authority::new(seed);
            let mut scheduler = Scheduler::new(seed, Trace::checksum_only(), Arc::new(Coverage::default()));
            let now = scheduler.now();
            let sides = [("a.example", HOUR), ("b.example", 2 * HOUR)].map(|(name, validity)| {
                let (_, runtime) = scheduler.process();
                authority
                    .issue(&[name], calendar(now), calendar(now + validity))
                    .credentials(&runtime, Duration::ZERO)
            });
            let (_, runtime) = scheduler.process();
            Self { clock: runtime.clock().clone(), sides }
        }

        fn advance(&self, by: Duration) {
            self.clock.as_virtual().unwrap().set(self.clock.now() + by);
        }

        /// Runs a handshake in which `client`, the index of either side, is the TLS client.
        fn handshake(&self, client: usize) -> Result<Handshake, Refused> {
            let name = ServerName::IpAddress(Ipv6Addr::UNSPECIFIED.into());
            let (client, server) = (&self.sides[client].client, &self.sides[1 - client].server);
            let client = ClientConnection::new(client.clone(), Version::V1, name, vec![1]).unwrap();
            let server = ServerConnection::new(server.clone(), Version::V1, vec![2]).unwrap();
            let mut ends = [Connection::from(client), Connection::from(server)];
            let mut flights = Vec::new();
            for sender in [0, 1, 0] {
                let mut flight = Vec::new();
                while ends[sender].write_hs(&mut flight).is_some() || !flight.is_empty() {
                    if !flight.is_empty() {
                        ends[1 - sender].read_hs(&flight).map_err(|error| Refused::from(&error))?;
                        flights.push(std::mem::take(&mut flight));
                    }
                }
            }
            assert!(ends.iter().all(|end| !end.is_handshaking()), "a side waits for more");
            let exported = ends.each_ref().map(|end| end.export_keying_material([0; 32], b"label", None));
            Ok(Handshake { flights, exported: exported.map(Result::unwrap) })
        }
    }

    #[test]
    fn handshakes_repeat_with_seed() {
        let (pair, same, other) = (Pair::new(7), Pair::new(7), Pair::new(8));
        let first = pair.handshake(0).unwrap();
        assert_eq!(first.exported[0], first.exported[1]);
        assert_eq!(first, same.handshake(0).unwrap());
        for different in [other.handshake(0).unwrap(), pair.handshake(0).unwrap()] {
            assert_ne!(first.exported, different.exported);
            for (flight, other) in first.flights.iter().zip(&different.flights) {
                assert!(flight != other, "two handshakes have a flight in common");
            }
        }
    }

    #[test]
    fn handshakes_of_parallel_runs_with_equal_seed_are_equal() {
        #[expect(clippy::disallowed_methods, reason = "a campaign has threads for its runs")]
        let runs =
            [(); 2].map(|()| std::thread::spawn(|| [0, 1, 0, 1].map(|side| Pair::new(7).handshake(side))));
        let [first, second] = runs.map(|run| run.join().unwrap());
        assert_eq!(first, second);
    }

    #[test]
    fn expired_certificate_is_refused() {
        let pair = Pair::new(7);
        pair.advance(HOUR);
        for client in [0, 1] {
            assert!(pair.handshake(client).is_ok());
        }
        pair.advance(Duration::from_secs(1));
        for client in [0, 1] {
            assert_eq!(pair.handshake(client), Err(Refused::Expired));
        }
    }

    #[test]
    fn authority_with_different_seed_is_untrusted() {
        let (mut pair, other) = (Pair::new(7), Pair::new(8));
        pair.sides[1] = other.sides[1].clone();
        assert_eq!(pair.handshake(0), Err(Refused::UnknownRoot));
    }

    #[test]
    fn key_exchange_is_x25519() {
        let (_, runtime) = Scheduler::new(7, Trace::checksum_only(), Arc::new(Coverage::default())).process();
        let group = provider(&runtime, Duration::ZERO).kx_groups[0];
        let ring = default_provider().kx_groups;
        let ring = ring.iter().find(|group| group.name() == NamedGroup::X25519).unwrap();
        let ours = group.start().unwrap();
        assert_ne!(ours.pub_key(), group.start().unwrap().pub_key(), "two key exchanges share a secret");
        let theirs = ring.start_and_complete(ours.pub_key()).unwrap();
        let shared = ours.complete(&theirs.pub_key).unwrap();
        assert_eq!(shared.secret_bytes(), theirs.secret.secret_bytes());
        // The points 0 and 1 have small order.
        let mut one = [0; 32];
        one[0] = 1;
        for peer in [&[0; 32][..], &one, &[9; 31]] {
            let refused = group.start().unwrap().complete(peer).map(drop);
            assert_eq!(refused, Err(PeerMisbehaved::InvalidKeyShare.into()));
        }
    }
}
