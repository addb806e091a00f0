//! Targets of channels.

#[cfg(feature = "identity")]
use super::names::Expectation;
use super::resolve::{Dns, Resolve};
use crate::status::cut;
use std::collections::BTreeSet;
use std::fmt;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_transport::PeerKey;
#[cfg(feature = "identity")]
use trunkline_transport::identity::{InvalidName, Name};
use trunkline_verbs::VerbsError;

/// The target of a [`Channel`](crate::Channel), which is an address, several addresses, a name or a resolver.
///
/// A server is specified by its IP address or host name, its port, and the UDP port of its software device if that differs
/// from this node's. Examples are `10.0.0.1:7000`, `[fd00::1]:7000/4792` and `shop.example:7000/4792`. A server with an RDMA
/// card has no UDP port.
///
/// ```
/// use std::net::SocketAddr;
/// use trunkline::Target;
///
/// let one = Target::from(SocketAddr::from(([10, 0, 0, 1], 7000)));
/// let first_that_answers = Target::from(["10.0.0.1:7000", "10.0.0.2:7000"].map(|text| text.parse::<SocketAddr>().unwrap()));
/// let name = Target::from("shop.example:7000");
/// println!("{one}, {first_that_answers}, {name}");
/// ```
#[derive(Debug, Clone)]
pub struct Target {
    pub(super) source: Source,
    #[cfg(feature = "identity")]
    pub(super) expectation: Expectation,
}

/// The source of a target's addresses.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Address(PeerKey),
    Addresses(Usable),
    /// A resolver and its name. The name is stored so that the resolver's code runs only for lookups.
    Resolver(Arc<dyn Resolve>, Arc<str>),
    /// An invalid target, with the cause.
    Nonsense(String),
}

/// The usable addresses of a target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Usable {
    /// The first [`MOST_ADDRESSES`], without duplicates.
    pub(super) addresses: Vec<PeerKey>,
    /// Number of unused addresses beyond the maximum, without duplicates.
    pub(super) omitted: usize,
}

/// Maximum number of addresses of a target.
pub(super) const MOST_ADDRESSES: usize = 1024;
/// Maximum length of a resolver's name in a status.
const MOST_NAME_BYTES: usize = 256;

impl Target {
    fn of(source: Source) -> Self {
        Self {
            source,
            #[cfg(feature = "identity")]
            expectation: Expectation::default(),
        }
    }

    /// Creates a target from a resolver, which is called before each attempt to connect.
    pub fn resolver(resolver: impl Resolve) -> Self {
        let name = resolver.name();
        Self::of(Source::Resolver(Arc::new(resolver), cut(&name, MOST_NAME_BYTES).into()))
    }

    /// Sets the name that every server of the target must prove. The name can be a DNS name, a SPIFFE URI or an IP address.
    /// Without this, servers found through a host name must prove the host name, and other servers must prove their IP
    /// address.
    ///
    /// A node without an identity does not compare names, and its calls to such a target fail with `Unauthenticated`. Calls
    /// to a target with an invalid name fail with `InvalidArgument`.
    ///
    /// ```
    /// use trunkline::Target;
    ///
    /// let by_dns_name = Target::from("10.0.0.1:7000").named("shop.example");
    /// let by_uri = Target::from("shop.example:7000").named("spiffe://prod/shop");
    /// # let _ = (by_dns_name, by_uri);
    /// ```
    #[cfg(feature = "identity")]
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        match name.parse() {
            Ok(name) => Self { expectation: Expectation::Named(name), ..self },
            Err(error) => Self::of(Source::Nonsense(InvalidName::to_string(&error))),
        }
    }

    /// Returns the target at this address with the proved name of a peer.
    #[cfg(feature = "identity")]
    pub(crate) fn of_peer(address: PeerKey, name: Option<&Name>) -> Self {
        Self { expectation: Expectation::of_peer(name), ..Self::from(address) }
    }

    /// Returns the target for a node whose device has this UDP port. The port is removed from addresses that specify it.
    pub(super) fn seen_from(mut self, own_udp_port: u16) -> Self {
        match &mut self.source {
            Source::Address(address) => *address = address.seen_from(own_udp_port),
            Source::Addresses(all) => {
                let omitted = all.omitted;
                *all = usable(mem::take(&mut all.addresses), own_udp_port);
                all.omitted = omitted;
            }
            Source::Resolver(..) | Source::Nonsense(_) => {}
        }
        self
    }

    /// Returns the target if it is valid.
    ///
    /// # Errors
    /// Returns the reason if a server cannot listen at the target.
    pub(crate) fn checked(self) -> Result<Self, String> {
        match self.source {
            Source::Nonsense(why) => Err(why),
            _ => Ok(self),
        }
    }

    /// Returns the target with only this address.
    pub(super) fn at(&self, address: PeerKey) -> Self {
        Self { source: Self::from(address).source, ..self.clone() }
    }

    /// Returns the address, if the target is a single address.
    pub(crate) fn address(&self) -> Option<PeerKey> {
        match &self.source {
            Source::Address(address) => Some(*address),
            _ => None,
        }
    }

    /// Returns true if the target may have several addresses.
    pub(super) fn has_several(&self) -> bool {
        matches!(self.source, Source::Addresses(_) | Source::Resolver(..))
    }

    fn of_name(host: &str, port: u16, udp_port: Option<u16>) -> Self {
        match host.parse::<IpAddr>() {
            Ok(ip) => PeerKey::new(SocketAddr::new(ip, port)).with_udp_port(udp_port).into(),
            Err(_) => Self {
                #[cfg(feature = "identity")]
                expectation: Expectation::of_host(host),
                ..Self::resolver(Dns::new(host, port).udp_port(udp_port))
            },
        }
    }
}

