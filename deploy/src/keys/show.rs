//! Describes certificates and revocation lists, and reports whether a key matches.

use super::{DAY_S, Failure, files, name, sort};
use crate::streams::{ascii, finish, warn};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trunkline_softrdma::link::printable;
use trunkline_transport::identity::{Identity, IdentityError, Name};
use x509_parser::prelude::{
    ASN1Time, CertificateRevocationList, FromDer, GeneralName, ParsedExtension, Pem, SubjectPublicKeyInfo,
    X509Certificate,
};

/// Maximum number of signatures that are verified to find issuers.
const MAX_VERIFICATIONS: usize = 4096;

#[derive(Debug, Serialize)]
struct Shown {
    files: Vec<ShownFile>,
    /// Texts of the files that cannot be shown.
    errors: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ShownFile {
    path: String,
    certificates: Vec<Certificate>,
    revocation_lists: Vec<RevocationList>,
    /// The key file next to the PEM file, if any.
    key: Option<KeyFile>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Certificate {
    /// Usable names, with the principal first.
    pub(crate) names: Vec<String>,
    subject: String,
    pub(crate) issuer: String,
    /// True if an authority in the given files signed the certificate. `None` if no authority is given, or if
    /// [`MAX_VERIFICATIONS`] was reached first.
    is_issuer_given: Option<bool>,
    serial: String,
    not_before: String,
    pub(crate) not_after: String,
    days_left: i64,
    /// Permitted uses. If empty, every use is permitted.
    uses: Vec<String>,
    is_ca: bool,
    key_type: String,
    sha256: String,
    faults: Vec<String>,
    #[serde(skip)]
    der: Vec<u8>,
}

#[derive(Debug, Serialize)]
struct RevocationList {
    issuer: String,
    number: Option<String>,
    last_update: String,
    next_update: Option<String>,
    revoked: Vec<String>,
}

#[derive(Debug, Serialize)]
struct KeyFile {
    path: String,
    /// True if the key matches the first certificate. `None` if the key cannot be read or compared.
    matches: Option<bool>,
    error: Option<String>,
}

/// Prints the contents and the faults of the files. Returns the exit status.
pub(super) fn print(paths: &[PathBuf], json: bool) -> ExitCode {
    let (mut shown, mut status) = (Shown { files: Vec::new(), errors: Vec::new() }, 0);
    for path in paths {
        match describe(path) {
            Ok(file) => {
                let is_faulty = file.certificates.iter().any(|certificate| !certificate.faults.is_empty())
                    || file.key.as_ref().is_some_and(|key| key.matches == Some(false));
                status = status.max(u8::from(is_faulty));
                shown.files.push(file);
            }
            Err(failure) => {
                warn(&failure.text);
                shown.errors.push(failure.text);
                status = status.max(failure.status);
            }
        }
    }
    find_issuers(&mut shown.files);
    let text = if json {
        ascii(&serde_json::to_string_pretty(&shown).expect("numbers and text"))
    } else {
        shown.files.iter().map(text).collect()
    };
    if text.is_empty() { status.into() } else { finish(text.trim_end(), status) }
}

/// Determines for each certificate whether an authority in the given files signed it. After [`MAX_VERIFICATIONS`]
/// signatures, reports the number of remaining certificates, for which the value stays `None`.
fn find_issuers(files: &mut [ShownFile]) {
    let certificates = files.iter().flat_map(|file| &file.certificates);
    let parsed: Vec<_> = certificates.map(|one| X509Certificate::from_der(&one.der).ok()).collect();
    let mut authorities = BTreeMap::<_, Vec<_>>::new();
    for authority in parsed.iter().flatten().filter(|(_, one)| one.is_ca()).map(|(_, one)| one) {
        let key = (authority.subject().as_raw(), key_ids(authority).0);
        authorities.entry(key).or_default().push(authority);
    }
    if authorities.is_empty() {
        return;
    }
    let mut left = MAX_VERIFICATIONS;
    let mut is_given = |own: &X509Certificate<'_>| {
        let name = own.issuer().as_raw();
        // A self-signed certificate may omit the identifier of its authority.
        let (own_id, authority_id) = key_ids(own);
        let first = authorities.get(&(name, authority_id.or(own_id))).into_iter();
        let of_name = authorities.range((name, None)..).take_while(|((other, _), _)| *other == name);
        for authority in first.chain(of_name.map(|(_, all)| all)).flatten() {
            left = usize::checked_sub(left, 1)?;
            if own.verify_signature(Some(authority.public_key())).is_ok() {
                return Some(true);
            }
        }
        Some(false)
    };
    let given: Vec<_> =
        parsed.iter().map(|one| one.as_ref().map(|(_, own)| own).and_then(&mut is_given)).collect();
    let unchecked = given.iter().filter(|is_given| is_given.is_none()).count();
    for (certificate, given) in files.iter_mut().flat_map(|file| &mut file.certificates).zip(given) {
        certificate.is_issuer_given = given;
    }
    if unchecked > 0 {
        warn(format_args!(
            "the issuers of {unchecked} certificates were not determined: at most {MAX_VERIFICATIONS} signatures are verified; \
             show fewer files"
        ));
    }
}

/// Returns the key identifiers of a certificate and of its authority.
fn key_ids<'a>(certificate: &'a X509Certificate<'_>) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
    let (mut own, mut authority) = (None, None);
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => own = Some(id.0),
            ParsedExtension::AuthorityKeyIdentifier(ids) => {
                authority = ids.key_identifier.as_ref().map(|id| id.0);
            }
            _ => {}
        }
    }
    (own, authority)
}

