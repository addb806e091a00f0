//! Certificates and keys for nodes in measurements and simulations.
#![forbid(unsafe_code)]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use std::net::IpAddr;

/// PKCS #8 header of an Ed25519 key, RFC 8410 §7. The 32-byte seed follows it.
const ED25519: &[u8] = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";

/// Issues a certificate for an address. Returns the certificate, its private key and the root, as PEM. The keys are derived
/// from fixed seeds, so that processes trust each other. They are not secret.
///
/// # Panics
/// Panics if the certificate cannot be created, which is a bug.
#[must_use]
pub fn certificate(address: IpAddr) -> [String; 3] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let root = CertifiedIssuer::self_signed(params, ed25519([0; 32])).expect("valid parameters");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    let key = ed25519([1; 32]);
    let certificate = params.signed_by(&key, &root).expect("valid parameters");
    [certificate.pem(), key.serialize_pem(), root.pem()]
}

/// Returns the Ed25519 key with this seed.
///
/// # Panics
/// Panics if the key cannot be created, which is a bug.
#[must_use]
pub fn ed25519(seed: [u8; 32]) -> KeyPair {
    KeyPair::try_from([ED25519, &seed].concat()).expect("PKCS #8 of Ed25519")
}
