//! UDP ports from which members send, and the member that holds the device's port (4791 by default) at an address.
//!
//! Owns the records of ports, and [`MemberPorts`], a member's view of them for the packets that it receives. Another
//! user cannot bind a port to which a member's socket is bound, so a packet from a recorded address and port was sent
//! by a member of this registry. At an address where members hold ports, all other packets were sent by other programs.
//! Each member records a port before it sends packets from the port. Changes do not take the host's lock: a link opens
//! an address in a turn of its shard, and a process that is stopped while it holds the lock must not block the shard. A
//! member records the device's port as unsettled before it binds the port.
//!
//! The view is read without a system call while the ports' owners are connected with this member. The end of
//! a connection shows a death, and is read before the first shard's next batch of packets. The lock of any
//! other owner is checked every [`ALIVE_FOR`] while it sends. A record is void without a living member, since
//! another user may bind the port as soon as its owner has died. Packets that a member sent just before it
//! released its ports may still be in the sockets of this member, among them acknowledgements that are not
//! repeated. Released ports therefore count until the sockets have been read empty once, for
//! [`LAST_PACKETS_FOR`] at most. A program that binds such a port during that time still has to guess a PSN.
#![forbid(unsafe_code)]

use super::layout::{PORT_CHANGES, PORTS};
use super::records::Record;
use super::services::PackedAddress;
use crate::host::{Host, HostError, MemberId, Members};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_verbs::Time;

/// Time for which a member counts as live after its lock was found held, or its connection was found open.
const ALIVE_FOR: Duration = Duration::from_millis(20);
/// Maximum time for which packets from released ports are accepted.
const LAST_PACKETS_FOR: Duration = Duration::from_millis(100);

/// Bit in a record's port, set if the owner is about to exit without releasing the port.
const IS_ENDING: u64 = 1 << 16;
/// Bit in a record of a device's port, set if the owner has not bound the port yet or is closing it.
const IS_UNSETTLED: u64 = 1 << 17;
/// Maximum number of further attempts to bind the device's port while another member binds or closes it.
const ATTEMPTS: u32 = 100;

/// The holder of this member's device port at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortHolder {
    /// A live member, which relays datagrams to the other members.
    Alive(MemberId),
    /// A member that died without releasing the port.
    Dead,
    /// No member.
    Nobody,
}

/// Reason why a port was not bound.
#[derive(Debug)]
pub(crate) enum PortRefused<E> {
    /// Binding failed; contains the error and the holder of the device's port at that moment.
    Bind(E, PortHolder),
    /// The port could not be recorded, so other members would drop packets from it.
    Record(HostError),
}

impl Host {
    /// Binds the device's port at an address with `bind`, and records this member as its holder. If the port is bound
    /// by another member, the error contains the holder.
    ///
    /// # Errors
    /// Returns [`PortRefused`] if the port was not bound.
    pub(crate) fn hold_port<T, E>(
        &self,
        address: IpAddr,
        mut bind: impl FnMut() -> Result<T, E>,
    ) -> Result<T, PortRefused<E>> {
        let words = record_of(address, self.udp_port());
        let unsettled = [words[0], words[1], words[2] | IS_UNSETTLED];
        let mut attempts = 0;
        loop {
            let own = self.put(&PORTS, unsettled).map_err(PortRefused::Record)?;
            let error = match bind() {
                Ok(bound) => {
                    self.remove_all(&PORTS, |record| is_same(record, &words));
                    self.unmark(&PORTS, &own, IS_UNSETTLED);
                    self.ports_changed();
                    return Ok(bound);
                }
                Err(error) => error,
            };
            self.remove(&PORTS, &own);
            let holder = self.port_holder(address);
            let mut others = self.records(&PORTS).filter(|record| record.words == unsettled);
            let other = others.find(|record| record.owner != self.me() && self.is_alive(record.owner));
            match other.filter(|_| !matches!(holder, PortHolder::Alive(_))) {
                None => return Err(PortRefused::Bind(error, holder)),
                // Binding or closing takes microseconds, so the other member is probably stopped. Report it
                // as the holder.
                Some(other) if attempts == ATTEMPTS => {
                    return Err(PortRefused::Bind(error, PortHolder::Alive(other.owner)));
                }
                Some(_) => std::thread::yield_now(),
            }
            attempts += 1;
        }
    }