/// Returns the reason if a server cannot have this address.
fn misuse(address: PeerKey) -> Option<String> {
    let ip = address.host();
    // Servers do not listen on port 0, which requests a free port.
    if address.address().port() == 0 {
        let text = "has no port; use the one that its node reports as its local address";
        return Some(format!("the server's address {address} {text}"));
    }
    if let Some(why) = scoped(address) {
        return Some(why);
    }
    let kind = match ip {
        _ if ip.is_unspecified() => "means all addresses of a host, and a node can only listen there",
        _ if ip.is_multicast() => "is a multicast address, at which there are no servers",
        IpAddr::V4(ip) if ip.is_broadcast() => "is the broadcast address, at which there are no servers",
        _ => return None,
    };
    let remedy = "use one that its node reports as its local address, or that of its host";
    Some(format!("the server's address {address} {kind}; {remedy}"))
}

/// Returns the reason if an address cannot be used without an interface.
pub(super) fn scoped(address: PeerKey) -> Option<String> {
    let refused = VerbsError::check_scope(address.host()).err();
    refused.map(|why| format!("the server's address {address}: {why}"))
}

/// Returns the usable addresses in `given`, for a node whose device has this UDP port.
pub(super) fn usable(given: impl IntoIterator<Item = PeerKey>, own_udp_port: u16) -> Usable {
    let (mut usable, mut known) = (Usable::default(), BTreeSet::new());
    for address in given.into_iter().map(|address| address.seen_from(own_udp_port)) {
        if misuse(address).is_some() || !known.insert(address) {
            continue;
        }
        if usable.addresses.len() < MOST_ADDRESSES {
            usable.addresses.push(address);
        } else {
            usable.omitted += 1;
        }
    }
    usable
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        PeerKey::new(address).into()
    }
}

impl From<PeerKey> for Target {
    fn from(address: PeerKey) -> Self {
        Self::of(misuse(address).map_or(Source::Address(address), Source::Nonsense))
    }
}

/// Connects to the first address at which a session comes up. An attempt tries at most 16 addresses, and the next attempt
/// continues with the following ones. A [balanced channel](crate::Channel::balanced) uses all addresses. Addresses after the
/// first 1,024 different ones are ignored, with a warning in the log.
impl<A: Into<PeerKey>> From<Vec<A>> for Target {
    fn from(addresses: Vec<A>) -> Self {
        let addresses = addresses.into_iter().map(Into::into).collect::<Vec<_>>();
        let first = addresses.first().copied().and_then(misuse);
        // The UDP port of the node is not known yet; see `Self::seen_from`.
        let usable = usable(addresses, 0);
        match usable.addresses[..] {
            [] => Self::of(Source::Nonsense(first.unwrap_or_else(|| "there is no address".to_owned()))),
            [one] => one.into(),
            _ => Self::of(Source::Addresses(usable)),
        }
    }
}

impl<A: Into<PeerKey> + Clone> From<&[A]> for Target {
    fn from(addresses: &[A]) -> Self {
        addresses.to_vec().into()
    }
}

impl<A: Into<PeerKey>, const N: usize> From<[A; N]> for Target {
    fn from(addresses: [A; N]) -> Self {
        Vec::from(addresses).into()
    }
}

/// Converts a host and a port. The host is an IP address or a name.
impl From<(&str, u16)> for Target {
    fn from((host, port): (&str, u16)) -> Self {
        Self::of_name(host, port, None)
    }
}

/// Parses `IP:PORT` or `HOST:PORT`, followed by `/UDP_PORT` if the UDP port of the server's software device differs from
/// this node's. Calls to any other text fail with `InvalidArgument`.
impl From<&str> for Target {
    fn from(text: &str) -> Self {
        let (server, udp_port) = match PeerKey::split_udp_port(text) {
            Ok(parts) => parts,
            Err(_) if text.contains("://") => (text, None),
            Err(why) => return Self::of(Source::Nonsense(why.to_string())),
        };
        if let Ok(address) = server.parse::<SocketAddr>() {
            return PeerKey::new(address).with_udp_port(udp_port).into();
        }
        let parts = server.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains(':'));
        match parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
            Some((host, port)) => Self::of_name(host, port, udp_port),
            None => Self::of(Source::Nonsense(format!(
                "invalid target {text:?}: expected IP:PORT or HOST:PORT, or either with /UDP_PORT"
            ))),
        }
    }
}

