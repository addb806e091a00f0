//! Verification of a peer's certificate chain, shared by both TLS roles.

use super::names::{Name, Proven, names};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
    SignatureScheme,
};
use std::sync::Arc;
use std::time::Duration;
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, ExtendedKeyUsageValidator, KeyPurposeId,
    KeyPurposeIdIter, KeyUsage, RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};

/// Maximum number of certificates in a chain. webpki then finds at most 16 paths to a root.
pub const MOST_CERTIFICATES: usize = 4;

/// Cause of a failed handshake. The texts suit both nodes, because the cause is sent as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Refused {
    #[error("no certificate: give the node an identity")]
    NoCertificate = 1,
    #[error(
        "no path from the certificate to a root: add the root to the trust of the node that refuses, or the missing \
         intermediate certificates to the identity of the other"
    )]
    UnknownRoot = 2,
    #[error(
        "a certificate of the chain has expired: renew it, or correct the clock of the node that refuses"
    )]
    Expired = 3,
    #[error(
        "a certificate of the chain is not valid yet: correct the clock of the node that refuses, or that of the \
         certificate's issuer"
    )]
    NotYetValid = 4,
    #[error("a certificate of the chain is revoked: issue another one")]
    Revoked = 5,
    #[error(
        "no usable name in the certificate: issue one with a DNS name, an IP address or a single SPIFFE URI among its \
         alternative names, which are at most 256, and within the constraints of its issuer"
    )]
    NoUsableName = 6,
    #[error(
        "bad signature of a certificate, a revocation list or the handshake: trust the present root if another of its \
         name is trusted, or issue what it signs again, with Ed25519, ECDSA or RSA of 2,048 bits or more"
    )]
    BadSignature = 7,
    #[error("the nodes saw different values: a node between them changed one")]
    Binding = 8,
    #[error(
        "malformed message, or a chain of more than 4 certificates: shorten the chain, or update the other node"
    )]
    Malformed = 9,
    #[error("too many handshakes: try again")]
    TooMany = 10,
    #[error("a live session at this address has another name: wait until it ends, or use another address")]
    OtherName = 11,
    #[error("no common cipher suite or protocol: update the older node")]
    NoCommonSuite = 12,
    #[error("a renewal has another name: renew certificates under the same name")]
    RenewedName = 13,
    #[error("the handshake timed out: check the load of both nodes and the network between them")]
    TimedOut = 14,
    #[error(
        "the certificate is for other uses: issue one for client or server authentication, which is not that of an authority"
    )]
    OtherUse = 15,
}

impl Refused {
    const ALL: [Self; 15] = [
        Self::NoCertificate,
        Self::UnknownRoot,
        Self::Expired,
        Self::NotYetValid,
        Self::Revoked,
        Self::NoUsableName,
        Self::BadSignature,
        Self::Binding,
        Self::Malformed,
        Self::TooMany,
        Self::OtherName,
        Self::NoCommonSuite,
        Self::RenewedName,
        Self::TimedOut,
        Self::OtherUse,
    ];

    /// Returns the number of the cause, as sent to the peer.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// Returns the cause with this number. Unknown numbers count as malformed.
    pub fn from_code(code: u16) -> Self {
        Self::ALL.into_iter().find(|cause| cause.code() == code).unwrap_or(Self::Malformed)
    }
}

impl From<webpki::Error> for Refused {
    fn from(error: webpki::Error) -> Self {
        use webpki::Error::*;
        match error {
            UnknownIssuer | EndEntityUsedAsCa | PathLenConstraintViolated | MaximumPathDepthExceeded => {
                Self::UnknownRoot
            }
            CertExpired { .. } | InvalidCertValidity => Self::Expired,
            CertNotValidYet { .. } => Self::NotYetValid,
            CertRevoked => Self::Revoked,
            NameConstraintViolation => Self::NoUsableName,
            InvalidSignatureForPublicKey
            | SignatureAlgorithmMismatch
            | UnsupportedSignatureAlgorithmContext(_)
            | UnsupportedSignatureAlgorithmForPublicKeyContext(_)
            | InvalidCrlSignatureForPublicKey
            | IssuerNotCrlSigner
            | UnsupportedCrlSignatureAlgorithmContext(_)
            | UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_) => Self::BadSignature,
            RequiredEkuNotFoundContext(_) | EmptyEkuExtension | CaUsedAsEndEntity => Self::OtherUse,
            _ => Self::Malformed,
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        CertificateError::Other(OtherError(Arc::new(refused))).into()
    }
}

