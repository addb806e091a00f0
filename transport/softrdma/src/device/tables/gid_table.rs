//! The GID table, which lists the source addresses of a device's packets.
//!
//! Owns the addresses and their order: global IPv4 by interface index, global IPv6, link-local IPv4,
//! 127.0.0.1, ::1. Link-local IPv6 addresses are valid on one interface only, and are left out. The table
//! never opens an address; the device does so when the address is first used.
#![forbid(unsafe_code)]

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::{Gid, GidEntry, GidKind};

/// Maximum number of entries, since an address handle has one byte for the index. IPv4 loopback addresses are added
/// when they are first used.
pub(in crate::device) const MAX_ENTRIES: usize = 256;
/// Maximum number of addresses of the host.
const MAX_OF_HOST: usize = MAX_ENTRIES / 2;

/// A table of GIDs. Entries are neither moved nor removed. An index is reused for another address only when the table
/// is full and the host no longer has the old address.
#[derive(Debug, Clone)]
pub(in crate::device) struct GidTable {
    addresses: Vec<IpAddr>,
    /// Number of addresses that the user named, which precede the bound loopback addresses; `None` if the
    /// table follows the host.
    named: Option<usize>,
    /// Addresses that the host no longer has. They keep their indices in case the addresses return.
    gone: Vec<IpAddr>,
    /// Addresses of the host that do not fit in the table. A warning was logged for them.
    left_out: BTreeSet<IpAddr>,
    left_out_count: u64,
    /// Addresses whose entries were reused for other addresses since the last [`GidTable::take_replaced`].
    replaced: BTreeSet<IpAddr>,
}

impl GidTable {
    /// Creates a table of exactly these addresses.
    pub(in crate::device) fn named(addresses: Vec<IpAddr>) -> Self {
        Self {
            named: Some(addresses.len()),
            addresses,
            gone: Vec::new(),
            left_out: BTreeSet::new(),
            left_out_count: 0,
            replaced: BTreeSet::new(),
        }
    }

    /// Creates the table of the host's addresses, for a device without named addresses.
    pub(in crate::device) fn of_host() -> io::Result<Self> {
        let mut table = Self { named: None, ..Self::named(Vec::new()) };
        table.refresh()?;
        Ok(table)
    }

    /// Adds the host's new addresses, and records which of the earlier addresses the host has lost.
    pub(in crate::device) fn refresh(&mut self) -> io::Result<()> {
        if let Some((address, count)) = self.follow(&host_addresses()?) {
            // Log one line for all omitted addresses, since a host may have thousands.
            tracing::warn!(
                %address,
                omitted = count,
                limit = MAX_OF_HOST,
                remedy = "name the addresses to use in TRUNKLINE_ADDRESS",
                "host has more addresses than the device uses"
            );
        }
        Ok(())
    }

    /// Updates the table from `found`, which lists all addresses of the host. Returns the first newly omitted address,
    /// and the number of newly omitted addresses.
    fn follow(&mut self, found: &[IpAddr]) -> Option<(IpAddr, u64)> {
        let mut first_left_out = None;
        let left_out_before = self.left_out_count;
        self.note_gone(found);
        for address in found.iter().copied() {
            if self.addresses.contains(&address) {
                continue;
            }
            if self.has_room() {
                self.addresses.push(address);
            } else if let Some(old) = self.gone.pop() {
                let slot = self.addresses.iter_mut().find(|known| **known == old);
                slot.into_iter().for_each(|slot| *slot = address);
                self.replaced.insert(old);
            } else if self.left_out.insert(address) {
                self.left_out_count += 1;
                first_left_out.get_or_insert(address);
            }
        }
        let Self { left_out, addresses, replaced, .. } = self;
        left_out.retain(|address| found.contains(address) && !addresses.contains(address));
        replaced.retain(|address| !addresses.contains(address));
        first_left_out.map(|first| (first, self.left_out_count - left_out_before))
    }

