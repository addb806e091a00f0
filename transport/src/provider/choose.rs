//! Choice of a node's device, as a pure function of the devices and the node's requirements.
//!
//! | requested | a NIC is usable | all NICs are unusable |
//! |---|---|---|
//! | `auto` | that NIC | the software device, with the reason |
//! | `require` | that NIC | an error, with the reason |
//! | `soft` | the software device | the software device |
//!
//! A NIC is usable if one of its ports is active and it has every address that the node listens on. A wildcard stands
//! for all RoCE v2 addresses of the NIC, or for the first one if the port is 0. A client requests no address. If other
//! hosts may reach it, it takes the first RoCE v2 address that they can reach, IPv4 before IPv6. Otherwise it takes a
//! loopback address, which a NIC does not have. Link-local GIDs are never used, because both ends would have to agree
//! on interfaces.
#![forbid(unsafe_code)]

use crate::NoNic;
use crate::node::options::ProviderChoice;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use trunkline_verbs::{GidEntry, GidKind, PortState};

/// Requirements of the node.
#[derive(Debug, Clone)]
pub(super) struct Wish<'a> {
    pub(super) choice: ProviderChoice,
    /// Name of the NIC.
    pub(super) device: Option<&'a str>,
    /// Index of the GID to use.
    pub(super) gid_index: Option<u16>,
    /// Addresses to listen on; empty for a client.
    pub(super) listen: &'a [SocketAddr],
    /// Address on which a client listens for the dial-back, if a device has that address.
    pub(super) client: ClientAddress,
    pub(super) may_leave_host: bool,
    /// Requested feature that only the software device has.
    pub(super) software_only: Option<&'static str>,
}

/// Address of a node that does not listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAddress {
    /// Address named by the options of the device.
    Named(IpAddr),
    /// Random loopback address, unlikely to be in use by another process.
    Drawn(IpAddr),
}

impl ClientAddress {
    pub(super) fn ip(self) -> IpAddr {
        match self {
            Self::Named(ip) | Self::Drawn(ip) => ip,
        }
    }
}

/// A NIC as found by the survey.
#[derive(Debug, Clone)]
pub(super) struct Nic {
    pub(super) name: String,
    /// State of an opened NIC, or the reason why it could not be opened.
    pub(super) state: Result<NicState, String>,
}

/// An opened NIC.
#[derive(Debug, Clone, Default)]
pub(super) struct NicState {
    pub(super) ports: Vec<PortState>,
    pub(super) gids: Vec<GidEntry>,
    /// Requested addresses that connections can use as their source, according to the connection manager.
    pub(super) holds: Vec<IpAddr>,
}

/// Outcome of the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// A NIC.
    Nic(NicChoice),
    /// The software device, with the reason.
    Software(String),
    /// The reason why the node does not start.
    Nothing(NoNic),
}

/// A usable NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NicChoice {
    pub(super) device: String,
    /// Addresses to listen on, with ports as requested.
    pub(super) listen: Vec<SocketAddr>,
    pub(super) why: String,
}

/// Chooses the device. Calls `survey` only if the choice depends on NICs.
pub(super) fn choose(wish: &Wish<'_>, survey: impl FnOnce() -> Result<Vec<Nic>, NoNic>) -> Choice {
    if wish.choice == ProviderChoice::Soft {
        return Choice::Software("softrdma: asked for".to_owned());
    }
    if let (ProviderChoice::Auto, Some(what)) = (wish.choice, wish.software_only) {
        return Choice::Software(format!("softrdma: {what}, which only the software device does"));
    }
    match survey().and_then(|nics| nic(wish, &nics)) {
        Ok(nic) => Choice::Nic(nic),
        Err(reason) if wish.choice == ProviderChoice::Require => Choice::Nothing(reason),
        Err(reason) => Choice::Software(format!("softrdma: {reason}")),
    }
}

