//! Names in certificates, and the names that channels expect of their peers.
//!
//! Channels compare names on pollers, where webpki must not run, and webpki does not list IP addresses. The alternative
//! names of a verified certificate are therefore read from its DER once, and compared as values. This parser refuses
//! the encodings that webpki refuses. After an error, a certificate has no names.

use rustls::pki_types::{CertificateDer, DnsName, UnixTime};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use webpki::EndEntityCert;

/// Longest SPIFFE URI, in bytes (SPIFFE-ID §2.3).
const LONGEST_SPIFFE: usize = 2048;

/// Name of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Name {
    /// SPIFFE URI, compared as a whole.
    Spiffe(Box<str>),
    /// DNS name in lower case. In a certificate, the first label may be `*`.
    Dns(Box<str>),
    /// IP address.
    Ip(IpAddr),
}

impl Name {
    fn spiffe(uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix("spiffe://")?.split('/');
        let domain = parts.next()?;
        let is_mark = |byte: u8| matches!(byte, b'.' | b'-' | b'_');
        let is_valid = uri.len() <= LONGEST_SPIFFE
            && !domain.is_empty()
            && domain.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || is_mark(byte))
            && parts.all(|part| {
                !matches!(part, "" | "." | "..")
                    && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
            });
        is_valid.then(|| Self::Spiffe(uri.into()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spiffe(name) | Self::Dns(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

/// Names that a peer has proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// SPIFFE URI, DNS names, IP addresses, in this order; at least one.
    names: Box<[Name]>,
    not_after: UnixTime,
    certificates: Arc<Vec<CertificateDer<'static>>>,
}

impl Proven {
    /// Creates the value with a copy of the chain.
    pub(super) fn new(names: Vec<Name>, not_after: UnixTime, chain: &[CertificateDer<'_>]) -> Self {
        let certificates = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        Self { names: names.into(), not_after, certificates: Arc::new(certificates) }
    }

    /// Returns the name that identifies the peer in sessions and policies: the SPIFFE URI, otherwise the first DNS
    /// name, otherwise the first IP address.
    pub fn principal(&self) -> &Name {
        &self.names[0]
    }

    /// Returns all names, beginning with the principal.
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Returns the earliest expiry in the chain, without the root.
    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    /// Returns the certificates that the peer sent, beginning with its own. Certificates outside the path from the
    /// first one to a root are not verified.
    pub fn certificates(&self) -> &Arc<Vec<CertificateDer<'static>>> {
        &self.certificates
    }
}

/// Name that a channel expects of its peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected(Name);

impl Expected {
    /// Returns true if the peer has proved this name. A wildcard in the peer's certificate matches one label.
    pub fn matches(&self, proven: &Proven) -> bool {
        proven.names.iter().any(|name| match (&self.0, name) {
            (Name::Dns(expected), Name::Dns(pattern)) => {
                expected == pattern
                    || pattern.strip_prefix("*.").is_some_and(|parent| {
                        expected.split_once('.').is_some_and(|(_, rest)| rest == parent)
                    })
            }
            (expected, name) => expected == name,
        })
    }
}

/// A wildcard in the name is compared literally.
impl From<Name> for Expected {
    fn from(name: Name) -> Self {
        Self(name)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<IpAddr> for Expected {
    fn from(address: IpAddr) -> Self {
        Self(Name::Ip(address))
    }
}

impl FromStr for Expected {
    type Err = InvalidName;

    /// Parses a SPIFFE URI, an IP address or a DNS name. A final dot of a DNS name is dropped.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidName`] if the text is not such a name, or contains a wildcard.
    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let parsed = if is_spiffe(name.as_bytes()) {
            Name::spiffe(name)
        } else if let Ok(address) = name.parse() {
            Some(Name::Ip(address))
        } else {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            DnsName::try_from(&*name).is_ok().then(|| Name::Dns(name.into()))
        };
        parsed.map(Self).ok_or_else(|| InvalidName(name.into()))
    }
}

/// Error for a text that is not a valid node name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid name \"{0}\": expected a DNS name without wildcard, an IP address, or spiffe://, a domain in lower case and a path"
)]
pub struct InvalidName(Box<str>);

fn is_spiffe(uri: &[u8]) -> bool {
    uri.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"spiffe:"))
}

