//! Identity and trust of a node from PEM, and the TLS configurations built from them.

use super::names::{Name, Proven, names};
use super::verifier::{MOST_CERTIFICATES, Refused, Verifier, validity};
use crate::wire::handshake::SEALED_TOTAL;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, TrustAnchor, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, NamedGroup, ServerConfig};
use std::sync::Arc;
use std::time::Duration;
use webpki::{CertRevocationList, EndEntityCert, OwnedCertRevocationList, anchor_from_trusted_cert};

/// ALPN identifier.
pub(super) const PROTOCOL: &[u8] = b"trunkline";
/// Maximum size of a chain, in bytes, which leaves room in a flight for the other messages. The largest of them are
/// the binding and an RSA signature, with less than 1 KiB each.
const LARGEST_CHAIN: usize = SEALED_TOTAL as usize - 2560;

/// Error in the PEM of an identity or a trust.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The text is not PEM.
    #[error("malformed PEM with {part}: {source}")]
    Pem {
        /// Expected contents of the text.
        part: &'static str,
        /// Error of the parser.
        source: pem::Error,
    },
    /// The PEM has no section of the expected kind.
    #[error("no section {0} in the PEM")]
    Missing(&'static str),
    /// A certificate or a revocation list is malformed, or in a form that webpki does not support.
    #[error("unusable {part}: {source}")]
    Unusable {
        /// Expected contents of the section.
        part: &'static str,
        /// Error of the parser.
        source: webpki::Error,
    },
    /// The chain has more certificates than peers accept.
    #[error("a chain of {0} certificates: expected at most 4, without the root")]
    TooLong(usize),
    /// The chain does not fit in the message that carries it.
    #[error("certificates of {0} bytes in a chain: expected at most {LARGEST_CHAIN}, without the root")]
    TooLarge(usize),
    /// The private key's type is not supported.
    #[error(
        "unsupported private key: expected Ed25519, ECDSA with P-256 or P-384, or RSA of 2,048 bits or more"
    )]
    UnsupportedKey,
    /// The private key and the first certificate do not match.
    #[error(
        "the private key does not match the first certificate: expected the node's own certificate first, and its key"
    )]
    KeyMismatch,
    /// Peers would refuse the certificate.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The provider lacks a cipher suite or a key exchange.
    #[error("unsuitable cryptographic provider: {0}")]
    Provider(rustls::Error),
}

/// Certificates and private key of a node.
#[derive(Debug, Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    /// Start of the first certificate's validity, and the earliest expiry in the chain.
    validity: [UnixTime; 2],
}

impl Identity {
    /// Reads a certificate chain and its unencrypted private key. The chain begins with the node's certificate and
    /// omits the root.
    ///
    /// # Errors
    ///
    /// Returns an error if either is malformed, the key does not match, the chain has more than four certificates or
    /// too many bytes, or the certificate has no usable name. The validity period is not checked.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let chain = sections::<CertificateDer<'static>>(chain, "certificates", "CERTIFICATE")?;
        if chain.len() > MOST_CERTIFICATES {
            return Err(IdentityError::TooLong(chain.len()));
        }
        let bytes = chain.iter().map(|certificate| certificate.len()).sum();
        if bytes > LARGEST_CHAIN {
            return Err(IdentityError::TooLarge(bytes));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| match source {
            pem::Error::NoItemsFound => {
                IdentityError::Missing("PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY")
            }
            source => IdentityError::Pem { part: "the private key", source },
        })?;
        let unusable = |source| IdentityError::Unusable { part: "certificate", source };
        let validities = chain.iter().map(validity).collect::<Result<Vec<_>, _>>().map_err(unusable)?;
        let not_after = validities.iter().map(|[_, end]| *end).min();
        let not_after = not_after.expect("sections of a kind are not empty");
        let key = any_supported_type(&key).map_err(|_| IdentityError::UnsupportedKey)?;
        let key = CertifiedKey::new(chain, key);
        key.keys_match().map_err(|_| IdentityError::KeyMismatch)?;
        let own = EndEntityCert::try_from(&key.cert[0]).map_err(unusable)?;
        names(&own).ok_or(Refused::NoUsableName)?;
        Ok(Self { key: Arc::new(key), validity: [validities[0][0], not_after] })
    }
}