/// Returns the first usable NIC, or the reason why the NIC closest to being usable is not.
fn nic(wish: &Wish<'_>, nics: &[Nic]) -> Result<NicChoice, NoNic> {
    if nics.is_empty() {
        return Err(NoNic::NoDevice);
    }
    let named: Vec<&Nic> =
        nics.iter().filter(|nic| wish.device.is_none_or(|device| device == nic.name)).collect();
    if named.is_empty() {
        let there = nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(NoNic::NotNamed { name: wish.device.unwrap_or_default().to_owned(), there });
    }
    if let Some(local) = wish.listen.iter().find(|address| is_link_local(address.ip())) {
        return Err(NoNic::LinkLocal(local.ip()));
    }
    let mut nearest: Option<NoNic> = None;
    for nic in &named {
        match serve(wish, nic, &named) {
            Ok(choice) => return Ok(choice),
            Err(reason) => {
                if nearest.as_ref().is_none_or(|other| reason.nearness() > other.nearness()) {
                    nearest = Some(reason);
                }
            }
        }
    }
    let each_has_one = |address: &SocketAddr| {
        named.iter().any(|nic| nic.state.as_ref().is_ok_and(|state| state.has(address.ip())))
    };
    if wish.listen.len() > 1 && named.len() > 1 && wish.listen.iter().all(each_has_one) {
        return Err(NoNic::Scattered { there: addresses_of(&named) });
    }
    Err(nearest.unwrap_or(NoNic::NoDevice))
}

/// Returns the choice of this NIC, or the reason why it is unusable.
fn serve(wish: &Wish<'_>, nic: &Nic, all: &[&Nic]) -> Result<NicChoice, NoNic> {
    let device = nic.name.clone();
    let state = nic
        .state
        .as_ref()
        .map_err(|cause| NoNic::CannotOpen { device: device.clone(), cause: cause.clone() })?;
    if !state.ports.contains(&PortState::Active) {
        return Err(NoNic::NoActivePort(device));
    }
    let usable = state.usable(&device, wish.gid_index)?;
    let have = |address: IpAddr| {
        let by_gid = usable.iter().any(|entry| entry.gid.ip() == address.to_canonical());
        if by_gid || (wish.gid_index.is_none() && state.holds.contains(&address)) {
            return Ok(address);
        }
        match wish.gid_index.filter(|_| state.has(address)) {
            Some(index) => Err(state.bad_gid(
                &device,
                index,
                format!("is not that of {address}, where the node is to listen"),
            )),
            None => Err(NoNic::NoSuchAddress { address, there: addresses_of(all) }),
        }
    };
    let mut listen = Vec::new();
    for address in wish.listen {
        if address.ip().is_unspecified() {
            let mut wanted: Vec<IpAddr> = usable.iter().map(|entry| entry.gid.ip()).collect();
            wanted.retain(|ip| address.is_ipv6() || ip.is_ipv4());
            if address.port() == 0 {
                // Each address would get a separate port, but peers are told only the first port.
                wanted.truncate(1);
            }
            listen.extend(wanted.iter().map(|ip| SocketAddr::new(*ip, address.port())));
            if wanted.is_empty() {
                return Err(NoNic::NoSuchAddress { address: address.ip(), there: addresses_of(all) });
            }
        } else {
            listen.push(SocketAddr::new(have(address.ip())?, address.port()));
        }
    }
    let why = if wish.listen.is_empty() {
        let (ip, why) = match wish.client {
            ClientAddress::Named(ip) => (have(ip)?, "has the address"),
            ClientAddress::Drawn(ip) => client(wish, &device, state, &usable, ip)?,
        };
        listen.push(SocketAddr::new(ip, 0));
        format!("rdma-core: {device} {why} {ip}")
    } else {
        listen.dedup();
        let addresses = listen.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ");
        format!("rdma-core: {device} has {addresses}")
    };
    Ok(NicChoice { device, listen, why })
}

