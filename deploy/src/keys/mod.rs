//! `trunkctl keys`: certificates and private keys for a small cluster.
//!
//! The folder of an authority contains a root certificate, which nodes trust, and its key, which signs the certificates
//! of nodes. A certificate is written only if the verifier that nodes use accepts it for all its names. Private keys are
//! never printed.

mod files;
pub(crate) mod show;

use crate::streams::{fail, warn};
use clap::{Args, Subcommand};
use files::Pair;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::DefaultTimeProvider;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use trunkline_transport::identity::{Credentials, Expected, Identity, Name, Trust};
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

/// Time between the start of validity and issuance, in seconds. It allows for nodes whose clocks are slow.
const EARLY_S: i64 = 3600;
const DAY_S: i64 = 86_400;
/// Maximum length of a common name, in characters (RFC 5280, ub-common-name).
const LONGEST_COMMON_NAME: usize = 64;

/// Operation on certificates.
#[expect(missing_docs, reason = "the arguments of each variant have its help")]
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    Init(InitArguments),
    Issue(IssueArguments),
    Show(ShowArguments),
}

/// Make an authority: a folder with a root certificate and its private key
///
/// Writes DIR/root.pem, which all nodes trust, and DIR/root.key (mode 0600), which signs their certificates. The
/// key can sign any name: keep DIR on one safe host, and copy only root.pem to the nodes. Existing files are never
/// overwritten.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  trunkctl keys init ca
  trunkctl keys issue ca web.example.com 10.0.0.7 --out web")]
pub struct InitArguments {
    /// Folder to make, with mode 0700
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Name of the authority; by default `Trunkline root` and a number that differs for each authority
    #[arg(long, value_name = "TEXT", value_parser = authority_name)]
    name: Option<String>,
    /// Validity, in days
    #[arg(long, default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Print the JSON of `trunkctl keys show`
    #[arg(long)]
    json: bool,
}

/// Issue or renew the certificate of a node, signed by an authority
///
/// Writes PREFIX.pem (the certificate, without the root) and PREFIX.key (a new private key, mode 0600). The
/// certificate serves clients and servers. Peers know the node by its SPIFFE URI, else by its first DNS name, else by its
/// first IP address. It ends with the root at the latest.
///
/// With --replace, both files are complete on disk before the key and then the certificate take the place of the old
/// ones. A program that watches PREFIX.pem finds the new key beside it. One that reads the pair in between finds that
/// they do not match, and has to read again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  trunkctl keys issue ca web.example.com 10.0.0.7 --out web
  trunkctl keys issue ca spiffe://example.com/web web.example.com --out web --replace")]
pub struct IssueArguments {
    /// Folder of the authority, made by `trunkctl keys init`
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// DNS names (`*.example.com` stands for one label), IP addresses, and at most one SPIFFE URI
    #[arg(required = true, value_name = "NAME", value_parser = name)]
    names: Vec<Name>,
    /// Validity, in days
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Path of both files without .pem and .key; by default the first name, in DIR
    #[arg(long, value_name = "PREFIX")]
    out: Option<PathBuf>,
    /// Renew: replace the files of a certificate with the same principal
    #[arg(long)]
    replace: bool,
    /// Print the JSON of `trunkctl keys show`
    #[arg(long)]
    json: bool,
}

/// Show certificates and revocation lists of PEM files
///
/// If a file with the ending .key is beside a PEM file, tells whether it is the key of the first certificate. Private
/// keys are not shown. To find issuers, at most 4096 signatures are verified.
///
/// Exit status: 0 without faults; 1 if a certificate is not valid now or peers would refuse its names or uses, if a key does
/// not match, or if a file is malformed; 2 if a file cannot be read.
#[derive(Debug, Args)]
pub struct ShowArguments {
    /// PEM files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object: `files`, each with `path`, `certificates`, `revocation_lists` and `key`
    #[arg(long)]
    json: bool,
}

/// Error of an operation, with the exit status of the program.
#[derive(Debug)]
struct Failure {
    status: u8,
    text: String,
}

impl Failure {
    fn new(text: impl fmt::Display) -> Self {
        Self { status: 1, text: text.to_string() }
    }

    /// Creates the failure for a file that cannot be read or an invalid command line.
    fn unusable(text: impl fmt::Display) -> Self {
        Self { status: 2, text: text.to_string() }
    }
}

/// Runs the operation. Returns exit status 1 if it failed or found a fault, and 2 if a file cannot be read.
#[must_use]
pub fn run(command: &KeysCommand) -> ExitCode {
    let (written, json) = match command {
        KeysCommand::Init(arguments) => (init(arguments), arguments.json),
        KeysCommand::Issue(arguments) => (issue(arguments), arguments.json),
        KeysCommand::Show(arguments) => return show::print(&arguments.files, arguments.json),
    };
    match written {
        Ok(certificate) => show::print(&[certificate], json),
        Err(Failure { status, text }) => fail(text, json, status),
    }
}