fn describe(path: &Path) -> Result<ShownFile, Failure> {
    let bytes = files::read(path)?;
    let malformed = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let (mut certificates, mut revocation_lists) = (Vec::new(), Vec::new());
    for section in Pem::iter_from_buffer(&bytes) {
        let section = section.map_err(|error| malformed(&error))?;
        match &*section.label {
            "CERTIFICATE" => {
                let parsed = section.parse_x509().map_err(|error| malformed(&error))?;
                certificates.push(Certificate::new(&parsed, &section.contents));
            }
            "X509 CRL" => {
                let parsed = CertificateRevocationList::from_der(&section.contents);
                revocation_lists.push(RevocationList::new(&parsed.map_err(|error| malformed(&error))?.1));
            }
            _ => {}
        }
    }
    if certificates.is_empty() && revocation_lists.is_empty() {
        return Err(malformed(
            &"no certificate and no revocation list: expected PEM with CERTIFICATE or X509 CRL",
        ));
    }
    let key = path.with_extension("key");
    let key = (!certificates.is_empty() && key.is_file()).then(|| {
        let matches = files::read(&key)
            .map_err(|failure| failure.text)
            .and_then(|key| matches(&bytes, &key).map_err(|error| error.to_string()));
        KeyFile {
            path: key.display().to_string(),
            matches: matches.as_ref().ok().copied(),
            error: matches.err(),
        }
    });
    Ok(ShownFile { path: path.display().to_string(), certificates, revocation_lists, key })
}

/// Returns true if the key belongs to the first certificate.
pub(super) fn matches(certificates: &[u8], key: &[u8]) -> Result<bool, IdentityError> {
    const END: &str = "-----END CERTIFICATE-----";
    let text = String::from_utf8_lossy(certificates);
    let first = text.find(END).map_or(&*text, |at| &text[..at + END.len()]);
    match Identity::from_pem(first.as_bytes(), key) {
        // Names are checked after the key, so the key matches even if the names are rejected.
        Ok(_) | Err(IdentityError::Refused(_)) => Ok(true),
        Err(IdentityError::KeyMismatch) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the principal of the first certificate, or `None` if it belongs to an authority or contains no name.
pub(super) fn principal(pem: &[u8]) -> Result<Option<Name>, String> {
    let first = Pem::iter_from_buffer(pem).next().ok_or("no PEM")?.map_err(|error| error.to_string())?;
    let parsed = first.parse_x509().map_err(|error| error.to_string())?;
    Ok(names(&parsed).into_iter().next().filter(|_| !parsed.is_ca()))
}

/// Returns the usable names, with the principal first.
fn names(certificate: &X509Certificate<'_>) -> Vec<Name> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let (mut names, mut uris) = (Vec::new(), 0);
    for general in &extension.value.general_names {
        match general {
            GeneralName::URI(uri) => {
                uris += 1;
                names.extend(name(uri).ok().filter(|name| matches!(name, Name::Spiffe(_))));
            }
            GeneralName::DNSName(dns) => {
                names.extend(name(dns).ok().filter(|name| matches!(name, Name::Dns(_))));
            }
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(|bytes| Name::Ip(bytes.into()));
                names.extend(v4.or(<[u8; 16]>::try_from(*bytes).map(|bytes| Name::Ip(bytes.into()))));
            }
            _ => {}
        }
    }
    sort(&mut names);
    let is_ambiguous = uris > 1 && matches!(names.first(), Some(Name::Spiffe(_)));
    if is_ambiguous { Vec::new() } else { names }
}

impl Certificate {
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
        Some(Self::new(&X509Certificate::from_der(der).ok()?.1, der))
    }

    fn new(certificate: &X509Certificate<'_>, der: &[u8]) -> Self {
        let validity = certificate.validity();
        let now = ASN1Time::now();
        let names: Vec<_> = names(certificate).iter().map(ToString::to_string).collect();
        let (is_ca, uses) = (certificate.is_ca(), uses(certificate));
        let is_for_nodes = uses.is_empty() || uses.iter().any(|one| one == "server" || one == "client");
        let faults = [
            (now > validity.not_after, "expired: renew it"),
            (now < validity.not_before, "not valid yet: check this host's clock"),
            (!is_ca && names.is_empty(), "no usable name: peers refuse it"),
            (!is_ca && !is_for_nodes, "neither for clients nor for servers: peers refuse it"),
        ];
        Self {
            names,
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            is_issuer_given: None,
            serial: certificate.raw_serial_as_string(),
            not_before: time(validity.not_before),
            not_after: time(validity.not_after),
            days_left: (validity.not_after.timestamp() - now.timestamp()).div_euclid(DAY_S),
            uses,
            is_ca,
            key_type: key_type(certificate.public_key()),
            sha256: hex(digest(&SHA256, der).as_ref(), ":"),
            faults: faults.iter().filter(|(is_there, _)| *is_there).map(|(_, text)| (*text).into()).collect(),
            der: der.to_owned(),
        }
    }
}