    /// Records a port other than the device's port that this member has bound at an address.
    ///
    /// # Errors
    /// Returns the registry's error. Other members then drop packets from the port.
    pub(crate) fn record_port(&self, local: SocketAddr) -> Result<(), HostError> {
        self.put(&PORTS, record_of(local.ip(), local.port()))?;
        self.ports_changed();
        Ok(())
    }

    /// Closes this member's sockets at an address with `close`, and removes the records of their ports, or
    /// only the record of `port` if it is given.
    pub(crate) fn release_port(&self, address: IpAddr, port: Option<u16>, close: impl FnOnce()) {
        let words = record_of(address, self.udp_port());
        let is_closed = |word: u64| port.is_none_or(|port| word & !IS_ENDING == u64::from(port));
        let own = |record: &Record| {
            record.words[..2] == words[..2] && record.owner == self.me() && is_closed(record.words[2])
        };
        let closed: Vec<_> = self.records(&PORTS).filter(own).collect();
        for record in &closed {
            self.mark(&PORTS, record, IS_UNSETTLED);
        }
        close();
        for record in &closed {
            self.remove(&PORTS, record);
        }
        self.ports_changed();
    }

    /// Records that this member's process is about to exit with its sockets open, so that other members accept the last
    /// packets from its ports. Does not take the lock.
    pub(crate) fn ports_end(&self) {
        for record in self.records(&PORTS).filter(|record| record.owner == self.me()) {
            self.mark(&PORTS, &record, IS_ENDING);
        }
        self.ports_changed();
    }

    /// Returns the recorded holder of the device's port at an address.
    pub(crate) fn port_holder(&self, address: IpAddr) -> PortHolder {
        let words = record_of(address, self.udp_port());
        let mut records = self.records(&PORTS).filter(|record| is_same(&record.words, &words));
        match records.find(|record| self.is_alive(record.owner)) {
            Some(record) => PortHolder::Alive(record.owner),
            None if self.was_left(&PORTS, |record| is_same(record, &words)) => PortHolder::Dead,
            None => PortHolder::Nobody,
        }
    }

    /// Returns the other members that hold the device's port at addresses where this member listens, without a system
    /// call.
    pub(crate) fn other_holders(&self) -> BTreeMap<MemberId, Vec<IpAddr>> {
        let mut holders: BTreeMap<MemberId, Vec<IpAddr>> = BTreeMap::new();
        let places = self.listening_places();
        if places.is_empty() {
            return holders;
        }
        let place_of = |record: &Record| PackedAddress::from_words([record.words[0], record.words[1]]);
        let own =
            self.records(&PORTS).filter(|record| record.owner == self.me()).map(|record| place_of(&record));
        let own: BTreeSet<_> = own.filter(|own| places.iter().any(|place| place.meets(*own))).collect();
        for record in self.records(&PORTS) {
            let is_holder =
                record.owner != self.me() && record.words[2] & !IS_ENDING == u64::from(self.udp_port());
            let place = place_of(&record);
            if is_holder && own.contains(&place) {
                holders.entry(record.owner).or_default().push(place.address());
            }
        }
        holders
    }

    /// Returns true if a member holds a port at an address, without a system call.
    pub(crate) fn has_port_at(&self, member: MemberId, address: IpAddr) -> bool {
        let [high, low] = PackedAddress::new(address, false).words();
        self.records(&PORTS).any(|record| record.owner == member && record.words[..2] == [high, low])
    }