fn authority_name(text: &str) -> Result<String, String> {
    let is_valid = (1..=LONGEST_COMMON_NAME).contains(&text.chars().count());
    if is_valid && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(format!("expected 1 to {LONGEST_COMMON_NAME} characters, without control characters"))
    }
}

/// Parses a name in the format that channels accept, or a DNS name with a wildcard that webpki accepts.
fn name(text: &str) -> Result<Name, String> {
    let is_spiffe = |text: &str| text.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("spiffe:"));
    let is_dns = |text: &&str| text.contains('.') && !is_spiffe(text) && text.parse::<IpAddr>().is_err();
    let parent = text.strip_prefix("*.").filter(is_dns);
    if text.starts_with('*') && parent.is_none() {
        return Err("expected `*.` and a DNS name of two labels or more".to_owned());
    }
    let expected = "expected a DNS name, which may begin with `*.`, an IP address, or spiffe://, a domain in lower case and a path";
    parent.unwrap_or(text).parse::<Expected>().map_err(|_invalid| expected)?;
    Ok(if is_spiffe(text) {
        Name::Spiffe(text.into())
    } else if let Ok(address) = text.parse() {
        Name::Ip(address)
    } else {
        Name::Dns(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase().into())
    })
}

/// Sorts names in the order of [`Proven`](trunkline_transport::identity::Proven), with the principal first.
fn sort(names: &mut [Name]) {
    names.sort_by_key(|name| match name {
        Name::Spiffe(_) => 0,
        Name::Dns(_) => 1,
        Name::Ip(_) => 2,
    });
}

/// Generates an ECDSA key on P-256, which all TLS stacks support. Several of them do not support Ed25519, and OpenSSL
/// cannot read ring's encoding of Ed25519 keys.
fn generate() -> Result<KeyPair, Failure> {
    KeyPair::generate().map_err(|error| Failure::new(format!("no key can be generated: {error}")))
}

fn params(from_s: i64, until_s: i64, common_name: Option<String>) -> CertificateParams {
    let time = |at_s| ASN1Time::from_timestamp(at_s).expect("a year below 9999").to_datetime();
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) = (time(from_s), time(until_s));
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params
}

fn init(arguments: &InitArguments) -> Result<PathBuf, Failure> {
    let InitArguments { folder, name, days, .. } = arguments;
    files::make_folder(folder)?;
    let pair = Pair::new(&folder.join("root"));
    if let Some(existing) = pair.existing()? {
        return Err(Failure::new(format!(
            "{} exists, and is never overwritten: issue certificates with `trunkctl keys issue {}`, or make an \
             authority in another folder",
            existing.display(),
            folder.display()
        )));
    }
    let key = generate()?;
    let now_s = ASN1Time::now().timestamp();
    // The first byte is the format of the point.
    let number = show::hex(&key.public_key_raw()[1..5], "");
    let name = name.clone().unwrap_or_else(|| format!("Trunkline root {number}"));
    let mut params = params(now_s - EARLY_S, now_s + i64::from(*days) * DAY_S, Some(name));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let root = params.self_signed(&key).map_err(Failure::new)?;
    pair.write(&root.pem(), &key.serialize_pem(), false)?;
    Ok(pair.certificate)
}