impl From<String> for Target {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for Target {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Address(address) => address.fmt(f),
            Source::Addresses(usable) => match &usable.addresses[..] {
                [first, rest @ ..] => write!(f, "{first} or {} more", rest.len()),
                [] => f.write_str("no address"),
            },
            Source::Resolver(_, name) => f.write_str(name),
            Source::Nonsense(_) => f.write_str("an unusable address"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_distinguished_from_names() {
        let is_address = |text: &str| Target::from(text).address().is_some();
        assert!(is_address("10.0.0.1:7") && is_address("[::1]:7"));
        assert!(Target::from(("10.0.0.1", 7)).address().is_some());
        assert!(Target::from(("::1", 7)).address().is_some());
        assert_eq!(Target::from("shop.example:7").to_string(), "shop.example:7");
        assert!(matches!(Target::from("shop.example:7").source, Source::Resolver(..)));
        for text in ["", "shop", "shop:", ":7", "shop:70000", "::1:7"] {
            assert!(matches!(Target::from(text).source, Source::Nonsense(_)), "{text}");
        }
    }

    #[test]
    fn udp_port_follows_address_or_name() {
        for text in ["10.0.0.1:7/4792", "[fd00::1]:7/4792"] {
            assert_eq!(
                Target::from(text).address().map(|address| address.to_string()),
                Some(text.to_owned())
            );
        }
        let name = Target::from("shop.example:7/4792");
        assert_eq!(name.to_string(), "shop.example:7/4792");
        let Source::Resolver(resolver, _) = &Target::from("localhost:7/4792").source else {
            panic!("an address")
        };
        let found = crate::block_on(resolver.resolve()).unwrap();
        assert!(found.iter().all(|address| address.udp_port() == Some(4792)), "{found:?}");
        for text in
            ["10.0.0.1:7/0", "10.0.0.1:7/70000", "10.0.0.1:7/abc", "shop.example:7/", "shop.example:7/1/2"]
        {
            let Err(why) = Target::from(text).checked() else { panic!("{text} is taken") };
            assert!(why.contains(text) && why.contains("from 1 to 65535"), "{why}");
        }
        for text in ["http://10.0.0.1:7", "10.0.0.1/4792", "shop.example/4792"] {
            let Err(why) = Target::from(text).checked() else { panic!("{text} is taken") };
            assert!(why.contains(text) && why.contains("IP:PORT or HOST:PORT"), "{why}");
        }
    }

    #[test]
    fn udp_port_equal_to_own_is_omitted_from_name() {
        let [usual, other] = ["10.0.0.1:7", "10.0.0.1:7/4792"].map(|text| text.parse::<PeerKey>().unwrap());
        let seen = |own| Target::from([usual, other]).seen_from(own);
        assert!(matches!(seen(4791).source, Source::Addresses(all) if all.addresses == [usual, other]));
        assert!(matches!(seen(4792).source, Source::Addresses(all) if all.addresses == [usual]));
        assert_eq!(Target::from(other).seen_from(4791).address(), Some(other));
        assert_eq!(Target::from(other).seen_from(4792).address(), Some(usual));
    }

    #[test]
    fn distinct_valid_addresses_are_used_up_to_maximum() {
        let address = |port| PeerKey::new(([10, 0, 0, 1], port).into());
        let many = (0..100_000_u32).map(|at| address(u16::try_from(at % 2000).unwrap_or(0)));
        let Usable { addresses, omitted } = usable(many, 4791);
        assert_eq!((addresses.len(), omitted), (MOST_ADDRESSES, 1999 - MOST_ADDRESSES));
        assert_eq!((addresses[0], addresses[1]), (address(1), address(2)));
        assert_eq!(Target::from(vec![address(3), address(3), address(0)]).address(), Some(address(3)));
        assert!(matches!(Target::from(Vec::<PeerKey>::new()).source, Source::Nonsense(_)));
        let mapped: PeerKey = "[::ffff:10.0.0.1]:3".parse().unwrap();
        assert_eq!(Target::from(vec![address(3), mapped]).address(), Some(address(3)));
        assert_eq!(Target::from(mapped).address(), Some(address(3)));
        let nowhere = ["0.0.0.0:7", "224.0.0.1:7"].map(|text| text.parse::<PeerKey>().unwrap());
        assert!(matches!(Target::from(nowhere).source, Source::Nonsense(why) if why.contains("0.0.0.0:7")));
        assert_eq!(Target::from(vec![address(3), address(4)]).to_string(), "10.0.0.1:3 or 1 more");
    }
}
