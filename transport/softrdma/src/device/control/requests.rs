//! Queue of peers' requests to the connection machine.
//!
//! Any host can send requests. A request costs more than a data packet, because the program has to decide on it and the
//! first shard is delayed. Therefore only [`PER_TICK`] requests are forwarded per tick. Hosts are served in turn, and
//! each may use an eighth of the free places, so that hosts with many requests leave room for others. The senders of a
//! host are served in turn too, because another user of the host may send from another port, or another host of an IPv6
//! network from another address. A request that does not get a place is dropped, and its sender repeats it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_roce::wire::Mad;
use trunkline_verbs::{AddressOwner, PeerHost, PeerView, Time};

/// Interval between ticks, number of requests forwarded per tick, and maximum number forwarded together after a quiet
/// period.
const TICK: Duration = Duration::from_millis(1);
const PER_TICK: u32 = 4;
const BURST: u32 = 256;
/// Maximum number of waiting requests, of about 300 bytes each, and the divisor that gives a host's share of
/// the free places.
const PLACES: usize = 1024;
const HOST_SHARE: usize = 8;
/// Maximum number of places used by one sender, as a multiple of the places still free for its host.
const SENDER_SHARE: usize = 4;

/// A management datagram as it was received.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) is_member: bool,
    pub(super) to: SocketAddr,
    pub(super) view: Option<PeerView>,
    pub(super) mad: Box<Mad>,
}

impl Received {
    /// Returns the host to which a request is attributed. All loopback addresses count as one host, except for requests
    /// from members.
    fn host(&self) -> PeerHost {
        let address = self.from.ip().to_canonical();
        let is_unknown = address.is_loopback() && !self.is_member;
        PeerHost::new(address, if is_unknown { AddressOwner::ThisHost } else { AddressOwner::OtherHost })
    }

    fn repeats(&self, other: &Self) -> bool {
        (self.from, self.to, self.mad.header.transaction)
            == (other.from, other.to, other.mad.header.transaction)
    }
}

/// Requests grouped by key. The keys take turns. Keys without requests are absent.
#[derive(Debug)]
struct Turns<K, Q> {
    queues: BTreeMap<K, Q>,
    /// Keys in the order in which they are served.
    order: VecDeque<K>,
}