    /// Returns true if a member holds the port at this address, without a system call.
    pub(crate) fn has_port(&self, member: MemberId, at: SocketAddr) -> bool {
        let words = record_of(at.ip(), at.port());
        self.records(&PORTS).any(|record| record.owner == member && is_same(&record.words, &words))
    }

    /// Returns true if any member holds a port at an address.
    pub(crate) fn is_address_of_members(&self, address: IpAddr) -> bool {
        let [high, low] = PackedAddress::new(address, false).words();
        self.records(&PORTS).any(|record| record.words[..2] == [high, low])
    }

    /// Returns true if a live member holds a port at an address. Packets from other users at the address are then
    /// recognized as forged.
    pub(crate) fn is_address_of_the_living(&self, address: IpAddr) -> bool {
        let [high, low] = PackedAddress::new(address, false).words();
        self.records(&PORTS).any(|record| record.words[..2] == [high, low] && self.is_alive(record.owner))
    }

    /// Returns the ports of living members by address, a set for each member.
    pub(in crate::host) fn ports_in_use(&self) -> BTreeMap<IpAddr, Vec<BTreeSet<u16>>> {
        let mut members: BTreeMap<IpAddr, BTreeMap<u64, BTreeSet<u16>>> = BTreeMap::new();
        for record in self.records(&PORTS).filter(|record| self.is_alive(record.owner)) {
            let place = PackedAddress::from_words([record.words[0], record.words[1]]);
            let member = members.entry(place.address()).or_default().entry(record.owner.pack()).or_default();
            member.extend(u16::try_from(record.words[2] & u64::from(u16::MAX)));
        }
        members.into_iter().map(|(address, members)| (address, members.into_values().collect())).collect()
    }

    fn ports_changed(&self) {
        // SYNC: ports
        self.registry.word64(PORT_CHANGES).fetch_add(1, Ordering::Release);
    }
}

fn record_of(address: IpAddr, port: u16) -> [u64; 3] {
    let [high, low] = PackedAddress::new(address, false).words();
    [high, low, port.into()]
}

fn is_same(record: &[u64; 3], words: &[u64; 3]) -> bool {
    record[..2] == words[..2] && record[2] & !IS_ENDING == words[2]
}

/// Sender of a packet, determined by the packet's source address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A member of this registry.
    Member,
    /// A sender at an address where members do not hold ports.
    Stranger,
    /// Another program, at an address where members hold ports.
    Forged,
}

/// A member's view of the ports of all members. The module docs state how long its entries are valid.
#[derive(Debug)]
pub(crate) struct MemberPorts {
    members: Arc<Members>,
    /// The change counter at the last read of the registry.
    changes: Option<u64>,
    addresses: BTreeMap<PackedAddress, At>,
    /// Number of received batches of packets.
    batch: u64,
}

/// The ports at an address.
#[derive(Debug, Default)]
struct At {
    /// Ports in ascending order. After a death, a number can occur twice.
    ports: Vec<Port>,
}

#[derive(Debug, Clone, Copy)]
struct Port {
    number: u16,
    owner: MemberId,
    /// Time at which the owner's lock is checked next.
    next_check: Time,
    /// True if the owner is about to exit.
    is_ending: bool,
    /// Set after the owner has released the port or has died.
    left: Option<Left>,
}

/// The end of a member's use of a port.
#[derive(Debug, Clone, Copy)]
struct Left {
    /// Time until which last packets from the port are accepted.
    until: Time,
    /// Number of the batch of packets during or before which the end was detected.
    noticed: u64,
    /// True if the owner died without releasing the port.
    by_death: bool,
}

impl MemberPorts {
    pub(crate) fn new(members: Arc<Members>) -> Self {
        Self { members, changes: None, addresses: BTreeMap::new(), batch: 0 }
    }

    /// Updates the view if ports were recorded or released. Call it before each batch of packets.
    pub(crate) fn follow(&mut self, now: Time) {
        self.read_if_changed(now);
        self.batch += 1;
    }

