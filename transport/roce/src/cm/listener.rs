//! Listeners, by service and address.

use super::{CmError, Transport};
use crate::wire::cm::ServiceId;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use trunkline_verbs::PortSpace;

/// Id of a listener of one machine. It is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// A listener's address, service and kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// Local address; `0.0.0.0` means every IPv4 address, `::` every address.
    pub address: IpAddr,
    /// True if `::` means only every IPv6 address, so that another listener may use `0.0.0.0` at the port.
    pub is_family_only: bool,
    /// Port space, which forms the service together with the port.
    pub port_space: PortSpace,
    /// Local port; 0 selects a free one.
    pub port: u16,
    /// The kind of connection that is accepted; the other kind is refused (contract J7). `None` accepts both kinds.
    pub transport: Option<Transport>,
    /// Maximum number of requests waiting to be reported to the program, at least 1. Further requests are dropped, and the
    /// peer repeats them.
    pub backlog: u32,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: ListenerId,
    pub(super) transport: Option<Transport>,
    backlog: u32,
    waiting: u32,
    place: (IpAddr, bool),
}

/// All listeners of a device, by service.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_service: BTreeMap<ServiceId, Vec<Listener>>,
    services: BTreeMap<ListenerId, ServiceId>,
    next_id: u64,
}

/// Range from which free ports are taken, as on Linux.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

impl Listeners {
    /// Adds a listener and returns its port. `random` determines where the search for a free port starts.
    pub(super) fn add(&mut self, listen: &Listen, random: u64) -> Result<(ListenerId, u16), CmError> {
        let service = |port| ServiceId::new(listen.port_space, port);
        let place = (listen.address, listen.is_family_only);
        let free = |port: &u16| self.is_free(service(*port), place);
        let port = if listen.port == 0 {
            let count = EPHEMERAL.end - EPHEMERAL.start;
            let skip = u16::try_from(random % u64::from(count)).unwrap_or(0);
            (EPHEMERAL.start + skip..EPHEMERAL.end).chain(EPHEMERAL).find(free)
        } else {
            Some(listen.port).filter(free)
        };
        let port = port.ok_or(CmError::AddressInUse)?;
        self.next_id += 1;
        let id = ListenerId(self.next_id);
        self.services.insert(id, service(port));
        self.by_service.entry(service(port)).or_default().push(Listener {
            id,
            transport: listen.transport,
            backlog: listen.backlog.max(1),
            waiting: 0,
            place,
        });
        Ok((id, port))
    }

    pub(super) fn remove(&mut self, id: ListenerId) -> Result<(), CmError> {
        let service = self.services.remove(&id).ok_or(CmError::Unknown)?;
        if let Some(listeners) = self.by_service.get_mut(&service) {
            listeners.retain(|listener| listener.id != id);
            if listeners.is_empty() {
                self.by_service.remove(&service);
            }
        }
        Ok(())
    }

    /// Returns the listener for requests to `address`.
    pub(super) fn find(&self, service: ServiceId, address: IpAddr) -> Option<&Listener> {
        self.by_service.get(&service)?.iter().find(|listener| covers(listener.place, address))
    }

    /// Returns true if the listener's backlog is full.
    pub(super) fn is_full(&self, id: ListenerId) -> bool {
        let service = self.services.get(&id);
        let listeners = service.and_then(|service| self.by_service.get(service)).into_iter().flatten();
        listeners.filter(|listener| listener.id == id).any(|listener| listener.waiting >= listener.backlog)
    }

    /// Adds a request to the backlog, or removes one. Has no effect if the listener was removed.
    pub(super) fn count(&mut self, id: ListenerId, more: bool) {
        let Some(service) = self.services.get(&id) else { return };
        let listeners = self.by_service.get_mut(service).into_iter().flatten();
        for listener in listeners.filter(|listener| listener.id == id) {
            listener.waiting =
                if more { listener.waiting.saturating_add(1) } else { listener.waiting.saturating_sub(1) };
        }
    }

    fn is_free(&self, service: ServiceId, place: (IpAddr, bool)) -> bool {
        let mut others = self.by_service.get(&service).into_iter().flatten();
        !others.any(|other| covers(other.place, place.0) || covers(place, other.place.0))
    }
}

/// Returns true if a listener's address covers `address`. The listener may be restricted to its address family.
fn covers((listening, is_family_only): (IpAddr, bool), address: IpAddr) -> bool {
    match listening {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.is_ipv6() || !is_family_only,
        IpAddr::V4(v4) if v4.is_unspecified() => address.is_ipv4(),
        _ => listening == address,
    }
}