/// Returns the address of a client at this NIC, and the reason for it.
fn client(
    wish: &Wish<'_>,
    device: &str,
    state: &NicState,
    usable: &[GidEntry],
    drawn: IpAddr,
) -> Result<(IpAddr, &'static str), NoNic> {
    let mut ips: Vec<IpAddr> = usable.iter().map(|entry| entry.gid.ip()).collect();
    // The sort is stable, so addresses of one family keep the order of the table.
    ips.sort_by_key(IpAddr::is_ipv6);
    let loopback = ips.iter().copied().find(IpAddr::is_loopback);
    let routable = ips.iter().copied().find(|ip| !ip.is_loopback());
    match (routable, loopback) {
        (Some(ip), _) if wish.may_leave_host => Ok((ip, "has for a client the address")),
        _ if wish.gid_index.is_none() && state.holds.contains(&drawn) => {
            Ok((drawn, "serves loopback addresses, for a client"))
        }
        (_, Some(ip)) => Ok((ip, "has for a client the loopback address")),
        (Some(address), None) => Err(NoNic::NotLoopback { device: device.to_owned(), address }),
        (None, None) => Err(NoNic::NoRoceV2(device.to_owned())),
    }
}

impl NicState {
    /// Returns the RoCE v2 GIDs that are not link-local, or the one with this index if it is among them.
    fn usable(&self, device: &str, index: Option<u16>) -> Result<Vec<GidEntry>, NoNic> {
        let usable: Vec<GidEntry> = self.gids.iter().copied().filter(is_usable).collect();
        if let Some(index) = index {
            let what = match self.gids.iter().find(|entry| entry.index == index) {
                Some(entry) if is_usable(entry) => return Ok(vec![*entry]),
                Some(entry) if entry.kind != GidKind::RoceV2 => "is not one of RoCE v2",
                Some(_) => "is link-local",
                None => "is not used",
            };
            return Err(self.bad_gid(device, index, what.to_owned()));
        }
        if !usable.is_empty() || !self.holds.is_empty() {
            return Ok(usable);
        }
        let is_v2 = self.gids.iter().any(|entry| entry.kind == GidKind::RoceV2);
        Err(if is_v2 { NoNic::OnlyLinkLocal(device.to_owned()) } else { NoNic::NoRoceV2(device.to_owned()) })
    }

    fn bad_gid(&self, device: &str, index: u16, what: String) -> NoNic {
        let usable = self.gids.iter().filter(|entry| is_usable(entry));
        let usable = usable.map(|entry| format!("{} ({})", entry.index, entry.gid.ip())).collect::<Vec<_>>();
        let usable = if usable.is_empty() { "none".to_owned() } else { usable.join(", ") };
        NoNic::BadGid { device: device.to_owned(), index, what, usable }
    }

    fn has(&self, address: IpAddr) -> bool {
        let canonical = address.to_canonical();
        self.holds.contains(&address)
            || self.gids.iter().any(|entry| is_usable(entry) && entry.gid.ip() == canonical)
    }
}

fn is_usable(entry: &GidEntry) -> bool {
    let ip = entry.gid.ip();
    entry.kind == GidKind::RoceV2 && !is_link_local(ip) && !ip.is_unspecified() && !ip.is_multicast()
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Formats addresses by NIC: `rxe0 has 10.0.0.2, fd00::2; rxe1 has none`.
fn addresses_of(nics: &[&Nic]) -> String {
    let mut text = String::new();
    for nic in nics {
        let separator = if text.is_empty() { "" } else { "; " };
        let addresses: Vec<String> = match &nic.state {
            Ok(state) => state
                .gids
                .iter()
                .filter(|entry| is_usable(entry))
                .map(|entry| entry.gid.ip().to_string())
                .collect(),
            Err(_) => Vec::new(),
        };
        let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
        let _ = write!(text, "{separator}{} has {addresses}", nic.name);
    }
    text
}