/// Roots of the peers' certificates, and lists of revoked certificates.
#[derive(Debug, Clone)]
pub struct Trust {
    roots: Arc<[TrustAnchor<'static>]>,
    lists: Arc<[CertRevocationList<'static>]>,
}

impl Trust {
    /// Reads root certificates. Every root may sign for all names, unless it has name constraints.
    ///
    /// # Errors
    ///
    /// Returns an error if the PEM or a certificate is malformed, or if the PEM contains no certificate.
    pub fn from_pem(roots: &[u8]) -> Result<Self, IdentityError> {
        let roots = sections::<CertificateDer<'static>>(roots, "roots", "CERTIFICATE")?
            .iter()
            .map(|root| Ok(anchor_from_trusted_cert(root)?.to_owned()))
            .collect::<Result<_, _>>()
            .map_err(|source| IdentityError::Unusable { part: "root", source })?;
        Ok(Self { roots, lists: Arc::new([]) })
    }

    /// Reads revocation lists, which replace earlier ones.
    ///
    /// # Errors
    ///
    /// Returns an error if the PEM or a list is malformed, or if the PEM contains no list.
    pub fn with_revocation_lists(self, lists: &[u8]) -> Result<Self, IdentityError> {
        let lists = sections::<CertificateRevocationListDer<'static>>(lists, "revocation lists", "X509 CRL")?
            .iter()
            .map(|list| OwnedCertRevocationList::from_der(list).map(CertRevocationList::from))
            .collect::<Result<_, _>>()
            .map_err(|source| IdentityError::Unusable { part: "revocation list", source })?;
        Ok(Self { lists, ..self })
    }
}

/// Reads all sections of a kind. At least one is required.
fn sections<T: PemObject>(
    pem: &[u8],
    part: &'static str,
    kind: &'static str,
) -> Result<Vec<T>, IdentityError> {
    let sections = T::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let sections = sections.map_err(|source| IdentityError::Pem { part, source })?;
    if sections.is_empty() { Err(IdentityError::Missing(kind)) } else { Ok(sections) }
}

/// State shared by handshakes, rebuilt when files change.
#[derive(Debug)]
pub struct Credentials {
    /// Configuration of the TLS client.
    pub client: Arc<ClientConfig>,
    /// Configuration of the TLS server.
    pub server: Arc<ServerConfig>,
    /// Verifier used by both configurations, also for the chains of live sessions.
    pub verifier: Arc<Verifier>,
    /// Start of the validity of the node's certificate.
    pub not_before: UnixTime,
    /// Earliest expiry in the node's chain.
    pub not_after: UnixTime,
    pub(super) own: Arc<CertifiedKey>,
}

impl Credentials {
    /// Returns the principal of the node's own certificate.
    pub(crate) fn principal(&self) -> Option<Name> {
        let own = EndEntityCert::try_from(&self.own.cert[0]).ok()?;
        names(&own)?.into_iter().next()
    }

    /// Creates configurations that use the cryptography of ring and this host's clock.
    ///
    /// # Errors
    ///
    /// See [`Self::new`].
    pub fn of_system(identity: &Identity, trust: &Trust) -> Result<Self, IdentityError> {
        Self::new(identity, trust, default_provider(), Arc::new(DefaultTimeProvider))
    }

    /// Creates configurations for TLS 1.3 with ALPN `trunkline` and certificates on both sides, without tickets,
    /// resumption, 0-RTT or SNI. They use X25519, AES-256-GCM and ChaCha20-Poly1305 of `provider`.
    ///
    /// # Errors
    ///
    /// Returns [`IdentityError::Provider`] if the provider lacks one of these algorithms.
    pub fn new(
        identity: &Identity,
        trust: &Trust,
        provider: CryptoProvider,
        time: Arc<dyn TimeProvider>,
    ) -> Result<Self, IdentityError> {
        let provider = Arc::new(restricted(provider));
        let Trust { roots, lists } = trust.clone();
        let verifier = Arc::new(Verifier::new(roots, lists, provider.signature_verification_algorithms));
        let own = Arc::new(SingleCertAndKey::from(identity.key.clone()));
        let protocols = vec![PROTOCOL.to_vec()];

        let mut client = ClientConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::Provider)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(own.clone());
        client.alpn_protocols.clone_from(&protocols);
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.enable_early_data = false;
        client.cert_compressors.clear();
        client.cert_decompressors.clear();

        let mut server = ServerConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::Provider)?
            .with_client_cert_verifier(verifier.clone())
            .with_cert_resolver(own);
        server.alpn_protocols = protocols;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        server.send_half_rtt_data = false;
        server.cert_compressors.clear();
        server.cert_decompressors.clear();

        let (client, server) = (Arc::new(client), Arc::new(server));
        let [not_before, not_after] = identity.validity;
        Ok(Self { client, server, verifier, not_before, not_after, own: identity.key.clone() })
    }

    /// Returns the time until the earliest expiry in the node's chain; zero afterwards.
    #[must_use]
    pub fn expires_in(&self) -> Duration {
        let now = self.client.time_provider.current_time();
        Duration::from_secs(now.map_or(0, |now| self.not_after.as_secs().saturating_sub(now.as_secs())))
    }

    /// Verifies the node's chain at the current time, as a peer with the same trust does.
    ///
    /// # Errors
    ///
    /// Returns the cause for which a peer would refuse the chain, or [`Refused::Expired`] if any certificate in the
    /// chain has expired.
    pub fn check_own(&self) -> Result<Proven, Refused> {
        let now = self.client.time_provider.current_time().ok_or(Refused::Malformed)?;
        if now > self.not_after {
            return Err(Refused::Expired);
        }
        self.verifier.check(&self.own.cert, now)
    }
}

/// Restricts a provider to the suites and the key exchange of the handshake. The suite that is faster on this
/// processor is preferred.
fn restricted(mut provider: CryptoProvider) -> CryptoProvider {
    use CipherSuite::{TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    let suites = &mut provider.cipher_suites;
    suites.retain(|suite| matches!(suite.suite(), TLS13_AES_256_GCM_SHA384 | TLS13_CHACHA20_POLY1305_SHA256));
    suites.sort_by_key(|suite| (suite.suite() == TLS13_CHACHA20_POLY1305_SHA256) == has_aes());
    provider.kx_groups.retain(|group| group.name() == NamedGroup::X25519);
    provider
}

/// Returns true if the processor has instructions for AES-GCM.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}