    /// Returns the sender of packets from an address and port.
    pub(crate) fn source(&mut self, from: SocketAddr, now: Time) -> Source {
        let source = self.look_up(from, now);
        // The port may have been recorded after the start of the batch.
        if source != Source::Member && self.read_if_changed(now) {
            return self.look_up(from, now);
        }
        source
    }

    fn look_up(&mut self, from: SocketAddr, now: Time) -> Source {
        let place = PackedAddress::new(from.ip(), false);
        let Self { members, addresses, batch, .. } = self;
        let moment = Moment { now, batch: *batch };
        let Some(at) = addresses.get_mut(&place) else { return Source::Stranger };
        let first = at.ports.partition_point(|port| port.number < from.port());
        let mut same = at.ports[first..].iter_mut().take_while(|port| port.number == from.port());
        if same.any(|port| port.is_believed(members, moment)) {
            return Source::Member;
        }
        // One live member at the address is sufficient.
        if at.ports.iter_mut().any(|port| port.is_believed(members, moment)) {
            return Source::Forged;
        }
        addresses.remove(&place);
        Source::Stranger
    }

    /// Drops ports whose end was detected before the last [`MemberPorts::follow`]. Call it when all sockets
    /// have been read empty since that call, so that the last packets from these ports have been received.
    pub(crate) fn drained(&mut self) {
        let batch = self.batch;
        for at in self.addresses.values_mut() {
            at.ports.retain(|port| port.left.is_none_or(|left| left.noticed >= batch));
        }
    }

    fn read_if_changed(&mut self, now: Time) -> bool {
        // SYNC: ports
        let changes = self.members.host().registry.word64(PORT_CHANGES).load(Ordering::Acquire);
        let has_changed = self.changes.replace(changes) != Some(changes);
        if has_changed {
            self.read(now);
        }
        has_changed
    }

    /// Reads all records, and keeps released ports for their last packets.
    fn read(&mut self, now: Time) {
        let moment = Moment { now, batch: self.batch };
        let mut before = std::mem::take(&mut self.addresses);
        let host = self.members.host();
        for record in host.records(&PORTS) {
            let is_ending = record.words[2] & IS_ENDING != 0;
            let Ok(number) = u16::try_from(record.words[2] & !IS_ENDING) else { continue };
            let place = PackedAddress::from_words([record.words[0], record.words[1]]);
            let owner = record.owner;
            let old = before.get_mut(&place).and_then(|at| at.take(number, owner));
            let port = old.unwrap_or(Port { number, owner, next_check: Time(0), is_ending, left: None });
            self.addresses.entry(place).or_default().ports.push(Port { is_ending, ..port });
        }
        for (place, at) in before {
            let [high, low] = place.words();
            for port in at.ports {
                let words = [high, low, port.number.into()];
                // The owner marked its record before it exited.
                let is_marked = host.was_left(&PORTS, |record| *record == [high, low, words[2] | IS_ENDING]);
                let port = if is_marked { port.without_death() } else { port };
                // The record of a dead member still exists.
                let has_died = host.was_left(&PORTS, |record| *record == words);
                let port = port.ended(has_died, moment);
                self.addresses.entry(place).or_default().ports.push(port);
            }
        }
        for at in self.addresses.values_mut() {
            at.ports.sort_by_key(|port| port.number);
        }
    }
}

impl At {
    /// Removes the port of a member from the list.
    fn take(&mut self, number: u16, owner: MemberId) -> Option<Port> {
        let is_it = |port: &Port| port.number == number && port.owner == owner;
        self.ports.iter().position(is_it).map(|index| self.ports.remove(index))
    }
}

/// The current time, and the number of the batch of packets being received.
#[derive(Debug, Clone, Copy)]
struct Moment {
    now: Time,
    batch: u64,
}