/// Returns the cause that a [`Verifier`] passed to rustls, or the closest cause for an error of rustls itself.
impl From<&Error> for Refused {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) => {
                cause.downcast_ref().copied().unwrap_or(Self::Malformed)
            }
            Error::InvalidCertificate(_) => Self::BadSignature,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::NoCommonSuite,
            _ => Self::Malformed,
        }
    }
}

/// Verifies peers' certificate chains against roots and revocation lists.
///
/// Certificates whose status the lists do not cover are accepted. A list past its next update is still used.
#[derive(Debug)]
pub struct Verifier {
    roots: Arc<[TrustAnchor<'static>]>,
    lists: Arc<[CertRevocationList<'static>]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(
        roots: Arc<[TrustAnchor<'static>]>,
        lists: Arc<[CertRevocationList<'static>]>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { roots, lists, algorithms }
    }

    /// Verifies a chain, which starts with the peer's certificate. Returns the names in that certificate with
    /// a copy of the chain.
    ///
    /// # Errors
    ///
    /// Returns one of the causes 1 to 7, [`Refused::Malformed`] or [`Refused::OtherUse`].
    pub fn check(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Proven, Refused> {
        #[cfg(debug_assertions)]
        super::off_poller::assert();
        let (end_entity, intermediates) = chain.split_first().ok_or(Refused::NoCertificate)?;
        let (names, not_after) = self.check_split(end_entity, intermediates, now)?;
        Ok(Proven::new(names, not_after, chain))
    }

    /// Returns the names, and the earliest expiry.
    fn check_split(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(Vec<Name>, UnixTime), Refused> {
        if intermediates.len() >= MOST_CERTIFICATES {
            return Err(Refused::Malformed);
        }
        let certificate = EndEntityCert::try_from(end_entity)?;
        let lists = self.lists.iter().collect::<Vec<_>>();
        // The builder refuses an empty list.
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Ignore)
                .build()
        });
        let algorithms = self.algorithms.all;
        let path = certificate.verify_for_usage(
            algorithms,
            &self.roots,
            intermediates,
            now,
            Authentication,
            revocation,
            None,
        )?;
        let [_, mut not_after] = validity(end_entity)?;
        for intermediate in path.intermediate_certificates() {
            not_after = not_after.min(validity(&intermediate.der())?[1]);
        }
        Ok((names(&certificate).ok_or(Refused::NoUsableName)?, not_after))
    }
}

/// Returns the first and the last second of a certificate's validity.
pub(super) fn validity(certificate: &CertificateDer<'_>) -> Result<[UnixTime; 2], webpki::Error> {
    let certificate = EndEntityCert::try_from(certificate)?;
    // webpki has no accessor for the validity. It checks the time first, and its errors contain the limits.
    let [first, last] = [0, u64::MAX].map(|at| UnixTime::since_unix_epoch(Duration::from_secs(at)));
    let at = |time| {
        certificate.verify_for_usage(&[], &[], &[], time, KeyUsage::server_auth(), None, None).map(drop)
    };
    let not_before = match at(first) {
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => not_before,
        _ => first,
    };
    match at(last) {
        Ok(()) => Ok([not_before, last]),
        Err(webpki::Error::CertExpired { not_after, .. }) => Ok([not_before, not_after]),
        Err(error) => Err(error),
    }
}

/// Accepts certificates for client or server authentication, and certificates without key usages.
struct Authentication;

impl ExtendedKeyUsageValidator for Authentication {
    fn validate(&self, mut purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        // 1.3.6.1.5.5.7.3.1 and .2, RFC 5280 §4.2.1.12.
        let server = KeyPurposeId::new(&[43, 6, 1, 5, 5, 7, 3, 1]);
        let client = KeyPurposeId::new(&[43, 6, 1, 5, 5, 7, 3, 2]);
        let Some(first) = purposes.next() else { return Ok(()) };
        for purpose in std::iter::once(first).chain(purposes) {
            let purpose = purpose?;
            if purpose == server || purpose == client {
                return Ok(());
            }
        }
        Err(webpki::Error::EmptyEkuExtension)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        // Channels compare names after the handshake.
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_split(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_split(end_entity, intermediates, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
