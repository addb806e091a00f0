//! Certificates of honest nodes. All nodes of a run share one certificate, because only the name matters.

use crate::Outcome;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ED25519};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use trunkline::NodeBuilder;

/// Name in the certificate.
pub(super) const NAME: &str = "node.example";

/// Writes a root, a certificate and its key to a folder if the folder does not contain them.
pub(super) fn issue(folder: &Path) -> Outcome<()> {
    if folder.join("root.pem").exists() {
        return Ok(());
    }
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519)?)?;
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let certificate = CertificateParams::new([NAME.to_owned()])?.signed_by(&key, &root)?;
    std::fs::write(folder.join("node.pem"), certificate.pem())?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(folder.join("node.key"))?;
    file.write_all(key.serialize_pem().as_bytes())?;
    Ok(std::fs::write(folder.join("root.pem"), root.pem())?)
}

/// Gives a node the certificate in a folder.
pub(super) fn identify(node: NodeBuilder, folder: &Path) -> NodeBuilder {
    node.identity_files(folder.join("node.pem"), folder.join("node.key"))
        .trust_files(folder.join("root.pem"))
        .exempt_local_user(false)
        .allow_unauthenticated(true)
}