impl Port {
    /// Returns true if a packet from this port was sent by its owner.
    fn is_believed(&mut self, members: &Members, moment: Moment) -> bool {
        let host = members.host();
        let is_known_to_live = moment.now < self.next_check && host.is_member(self.owner);
        if self.left.is_none() && !is_known_to_live {
            let is_connected = host.is_member(self.owner) && members.is_connected(self.owner);
            if is_connected || host.is_alive(self.owner) {
                self.next_check = moment.now + ALIVE_FOR;
            } else {
                *self = self.ended(!self.is_ending, moment);
            }
        }
        !self.is_gone(moment.now)
    }

    fn ended(self, by_death: bool, moment: Moment) -> Self {
        let wait = if by_death { Duration::ZERO } else { LAST_PACKETS_FOR };
        let left = Left { until: moment.now + wait, noticed: moment.batch, by_death };
        Self { left: self.left.or(Some(left)), ..self }
    }

    /// Returns the port without the mark of a death. The owner may exit during a batch, after its records
    /// were read.
    fn without_death(self) -> Self {
        Self { left: self.left.filter(|left| !left.by_death), ..self }
    }

    fn is_gone(&self, now: Time) -> bool {
        self.left.is_some_and(|left| now >= left.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Received;
    use crate::host::testing::hosts;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn view(host: &Arc<Host>) -> MemberPorts {
        MemberPorts::new(Members::new(Arc::clone(host)).unwrap())
    }

    fn at(millis: u64) -> Time {
        Time(0) + Duration::from_millis(millis)
    }

    #[test]
    fn port_has_one_holder() {
        let (_folder, [one, two]) = hosts();
        let [v4, v6] = [ip("127.0.0.1"), ip("::1")];
        let hold = |host: &Host, address| host.hold_port(address, || Ok::<(), ()>(())).unwrap();
        let refused = |host: &Host, address| match host.hold_port(address, || Err::<(), ()>(())) {
            Err(PortRefused::Bind((), holder)) => holder,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&one, v6), PortHolder::Nobody);
        hold(&one, v6);
        hold(&one, v4);
        assert_eq!(refused(&two, v6), PortHolder::Alive(one.me()));
        two.record_port(SocketAddr::new(v6, 40_000)).unwrap();
        assert_eq!(refused(&two, v6), PortHolder::Alive(one.me()), "another port is not 4791");
        hold(&two, v6);
        assert_eq!(refused(&one, v6), PortHolder::Alive(two.me()));
        assert_eq!(refused(&one, v4), PortHolder::Alive(one.me()));
        two.release_port(v4, None, || {});
        assert_eq!(refused(&one, v4), PortHolder::Alive(one.me()), "not its own");
        one.release_port(v4, None, || {});
        assert_eq!(refused(&two, v4), PortHolder::Nobody, "released");
        drop(two);
        assert_eq!(refused(&one, v6), PortHolder::Dead, "it left without releasing it");
        hold(&one, v6);
        one.release_port(v6, None, || {});
        assert_eq!(refused(&one, v6), PortHolder::Nobody, "and its record went with its successor's");
    }

    #[test]
    fn other_holders_are_port_holders_at_listening_addresses() {
        let (_folder, [one, two, three]) = hosts();
        let [here, there, v6] = [ip("127.0.0.1"), ip("127.0.0.2"), ip("::1")];
        for (holder, address) in [(&one, here), (&one, v6), (&two, there)] {
            holder.hold_port(address, || Ok::<(), ()>(())).unwrap();
        }
        assert_eq!(three.other_holders(), BTreeMap::new());
        let claim = three.claim_service(7, ip("0.0.0.0"), false).unwrap();
        assert_eq!(three.other_holders(), BTreeMap::new(), "it has no port there");
        for address in [here, there, v6] {
            three.record_port(SocketAddr::new(address, 40_000)).unwrap();
        }
        let [first, second] = [one.me(), two.me()];
        assert_eq!(three.other_holders(), BTreeMap::from([(first, vec![here]), (second, vec![there])]));
        drop(claim);
        assert_eq!(three.other_holders(), BTreeMap::new(), "it only dials");
        let _v6 = three.claim_service(7, v6, false).unwrap();
        assert_eq!(three.other_holders(), BTreeMap::from([(first, vec![v6])]));
        let _own = one.claim_service(8, here, false).unwrap();
        assert_eq!(one.other_holders(), BTreeMap::new(), "it is the holder");
    }

    #[test]
    fn ports_are_opened_and_closed_while_stopped_process_holds_lock() {
        let (_folder, [one, stopped]) = hosts();
        let (address, lock) = (ip("127.0.0.1"), stopped.lock().unwrap());
        let file = std::fs::read_dir(one.directory().unwrap()).unwrap().count();
        one.hold_port(address, || Ok::<(), ()>(())).unwrap();
        one.record_port(SocketAddr::new(address, 40_000)).unwrap();
        one.release_port(address, None, || {});
        one.take_block(0).unwrap();
        let after = std::fs::read_dir(one.directory().unwrap()).unwrap().count();
        assert_eq!(after, file, "the lock was not replaced, so nothing has waited for it");
        drop(lock);
    }

    #[test]
    fn member_stopped_while_binding_port_counts_as_holder() {
        let (_folder, [one, stopped]) = hosts();
        let address = ip("127.0.0.1");
        let mut found = None;
        let bind = || {
            found = Some(one.hold_port(address, || Err::<(), ()>(())));
            Ok::<(), ()>(())
        };
        stopped.hold_port(address, bind).unwrap();
        let holder = PortHolder::Alive(stopped.me());
        assert!(matches!(found, Some(Err(PortRefused::Bind((), of))) if of == holder), "{found:?}");
    }

    #[test]
    fn only_recorded_ports_of_living_members_count() {
        let (_folder, [one, two]) = hosts();
        let mut view = view(&one);
        let mut source = |port: u16, millis| {
            view.follow(at(millis));
            let source = view.source(SocketAddr::new(ip("127.0.0.1"), port), at(millis));
            view.drained();
            source
        };
        assert_eq!(source(40_000, 0), Source::Stranger, "nobody is there");
        two.hold_port(ip("127.0.0.1"), || Ok::<(), ()>(())).unwrap();
        two.record_port("127.0.0.1:40000".parse().unwrap()).unwrap();
        two.record_port("127.0.0.2:50000".parse().unwrap()).unwrap();
        assert_eq!([4791, 40_000].map(|port| source(port, 1)), [Source::Member; 2]);
        assert_eq!([50_000, 1, 4790].map(|port| source(port, 1)), [Source::Forged; 3]);
        two.release_port(ip("127.0.0.1"), None, || {});
        assert_eq!(source(40_000, 2), Source::Member, "what it sent before it left");
        assert_eq!(source(40_000, 3), Source::Stranger, "the sockets have been read empty since");
    }

    #[test]
    fn port_records_of_dead_members_are_ignored() {
        let (_folder, [one, two]) = hosts();
        let from: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        two.record_port(from).unwrap();
        one.record_port("127.0.0.1:40001".parse().unwrap()).unwrap();
        let mut view = view(&one);
        view.follow(at(0));
        assert_eq!(view.source(from, at(0)), Source::Member);
        // The member dies without releasing its port, so the table does not change.
        drop(two);
        view.follow(at(1));
        assert_eq!(view.source(from, at(1)), Source::Forged);
        let other: SocketAddr = "127.0.0.1:40001".parse().unwrap();
        assert_eq!(view.source(other, at(1)), Source::Member);
    }

    #[test]
    fn lock_of_connected_member_is_not_checked_until_connection_ends() {
        let (_folder, [one, two]) = hosts();
        let [here, there] = [&one, &two].map(|host| Members::new(Arc::clone(host)).unwrap());
        let from: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        two.record_port(from).unwrap();
        one.record_port("127.0.0.1:40001".parse().unwrap()).unwrap();
        let mut view = MemberPorts::new(Arc::clone(&here));
        view.follow(at(0));
        assert!(here.connect(two.me()));
        // A check of the lock would find it free.
        let lock = one.directory().unwrap().join(format!("slot-{}", two.me().slot));
        std::fs::remove_file(&lock).unwrap();
        std::fs::File::create(&lock).unwrap();
        let millis = u64::try_from(ALIVE_FOR.as_millis()).unwrap();
        assert_eq!([0, millis, 5 * millis].map(|at_ms| view.source(from, at(at_ms))), [Source::Member; 3]);
        drop(there);
        let mut body = Vec::new();
        while here.receive(0, &mut body) != Some(Received::Lost) {
            std::thread::yield_now();
        }
        assert_eq!(view.source(from, at(6 * millis)), Source::Forged);
    }

    #[test]
    fn last_packets_of_exiting_process_are_accepted() {
        let (_folder, [one, two]) = hosts();
        let from: SocketAddr = "127.0.0.1:4791".parse().unwrap();
        two.hold_port(from.ip(), || Ok::<(), ()>(())).unwrap();
        let mut view = view(&one);
        view.follow(at(0));
        two.ports_end();
        assert_eq!(one.port_holder(from.ip()), PortHolder::Alive(two.me()));
        drop(two);
        view.follow(at(1));
        assert_eq!(view.source(from, at(1)), Source::Member);
        view.follow(at(2));
        view.drained();
        assert_eq!(view.source(from, at(2)), Source::Stranger);
        assert_eq!(one.port_holder(from.ip()), PortHolder::Dead);
    }

    #[test]
    fn last_packets_of_process_exiting_during_batch_are_accepted() {
        let (_folder, [one, two]) = hosts();
        let from: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        two.record_port(from).unwrap();
        one.record_port("127.0.0.1:40001".parse().unwrap()).unwrap();
        let mut view = view(&one);
        view.follow(at(0));
        two.ports_end();
        drop(two);
        assert_eq!(view.source(from, at(0)), Source::Member);
        assert_eq!(view.source(from, at(99)), Source::Member);
        assert_ne!(view.source(from, at(100)), Source::Member, "for a limited time");
    }

    #[test]
    fn last_packets_of_released_port_are_accepted_for_100_ms() {
        let (_folder, [one, two]) = hosts();
        let from: SocketAddr = "127.0.0.1:40000".parse().unwrap();
        two.record_port(from).unwrap();
        let mut view = view(&one);
        view.follow(at(0));
        two.release_port(from.ip(), None, || {});
        let believed = (0..200).take_while(|millis| {
            view.follow(at(*millis));
            view.source(from, at(*millis)) == Source::Member
        });
        assert_eq!(believed.count(), 100);
    }

    #[test]
    fn port_rebound_by_successor_belongs_to_member() {
        let (_folder, [one, two]) = hosts();
        let from: SocketAddr = "[::1]:40000".parse().unwrap();
        two.record_port(from).unwrap();
        let mut view = view(&one);
        view.follow(at(0));
        drop(two);
        one.record_port(from).unwrap();
        for millis in [1, 500, 1000] {
            view.follow(at(millis));
            assert_eq!(view.source(from, at(millis)), Source::Member);
            view.drained();
        }
    }

    #[test]
    fn garbage_in_table_is_read_without_panic() {
        let (_folder, [host]) = hosts();
        let mut view = view(&host);
        for start in [0, 1, u64::MAX, host.me().pack(), host.me().pack() | 77 << 48] {
            host.registry.word64(PORTS.used).store(start, Ordering::Relaxed);
            for index in 0..PORTS.capacity {
                host.registry.write(PORTS.record(index), &[start, start.rotate_left(9), start, start >> 9]);
            }
            let _any = host.port_holder(ip("::1"));
            let _any = host.hold_port(ip("::1"), || Ok::<(), ()>(()));
            host.release_port(ip("::1"), None, || {});
            view.follow(at(0));
            let _any = view.source("[::1]:7".parse().unwrap(), at(0));
        }
    }
}