fn issue(arguments: &IssueArguments) -> Result<PathBuf, Failure> {
    let IssueArguments { folder, names, days, out, replace, .. } = arguments;
    let root = Pair::new(&folder.join("root"));
    let prefix = out.clone().unwrap_or_else(|| folder.join(file_name(&names[0])));
    let pair = Pair::new(&prefix);
    let mut unique = Vec::new();
    for name in names {
        if !unique.contains(name) {
            unique.push(name.clone());
        }
    }
    let mut names = unique;
    sort(&mut names);
    if let [Name::Spiffe(first), Name::Spiffe(second), ..] = &*names {
        return Err(Failure::unusable(format!(
            "two SPIFFE URIs, {first} and {second}: expected at most one, because peers accept no name of a certificate \
             with two; issue a certificate for each"
        )));
    }
    check_replaced(&pair, *replace, &names[0])?;

    if root.existing()?.is_none() {
        let (path, folder) = (root.certificate.display(), folder.display());
        return Err(Failure::unusable(format!(
            "{path} does not exist: run `trunkctl keys init {folder}` first"
        )));
    }
    files::check_owner(folder)?;
    let (root_pem, root_key) = (root.read_certificate()?, root.read_key()?);
    let unusable = |error: &dyn fmt::Display| {
        let path = root.certificate.display();
        Failure::new(format!(
            "{path} with its key is no authority: {error}; make one with `trunkctl keys init`"
        ))
    };
    let first = Pem::iter_from_buffer(&root_pem).next().ok_or_else(|| unusable(&"no PEM"))?;
    let first = first.map_err(|error| unusable(&error))?;
    let parsed = first.parse_x509().map_err(|error| unusable(&error))?;
    if !parsed.is_ca() || !show::matches(&root_pem, &root_key).map_err(|error| unusable(&error))? {
        return Err(unusable(&"expected a certificate of an authority first, and its key"));
    }
    let root_key =
        KeyPair::from_pem(&String::from_utf8_lossy(&root_key)).map_err(|error| unusable(&error))?;
    let issuer = Issuer::from_ca_cert_der(&CertificateDer::from(&*first.contents), root_key)
        .map_err(|error| unusable(&error))?;

    let (from, until) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    let now_s = ASN1Time::now().timestamp();
    if !(from..until).contains(&now_s) {
        return Err(unusable(&"it is not valid now"));
    }
    let wanted_until = now_s + i64::from(*days) * DAY_S;
    if wanted_until > until {
        warn(format_args!(
            "the certificate ends with {}, in {} days: make a new authority before, and let nodes trust both",
            root.certificate.display(),
            (until - now_s) / DAY_S
        ));
    }
    let common_name = names.iter().map(ToString::to_string).find(|name| name.len() <= LONGEST_COMMON_NAME);
    let mut params = params(from.max(now_s - EARLY_S), until.min(wanted_until), common_name);
    params.subject_alt_names = names.iter().map(alternative_name).collect();
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = generate()?;
    let certificate = params.signed_by(&key, &issuer).map_err(Failure::new)?;
    let (pem, key_pem) = (certificate.pem(), key.serialize_pem());
    check(&pem, &key_pem, &root_pem, certificate.der(), &names)
        .map_err(|error| Failure::new(format!("peers would refuse the certificate: {error}")))?;
    pair.write(&pem, &key_pem, *replace)?;
    Identity::from_pem(&pair.read_certificate()?, &pair.read_key()?)
        .map_err(|error| Failure::new(format!("{} and its key: {error}", pair.certificate.display())))?;
    Ok(pair.certificate)
}

/// Verifies a certificate in the same way as peers do.
fn check(
    pem: &str,
    key: &str,
    root: &[u8],
    certificate: &CertificateDer<'static>,
    names: &[Name],
) -> Result<(), String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let identity = Identity::from_pem(pem.as_bytes(), key.as_bytes()).map_err(|error| text(&error))?;
    let trust = Trust::from_pem(root).map_err(|error| text(&error))?;
    let provider = rustls::crypto::ring::default_provider();
    let credentials = Credentials::new(&identity, &trust, provider, Arc::new(DefaultTimeProvider));
    let verifier = credentials.map_err(|error| text(&error))?.verifier;
    let proven = verifier.check(std::slice::from_ref(certificate), UnixTime::now());
    let proven = proven.map_err(|error| text(&error))?;
    match names.iter().find(|name| !proven.names().contains(name)) {
        None => Ok(()),
        Some(name) => Err(format!("unusable name {name}")),
    }
}

/// Rejects existing files without `--replace`. With it, rejects files of an authority or of another principal.
fn check_replaced(pair: &Pair, replace: bool, principal: &Name) -> Result<(), Failure> {
    let Some(existing) = pair.existing()? else { return Ok(()) };
    let existing = existing.display();
    if !replace {
        return Err(Failure::new(format!(
            "{existing} exists: renew it with --replace, or choose other files with --out"
        )));
    }
    let certificate = pair.certificate.display();
    let elsewhere = "choose other files with --out, or remove these first";
    let old = pair
        .read_certificate()
        .map_err(|Failure { status, text }| Failure { status, text: format!("{text}; {elsewhere}") })?;
    match show::principal(&old) {
        Ok(old) if old.as_ref() == Some(principal) => Ok(()),
        Ok(Some(old)) => Err(Failure::new(format!(
            "{certificate} is of {old}, not of {principal}: peers refuse a renewal with another name; {elsewhere}"
        ))),
        Ok(None) => Err(Failure::new(format!("{certificate} is not of a node: {elsewhere}"))),
        Err(error) => Err(Failure::new(format!("{certificate}: {error}; {elsewhere}"))),
    }
}

fn alternative_name(name: &Name) -> SanType {
    let text = |text: &str| Ia5String::try_from(text).expect("checked names are ASCII");
    match name {
        Name::Spiffe(uri) => SanType::URI(text(uri)),
        Name::Dns(name) => SanType::DnsName(text(name)),
        Name::Ip(address) => SanType::IpAddress(*address),
    }
}

/// Converts a name to a file name. Characters other than ASCII letters, digits, `.`, `-` and `_` become `_`.
fn file_name(name: &Name) -> PathBuf {
    let text = name.to_string();
    let text = text.strip_prefix("spiffe://").unwrap_or(&text);
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    Path::new(&text.replace(|letter| !is_plain(letter), "_")).to_owned()
}