    /// Takes the addresses whose entries were reused for other addresses since the last call.
    pub(in crate::device) fn take_replaced(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.replaced)
    }

    fn has_room(&self) -> bool {
        let of_host = self.addresses.iter().filter(|address| rank(**address).is_some()).count();
        of_host < MAX_OF_HOST && self.addresses.len() < MAX_ENTRIES
    }

    /// Returns the reason why the table does not contain an address.
    pub(in crate::device) fn reason_without(&self, address: IpAddr) -> &'static str {
        if self.left_out.contains(&address) {
            "the device has 128 other addresses of the host, and no room for this one; name those that it is to have in \
             TRUNKLINE_ADDRESS"
        } else if self.addresses.len() >= MAX_ENTRIES {
            "the device has 256 other addresses, and no room for this one"
        } else {
            "no port of the device has it; see its GID table"
        }
    }

    /// Returns the number of times that an address of the host did not fit in the table.
    pub(in crate::device) fn left_out_count(&self) -> u64 {
        self.left_out_count
    }

    /// Records the addresses that the host no longer has. Bound loopback addresses are not listed by the
    /// host, and never count as lost.
    fn note_gone(&mut self, found: &[IpAddr]) {
        let is_gone = |address: &&IpAddr| !found.contains(address) && rank(**address).is_some();
        self.gone = self.addresses.iter().filter(is_gone).copied().collect();
    }

    /// Returns the addresses that the host had at the last refresh.
    pub(in crate::device) fn present(&self) -> Vec<IpAddr> {
        self.addresses.iter().copied().filter(|address| !self.gone.contains(address)).collect()
    }

    /// Returns true if the table has the address and the host still has it.
    pub(in crate::device) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) && !self.gone.contains(&address)
    }

    /// Returns all addresses, by index.
    pub(in crate::device) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Returns the address at an index.
    pub(in crate::device) fn at(&self, index: u16) -> Option<IpAddr> {
        self.addresses.get(usize::from(index)).copied()
    }

    /// Returns the index of an address. An IPv4 loopback address is added to the table if it is missing.
    pub(in crate::device) fn index_of(&mut self, address: IpAddr) -> Option<u16> {
        let known = self.addresses.iter().position(|known| *known == address);
        let position = known.or_else(|| {
            let joins = address.is_ipv4() && address.is_loopback();
            (joins && self.addresses.len() < MAX_ENTRIES).then(|| {
                self.addresses.push(address);
                self.addresses.len() - 1
            })
        })?;
        u16::try_from(position).ok()
    }

    /// Returns true if the user named the addresses.
    pub(in crate::device) fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// Returns true if the user named the addresses, and `address` is not among them.
    pub(in crate::device) fn is_named_without(&self, address: IpAddr) -> bool {
        self.named.is_some_and(|count| !self.addresses.iter().take(count).any(|known| *known == address))
    }

    /// Returns the entries as verbs present them.
    pub(in crate::device) fn entries(&self) -> Vec<GidEntry> {
        (0..)
            .zip(&self.addresses)
            .filter(|(_, address)| !self.gone.contains(address))
            .map(|(index, address)| GidEntry { index, gid: Gid::from(*address), kind: GidKind::RoceV2 })
            .collect()
    }
}

/// Returns the addresses of interfaces that are up, in the order of the table.
fn host_addresses() -> io::Result<Vec<IpAddr>> {
    let mut found: Vec<(u8, u32, IpAddr)> = Vec::new();
    let _held = HeldStdio::take()?;
    for entry in getifaddrs()? {
        let Some(address) = entry.address.as_ref().and_then(ip_of) else { continue };
        if !entry.flags.contains(InterfaceFlags::IFF_UP) {
            continue;
        }
        let index = if_nametoindex(entry.interface_name.as_str()).unwrap_or(u32::MAX);
        if let Some(rank) = rank(address) {
            found.push((rank, index, address));
        }
    }
    // The sort is stable: the addresses of one interface stay in the kernel's order.
    found.sort_by_key(|(rank, index, _)| (*rank, *index));
    Ok(found.into_iter().map(|(_, _, address)| address).collect())
}

/// Returns the rank of an address's kind in the table; `None` if the address cannot be a source of packets.
fn rank(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() => None,
        IpAddr::V4(v4) if v4.is_loopback() => (v4.octets() == [127, 0, 0, 1]).then_some(3),
        IpAddr::V4(v4) if v4.is_link_local() => Some(2),
        IpAddr::V4(_) => Some(0),
        IpAddr::V6(v6) if v6.is_unspecified() || v6.is_multicast() => None,
        IpAddr::V6(v6) if v6.is_loopback() => Some(4),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => None,
        IpAddr::V6(_) => Some(1),
    }
}