impl RevocationList {
    fn new(list: &CertificateRevocationList<'_>) -> Self {
        Self {
            issuer: list.issuer().to_string(),
            number: list.crl_number().map(ToString::to_string),
            last_update: time(list.last_update()),
            next_update: list.next_update().map(time),
            revoked: list.iter_revoked_certificates().map(|one| one.raw_serial_as_string()).collect(),
        }
    }
}

fn uses(certificate: &X509Certificate<'_>) -> Vec<String> {
    let extended = match certificate.extended_key_usage() {
        Ok(Some(extension)) if !extension.value.any => extension.value,
        Ok(_) => return Vec::new(),
        Err(error) => return vec![error.to_string()],
    };
    let known = [
        (extended.server_auth, "server"),
        (extended.client_auth, "client"),
        (extended.code_signing, "code signing"),
        (extended.email_protection, "email"),
        (extended.time_stamping, "time stamps"),
        (extended.ocsp_signing, "OCSP"),
    ];
    let known = known.into_iter().filter(|(is_set, _)| *is_set).map(|(_, text)| text.to_owned());
    known.chain(extended.other.iter().map(ToString::to_string)).collect()
}

fn key_type(key: &SubjectPublicKeyInfo<'_>) -> String {
    let parameters = key.algorithm.parameters.as_ref();
    let curve = parameters.and_then(|curve| curve.as_oid().ok()).map(|curve| curve.to_string());
    match (&*key.algorithm.algorithm.to_string(), curve.as_deref()) {
        ("1.3.101.112", _) => "Ed25519".to_owned(),
        ("1.2.840.10045.2.1", Some("1.2.840.10045.3.1.7")) => "ECDSA P-256".to_owned(),
        ("1.2.840.10045.2.1", Some("1.3.132.0.34")) => "ECDSA P-384".to_owned(),
        ("1.2.840.113549.1.1.1", _) => {
            format!("RSA {}", key.parsed().map_or(0, |key| key.key_size()))
        }
        (other, _) => other.to_owned(),
    }
}

/// Formats a time as in RFC 3339.
fn time(time: ASN1Time) -> String {
    let utc = ASN1Time::from_timestamp(time.timestamp()).unwrap_or(time).to_datetime();
    let (year, month, day) = (utc.year(), u8::from(utc.month()), utc.day());
    let (hour, minute, second) = (utc.hour(), utc.minute(), utc.second());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

pub(super) fn hex(bytes: &[u8], separator: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(separator)
}

fn text(file: &ShownFile) -> String {
    let mut text = printable(&file.path) + "\n";
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "  {name:<10} {}", printable(value));
    };
    let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
    for (one, number) in file.certificates.iter().zip(1..) {
        line("CERTIFICATE", &number.to_string());
        line("names", &or(one.names.join(", "), "none"));
        line("subject", &or(one.subject.clone(), "none"));
        let given = match one.is_issuer_given {
            Some(true) => ": among the files given",
            Some(false) => ": not among the files given",
            None => "",
        };
        line("issuer", &format!("{}{given}", one.issuer));
        line("serial", &one.serial);
        let left = match one.days_left {
            days if days < 0 => "expired".to_owned(),
            days => format!("{days} days left"),
        };
        line("valid", &format!("{} to {}, {left}", one.not_before, one.not_after));
        line("use", &or(one.uses.join(", "), "any"));
        line("authority", if one.is_ca { "yes" } else { "no" });
        line("key type", &one.key_type);
        line("SHA-256", &one.sha256);
        for fault in &one.faults {
            line("fault", fault);
        }
    }
    for one in &file.revocation_lists {
        line("REVOCATION LIST", one.number.as_deref().unwrap_or("without a number"));
        line("issuer", &one.issuer);
        line("updated", &one.last_update);
        line("next", one.next_update.as_deref().unwrap_or("unknown"));
        line("revoked", &or(one.revoked.join(", "), "none"));
    }
    if let Some(KeyFile { path, matches, error }) = &file.key {
        let verdict = match (matches, error) {
            (Some(true), _) => "matches".to_owned(),
            (Some(false), _) => "fault: does not match the first certificate".to_owned(),
            (None, error) => format!("not compared: {}", error.as_deref().unwrap_or_default()),
        };
        line("key", &format!("{path} {verdict}"));
    }
    text
}