/// Maximum number of names in a certificate, which limits the memory of a live session.
const MOST_NAMES: usize = 256;

/// Returns the names in the order of [`Proven::names`]. Returns `None` if there are no names or too many, or if the
/// extension is ambiguous or malformed. The certificate must have been verified.
pub(super) fn names(certificate: &EndEntityCert<'_>) -> Option<Vec<Name>> {
    let der = certificate.der();
    let mut general_names = alternative_names(&der)?;
    let (mut names, mut addresses, mut uris) = (Vec::new(), Vec::new(), 0);
    while !general_names.0.is_empty() {
        let (tag, value) = general_names.next()?;
        match tag {
            URI => {
                uris += 1;
                if is_spiffe(value) {
                    names.push(Name::spiffe(str::from_utf8(value).ok()?)?);
                }
            }
            IP_ADDRESS => {
                if let Ok(v4) = <[u8; 4]>::try_from(value) {
                    addresses.push(Name::Ip(v4.into()));
                } else if let Ok(v6) = <[u8; 16]>::try_from(value) {
                    addresses.push(Name::Ip(v6.into()));
                }
            }
            OTHER_NAME | RFC822_NAME | DNS_NAME | X400_ADDRESS..=EDI_PARTY_NAME | REGISTERED_ID => {}
            _ => return None,
        }
    }
    if uris > 1 && !names.is_empty() {
        return None;
    }
    names.extend(certificate.valid_dns_names().map(|name| Name::Dns(name.to_ascii_lowercase().into())));
    names.append(&mut addresses);
    (1..=MOST_NAMES).contains(&names.len()).then_some(names)
}

// Tags of X.690 §8 and of RFC 5280 §4.1 and §4.2.1.6.
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const OTHER_NAME: u8 = 0xa0;
const RFC822_NAME: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const X400_ADDRESS: u8 = 0xa3;
const EDI_PARTY_NAME: u8 = 0xa5;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;
const REGISTERED_ID: u8 = 0x88;
/// 2.5.29.17, subjectAltName.
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// Finds the general names of a certificate. Returns `None` if the extension is missing.
fn alternative_names(certificate: &[u8]) -> Option<Der<'_>> {
    let mut fields = Der(certificate).nested(SEQUENCE)?.nested(SEQUENCE)?;
    fields.value(VERSION)?;
    fields.value(INTEGER)?;
    // Skip signature algorithm, issuer, validity, subject and public key.
    for _ in 0..5 {
        fields.value(SEQUENCE)?;
    }
    let mut extensions = fields.nested(EXTENSIONS)?.nested(SEQUENCE)?;
    loop {
        let mut extension = extensions.nested(SEQUENCE)?;
        let id = extension.value(OBJECT_IDENTIFIER)?;
        let _critical = extension.value(BOOLEAN);
        if id == SUBJECT_ALT_NAME {
            return extension.nested(OCTET_STRING)?.nested(SEQUENCE);
        }
    }
}

/// Reader of DER with tags of one byte and values below 64 KiB.
#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (least, length, rest) = match first {
            0..=0x7f => (0, usize::from(first), rest),
            0x81 => {
                let (&[length], rest) = rest.split_first_chunk()?;
                (0x80, usize::from(length), rest)
            }
            0x82 => {
                let (&length, rest) = rest.split_first_chunk()?;
                (0x100, usize::from(u16::from_be_bytes(length)), rest)
            }
            _ => return None,
        };
        if length < least {
            return None;
        }
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// Returns the next value if it has this tag, and leaves it otherwise.
    fn value(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut rest = *self;
        let (found, value) = rest.next()?;
        if found != tag {
            return None;
        }
        *self = rest;
        Some(value)
    }

    fn nested(&mut self, tag: u8) -> Option<Self> {
        self.value(tag).map(Self)
    }
}