fn ip_of(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(v4.ip().into()),
        (None, Some(v6)) => Some(v6.ip().into()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_table_ranks_addresses_by_kind() {
        let ranks: Vec<_> = ["10.0.0.1", "fd00::1", "169.254.0.1", "127.0.0.1", "::1"]
            .iter()
            .map(|text| rank(text.parse().unwrap()))
            .collect();
        assert!(ranks.is_sorted() && ranks.iter().all(Option::is_some), "{ranks:?}");
        assert_eq!(rank("127.0.0.2".parse().unwrap()), None, "joins only when bound");
        assert_eq!(rank("fe80::1".parse().unwrap()), None, "another one on each interface");
    }

    #[test]
    fn loopback_addresses_join_gid_table_when_bound() {
        let mut table = GidTable::named(vec!["10.0.0.1".parse().unwrap()]);
        assert_eq!(table.index_of("10.0.0.1".parse().unwrap()), Some(0));
        assert_eq!(table.index_of("10.0.0.2".parse().unwrap()), None);
        assert_eq!(table.index_of("127.4.4.4".parse().unwrap()), Some(1));
        assert_eq!(table.index_of("127.4.4.4".parse().unwrap()), Some(1));
        assert_eq!(table.entries().len(), 2);
        let is_without = |text: &str| table.is_named_without(text.parse().unwrap());
        assert!(!is_without("10.0.0.1") && is_without("127.4.4.4"), "what joined was not named");
        let of_host = GidTable::of_host().unwrap();
        assert!(!of_host.is_named_without("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn returning_address_keeps_its_index() {
        let [old, other] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let mut table = GidTable { named: None, ..GidTable::named(vec![old, other]) };
        assert_eq!(table.index_of("127.4.4.4".parse().unwrap()), Some(2));
        table.note_gone(&[other]);
        assert_eq!(table.entries().iter().map(|entry| entry.index).collect::<Vec<_>>(), [1, 2]);
        assert!(!table.has(old) && table.has(other) && !table.present().contains(&old));
        table.note_gone(&[other, old]);
        assert_eq!((table.has(old), table.index_of(old)), (true, Some(0)));
    }

    #[test]
    fn addresses_beyond_limit_are_counted_until_removals_make_room() {
        let of = |range: std::ops::Range<u16>| -> Vec<IpAddr> {
            let address =
                |number: u16| IpAddr::from([10, 1, number.to_be_bytes()[0], number.to_be_bytes()[1]]);
            range.map(address).collect()
        };
        let mut table = GidTable { named: None, ..GidTable::named(Vec::new()) };
        assert_eq!(table.follow(&of(0..130)), Some((of(128..129)[0], 2)));
        assert_eq!(table.follow(&of(0..130)), None, "they were left out before");
        assert_eq!((table.present().len(), table.left_out_count()), (128, 2));
        let [left_out, unknown] = [129, 130].map(|number| table.reason_without([10, 1, 0, number].into()));
        assert!(left_out.contains("128 other addresses") && left_out.contains("TRUNKLINE_ADDRESS"));
        assert!(unknown.contains("no port of the device has it"));
        // Each floating address takes the place of a removed address.
        for start in 1..1000 {
            table.follow(&of(start..start + 100));
            assert_eq!(
                (table.present(), table.addresses().len()),
                (sorted_as(&table, of(start..start + 100)), 128)
            );
        }
        assert_eq!((table.left_out_count(), table.left_out.len()), (2, 0));
    }

    #[test]
    fn replaced_addresses_are_reported_once_unless_restored() {
        let of =
            |range: std::ops::Range<u8>| range.map(|number| [10, 1, 0, number].into()).collect::<Vec<_>>();
        let mut table = GidTable { named: None, ..GidTable::named(Vec::new()) };
        table.follow(&of(0..128));
        table.follow(&of(2..128));
        assert!(table.take_replaced().is_empty(), "addresses that are gone keep their places");
        table.follow(&of(2..130));
        assert_eq!(table.take_replaced(), of(0..2).into_iter().collect());
        assert!(table.take_replaced().is_empty());
        table.follow(&of(3..131));
        table.follow(&of(2..130));
        assert_eq!(table.take_replaced(), of(130..131).into_iter().collect());
    }

    /// Returns the addresses in the order of the table.
    fn sorted_as(table: &GidTable, mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        addresses.sort_by_key(|address| table.addresses().iter().position(|known| known == address));
        addresses
    }

    #[test]
    fn gid_table_of_host_contains_loopback() {
        let table = GidTable::of_host().unwrap();
        assert!(table.addresses().contains(&"127.0.0.1".parse().unwrap()), "{table:?}");
    }
}