impl<K, Q> Default for Turns<K, Q> {
    fn default() -> Self {
        Self { queues: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Copy + Ord, Q: Default> Turns<K, Q> {
    /// Returns the queue to which a request of a key is added.
    fn enter(&mut self, key: K) -> &mut Q {
        let order = &mut self.order;
        self.queues.entry(key).or_insert_with(|| {
            order.push_back(key);
            Q::default()
        })
    }

    /// Takes a request for the next key with `take`, which also returns true if the key's queue is empty afterwards.
    fn next(&mut self, take: impl FnOnce(&mut Q) -> (Option<Received>, bool)) -> Option<Received> {
        let key = self.order.pop_front()?;
        let (request, is_empty) = take(self.queues.get_mut(&key)?);
        if is_empty {
            self.queues.remove(&key);
        } else {
            self.order.push_back(key);
        }
        request
    }
}

/// The waiting requests of a host.
#[derive(Debug, Default)]
struct HostQueue {
    senders: Turns<SocketAddr, VecDeque<Received>>,
    count: usize,
}

impl HostQueue {
    fn next(&mut self) -> Option<Received> {
        self.count -= 1;
        self.senders.next(|queue| (queue.pop_front(), queue.is_empty()))
    }
}

/// Queue of requests.
#[derive(Debug)]
pub(super) struct Requests {
    hosts: Turns<PeerHost, HostQueue>,
    count: usize,
    /// Number of requests that may be forwarded without waiting for the next tick.
    allowance: u32,
    tick: Time,
    dropped: u64,
}

impl Default for Requests {
    fn default() -> Self {
        Self { hosts: Turns::default(), count: 0, allowance: BURST, tick: Time(0), dropped: 0 }
    }
}

impl Requests {
    /// Adds a request. Drops it if it repeats a waiting one, or if its host or its sender has used its share of the places.
    pub(super) fn add(&mut self, request: Received) {
        let host = self.hosts.queues.get(&request.host());
        let of_sender = host.and_then(|host| host.senders.queues.get(&request.from));
        let is_repeated = of_sender.into_iter().flatten().any(|other| other.repeats(&request));
        let held_by_host = host.map_or(0, |host| host.count);
        let free = ((PLACES - self.count) / HOST_SHARE).saturating_sub(held_by_host);
        if is_repeated || of_sender.map_or(0, VecDeque::len) >= free * SENDER_SHARE {
            self.dropped += 1;
            return;
        }
        let host = self.hosts.enter(request.host());
        host.count += 1;
        host.senders.enter(request.from).push_back(request);
        self.count += 1;
    }

    /// Takes the next request, if one may be forwarded now.
    pub(super) fn next(&mut self, now: Time) -> Option<Received> {
        let ticks = now.saturating_duration_since(self.tick).as_nanos() / TICK.as_nanos();
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX).min(BURST);
        self.allowance = (self.allowance + PER_TICK * ticks).min(BURST);
        self.tick = if ticks < BURST { self.tick + TICK * ticks } else { now };
        self.allowance.checked_sub(1)?;
        let request = self.hosts.next(|host| (host.next(), host.count == 0))?;
        (self.count, self.allowance) = (self.count - 1, self.allowance - 1);
        Some(request)
    }

    /// Returns the time at which the next request may be forwarded; `None` if the queue is empty.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        (self.count > 0).then(|| if self.allowance > 0 { self.tick } else { self.tick + TICK })
    }

    /// Returns the number of dropped requests.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use trunkline_roce::wire::MAD_BYTES;

    fn request(host: u8, transaction: u64) -> Received {
        let mut mad = Mad::parse(&[0; MAD_BYTES]);
        mad.header.transaction = transaction;
        // Each of 64 senders of a host sends an equal share of the requests.
        let from = SocketAddr::from(([10, 0, 0, host], 4791 + u16::try_from(transaction % 64).unwrap()));
        let to = ([10, 1, 0, 1], 4791).into();
        Received { from, is_member: false, to, view: None, mad: Box::new(mad) }
    }

    /// Takes all requests that may be forwarded. Returns the last bytes of the senders' addresses.
    fn take(requests: &mut Requests, now: Time) -> Vec<u8> {
        let all = std::iter::from_fn(|| requests.next(now));
        all.map(|request| match request.from.ip() {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(_) => 0,
        })
        .collect()
    }

    #[test]
    fn hosts_take_turns_at_bounded_pace() {
        let (mut requests, now) = (Requests::default(), Time(5_000_000_000));
        let burst = usize::try_from(BURST).unwrap();
        for transaction in 0..80 {
            (1..=4).for_each(|host| requests.add(request(host, transaction)));
        }
        requests.add(request(9, 0));
        assert_eq!(requests.next_timeout(), Some(Time(0)), "at once");
        let first = take(&mut requests, now);
        assert_eq!((&first[..6], first.len()), (&[1, 2, 3, 4, 9, 1][..], burst));
        assert_eq!(requests.next_timeout(), Some(now + TICK));
        assert!(take(&mut requests, now + TICK / 2).is_empty());
        assert_eq!(take(&mut requests, now + TICK).len(), usize::try_from(PER_TICK).unwrap());
        assert_eq!(take(&mut requests, now + 1000 * TICK).len(), 4 * 80 + 1 - burst - 4);
        assert_eq!((requests.next_timeout(), requests.dropped()), (None, 0));
        assert!(requests.hosts.queues.is_empty() && requests.hosts.order.is_empty());
    }

    #[test]
    fn hosts_with_many_requests_leave_places_to_other_hosts() {
        let mut requests = Requests::default();
        for transaction in 0..300 {
            (1..=254).for_each(|host| requests.add(request(host, transaction)));
        }
        assert!(requests.count < PLACES - 2 * HOST_SHARE, "{}", requests.count);
        let dropped = requests.dropped();
        requests.add(request(255, 0));
        assert_eq!(requests.dropped(), dropped, "a newcomer has a place");
        let mut alone = Requests::default();
        (0..300).for_each(|transaction| alone.add(request(1, transaction)));
        assert_eq!(alone.count, 113, "an eighth of the places that are free");
    }

    #[test]
    fn sender_with_many_requests_leaves_places_and_turns_to_other_senders_of_its_host() {
        let (mut requests, now) = (Requests::default(), Time(5_000_000_000));
        let from = |port, transaction| Received {
            from: SocketAddr::from(([10, 0, 0, 1], port)),
            ..request(1, transaction)
        };
        (0..300).for_each(|transaction| requests.add(from(5791, transaction)));
        assert!((80..100).contains(&requests.count), "{}", requests.count);
        let (held, dropped) = (requests.count, requests.dropped());
        (0..3).for_each(|transaction| requests.add(from(4791, transaction)));
        assert_eq!((requests.count, requests.dropped()), (held + 3, dropped));
        let ports = std::iter::from_fn(|| requests.next(now)).map(|request| request.from.port());
        assert_eq!(ports.take(6).collect::<Vec<_>>(), [5791, 4791, 5791, 4791, 5791, 4791]);
    }

    #[test]
    fn waiting_request_is_not_queued_twice() {
        let mut requests = Requests::default();
        (0..3).for_each(|_| requests.add(request(1, 7)));
        requests.add(request(2, 7));
        assert_eq!((requests.count, requests.dropped()), (2, 2));
    }

    #[test]
    fn loopback_addresses_of_other_programs_count_as_one_host() {
        let from = |last, is_member| Received {
            from: SocketAddr::from(([127, 0, 0, last], 4791)),
            is_member,
            ..request(1, last.into())
        };
        assert_eq!(from(1, false).host(), from(2, false).host());
        assert_ne!(from(1, true).host(), from(2, true).host());
    }
}
