//! Registry of the member that listens for each CM service.
//!
//! Owns the claims of members on services. Look-ups neither take a lock nor make a system call. Claims are added under
//! the lock.
#![forbid(unsafe_code)]

use super::layout::SERVICES;
use super::records::{Claim, Record};
use crate::host::files::folder_lock::Locked;
use crate::host::{Host, HostError, MemberId};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Bit that is set in a record's service if the listener listens at all addresses of its device, which has only some of
/// the host's addresses, and the record is for one of these addresses. Services do not have this bit.
const IS_PART: u64 = 1 << 63;

/// A service that this member provides. Dropping the claim releases the service.
#[derive(Debug)]
pub(crate) struct ServiceClaim(#[allow(dead_code, reason = "held for its record")] Claim);

/// Address of a listener as an IPv6 address: `::` for all addresses, `::ffff:0.0.0.0` for all IPv4 addresses,
/// all ones for all IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::host) struct PackedAddress(u128);

impl PackedAddress {
    const ALL: Self = Self(0);
    const ALL_V4: Self = Self(0xffff_0000_0000);
    const ALL_V6: Self = Self(u128::MAX);

    pub(in crate::host) fn new(address: IpAddr, is_family_only: bool) -> Self {
        match address.to_canonical() {
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if is_family_only => Self::ALL_V6,
            IpAddr::V6(v6) => Self(v6.to_bits()),
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().to_bits()),
        }
    }

    /// Returns the address as two words of a record.
    pub(in crate::host) fn words(self) -> [u64; 2] {
        let bytes = self.0.to_be_bytes();
        [0, 8].map(|start| bytes[start..start + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
    }

    pub(in crate::host) fn from_words([high, low]: [u64; 2]) -> Self {
        Self(u128::from(high) << 64 | u128::from(low))
    }

    /// Returns the address, as an IPv4 address if possible.
    pub(in crate::host) fn address(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from_bits(self.0)).to_canonical()
    }

    fn is_wildcard(self) -> bool {
        [Self::ALL, Self::ALL_V4, Self::ALL_V6].contains(&self)
    }

    fn has_v4(self) -> bool {
        self == Self::ALL || (self.0 >> 32) == 0xffff
    }

    fn has_v6(self) -> bool {
        self == Self::ALL || (self.0 >> 32) != 0xffff
    }

    /// Returns true if a request can match both addresses.
    pub(super) fn meets(self, other: Self) -> bool {
        if self.is_wildcard() || other.is_wildcard() {
            (self.has_v4() && other.has_v4()) || (self.has_v6() && other.has_v6())
        } else {
            self == other
        }
    }
}

impl Host {
    /// Claims a service at an address. The unspecified address stands for all addresses; the unspecified IPv6
    /// address includes IPv4 unless `is_family_only` is true. Claims of this member do not conflict with each
    /// other.
    ///
    /// # Errors
    /// Returns [`HostError::InUse`] if another living member has claimed the service, or [`HostError::WildcardInUse`]
    /// if one of the two members listens at all addresses. The distinction follows `cma_check_port` of Linux
    /// (drivers/infiniband/core/cma.c).
    pub(crate) fn claim_service(
        self: &Arc<Self>,
        service: u64,
        address: IpAddr,
        is_family_only: bool,
    ) -> Result<ServiceClaim, HostError> {
        self.claim_at(service, PackedAddress::new(address, is_family_only))
    }

    /// Claims a service at one address for a listener at all addresses of its device.
    ///
    /// # Errors
    /// Returns [`HostError::WildcardInUse`] if another living member has claimed the service.
    pub(crate) fn claim_part(
        self: &Arc<Self>,
        service: u64,
        address: IpAddr,
    ) -> Result<ServiceClaim, HostError> {
        self.claim_at(service | IS_PART, PackedAddress::new(address, false))
    }

    fn claim_at(self: &Arc<Self>, service: u64, place: PackedAddress) -> Result<ServiceClaim, HostError> {
        loop {
            let locked = self.lock()?;
            let claim = self.claim_unless_taken(&locked, service, place)?;
            if self.is_locked(&locked) {
                return Ok(claim);
            }
        }
    }

    fn claim_unless_taken(
        self: &Arc<Self>,
        locked: &Locked<'_>,
        service: u64,
        place: PackedAddress,
    ) -> Result<ServiceClaim, HostError> {
        let mut others = self.records(&SERVICES).filter(|record| {
            service_of(record) == service & !IS_PART
                && record.owner != self.me()
                && address_of(record).meets(place)
        });
        if let Some(other) = others.find(|record| self.is_alive(record.owner)) {
            let is_part = (service | other.words[0]) & IS_PART != 0;
            let is_wildcard = is_part || place.is_wildcard() || address_of(&other).is_wildcard();
            return Err(if is_wildcard { HostError::WildcardInUse } else { HostError::InUse });
        }
        let [high, low] = place.words();
        self.claim(locked, &SERVICES, [service, high, low]).map(ServiceClaim)
    }

    /// Returns the member that listens for a service at an address. A listener at the address takes
    /// precedence over a listener at all addresses.
    pub(crate) fn service_owner(&self, service: u64, address: IpAddr) -> Option<MemberId> {
        let place = PackedAddress::new(address, false);
        let mut everywhere = None;
        for record in self.records(&SERVICES).filter(|record| service_of(record) == service) {
            let listens = address_of(&record);
            if listens == place {
                return Some(record.owner);
            }
            if listens.is_wildcard() && listens.meets(place) {
                everywhere = Some(record.owner);
            }
        }
        everywhere
    }

    /// Returns the addresses of this member's listeners, without a system call.
    pub(super) fn listening_places(&self) -> BTreeSet<PackedAddress> {
        let own = self.records(&SERVICES).filter(|record| record.owner == self.me());
        own.map(|record| address_of(&record)).collect()
    }
}

fn service_of(record: &Record) -> u64 {
    record.words[0] & !IS_PART
}

fn address_of(record: &Record) -> PackedAddress {
    PackedAddress::from_words([record.words[1], record.words[2]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::hosts;
    use std::sync::atomic::Ordering;

    const SERVICE: u64 = 0x0106_1234;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn service_is_claimed_by_one_member() {
        let (_folder, [one, two]) = hosts();
        let claim = one.claim_service(SERVICE, ip("127.0.0.1"), false).unwrap();
        assert!(matches!(two.claim_service(SERVICE, ip("127.0.0.1"), false), Err(HostError::InUse)));
        assert_eq!(two.service_owner(SERVICE, ip("127.0.0.1")), Some(one.me()));
        assert_eq!(two.service_owner(SERVICE, ip("127.0.0.2")), None);
        assert_eq!(two.service_owner(SERVICE + 1, ip("127.0.0.1")), None);
        let other = two.claim_service(SERVICE, ip("127.0.0.2"), false).unwrap();
        assert_eq!(one.service_owner(SERVICE, ip("127.0.0.2")), Some(two.me()));
        drop((claim, other));
        assert_eq!(two.service_owner(SERVICE, ip("127.0.0.1")), None);
        two.claim_service(SERVICE, ip("127.0.0.1"), false).unwrap();
    }

    #[test]
    fn wildcard_services_conflict_with_covered_addresses() {
        let (_folder, [one, two]) = hosts();
        let cases = [
            ("::", false, "0.0.0.0", false),
            ("::", false, "127.0.0.1", true),
            ("0.0.0.0", true, "127.0.0.1", true),
            ("0.0.0.0", false, "::1", false),
            ("::", true, "::1", true),
            ("0.0.0.0", false, "0.0.0.0", true),
        ];
        for (first, is_family_only, second, refused) in cases {
            let is_family_only = is_family_only && first == "::";
            let _claim = one.claim_service(SERVICE, ip(first), is_family_only).unwrap();
            let meets = refused || (first == "::" && !is_family_only);
            let result = two.claim_service(SERVICE, ip(second), false);
            assert_eq!(result.is_err(), meets, "{first} {is_family_only} {second}");
            assert!(matches!(result, Ok(_) | Err(HostError::WildcardInUse)), "{result:?}");
        }
        let _v6 = one.claim_service(SERVICE, ip("::"), true).unwrap();
        let _v4 = two.claim_service(SERVICE, ip("0.0.0.0"), false).unwrap();
        assert_eq!(one.service_owner(SERVICE, ip("::5")), Some(one.me()));
        assert_eq!(one.service_owner(SERVICE, ip("10.1.1.1")), Some(two.me()));
        assert_eq!(one.service_owner(SERVICE, ip("::ffff:10.1.1.1")), Some(two.me()));
        let _exact = one.claim_service(SERVICE + 1, ip("10.1.1.1"), false).unwrap();
        assert_eq!(two.service_owner(SERVICE + 1, ip("10.1.1.1")), Some(one.me()));
    }

    #[test]
    fn address_of_wildcard_counts_as_wildcard() {
        let (_folder, [one, two]) = hosts();
        let here = ip("127.0.0.1");
        let part = one.claim_part(SERVICE, here).unwrap();
        assert_eq!(two.service_owner(SERVICE, here), Some(one.me()));
        assert!(matches!(two.claim_service(SERVICE, here, false), Err(HostError::WildcardInUse)));
        assert!(matches!(two.claim_part(SERVICE, here), Err(HostError::WildcardInUse)));
        let elsewhere = two.claim_service(SERVICE, ip("127.0.0.2"), false).unwrap();
        drop((part, elsewhere));
        let _exact = two.claim_service(SERVICE, here, false).unwrap();
        assert!(matches!(one.claim_part(SERVICE, here), Err(HostError::WildcardInUse)));
        assert!(matches!(one.claim_service(SERVICE, here, false), Err(HostError::InUse)));
    }

    #[test]
    fn garbage_in_tables_is_read_without_panic() {
        let (_folder, [host]) = hosts();
        for start in [0, 1, u64::MAX, host.me().pack(), host.me().pack() | 77 << 48] {
            host.registry.word64(SERVICES.used).store(start, Ordering::Relaxed);
            for index in 0..SERVICES.capacity {
                host.registry.write(SERVICES.record(index), &[start, start.rotate_left(9), start, u64::MAX]);
            }
            let _any = host.service_owner(SERVICE, ip("::1"));
            let _any = host.claim_service(SERVICE, ip("::1"), false);
        }
    }
}
