//! A peer with a valid certificate that READs memory that was not announced to it.
//!
//! Meanwhile another peer exchanges large messages with the same node. The READs of the other peer are withheld, so
//! its message stays announced while the hostile peer guesses.

use crate::common::{ECHO, Happened, Job, KEEP, LIMIT, TestNode, pattern};
use crate::identity::{Authority, authority, issue};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_softrdma::device::{LinkChoice, LinkFactory, SoftOptions};
use trunkline_softrdma::link::{Datagram, Hub, InProcessLink, Link, LinkError, ReceiveBatch, SendBatch};
use trunkline_testkit::{Guess, GuessedReads, ReadSource, wait_until};
use trunkline_transport::identity::Level;
use trunkline_transport::{NodeOptions, PeerEvent, ProviderChoice};
use trunkline_verbs::{Counter, Time};

const CANARY: &[u8] = b"canary of another peer. ";
/// Size of the other peer's messages, in bytes.
const LARGE: usize = 1 << 20;
/// Size of the hostile peer's own messages, and thus of its READs, in bytes.
const READ: usize = 20 << 10;
/// Number of pollers of the hostile peer. Each has a connection, and a session allows one guess per
/// connection.
const POLLERS: u16 = 16;

/// Changes to the READs of a peer.
#[derive(Debug)]
enum Reads {
    Unchanged,
    /// READ requests are dropped, and the first one is recorded.
    Withheld(Option<ReadSource>),
    Guessed(GuessedReads),
}

/// A link that changes a peer's READs.
#[derive(Debug)]
struct ReadsLink {
    link: InProcessLink,
    reads: Arc<Mutex<Reads>>,
}

fn lock(reads: &Mutex<Reads>) -> MutexGuard<'_, Reads> {
    reads.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link for ReadsLink {
    fn name(&self) -> &'static str {
        "changed reads"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        self.link.open(address)
    }

    fn close(&mut self, address: IpAddr) {
        self.link.close(address);
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        self.link.mtu(address)
    }

    fn send(&mut self, batch: &mut SendBatch, now: Time) {
        let mut changed = SendBatch::new();
        for datagram in batch.iter() {
            let Datagram { source, destination, bytes } = datagram;
            let replaced = match &mut *lock(&self.reads) {
                Reads::Unchanged => None,
                Reads::Withheld(first) => ReadSource::requested_by(bytes).map(|asked| {
                    first.get_or_insert(asked);
                    Vec::new()
                }),
                Reads::Guessed(guessed) => guessed.outgoing(source, destination, bytes),
            };
            match replaced {
                None => changed.push(datagram),
                Some(packets) => {
                    for bytes in &packets {
                        changed.push(Datagram { source, destination, bytes });
                    }
                }
            }
        }
        batch.clear();
        self.link.send(&mut changed, now);
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        let count = self.link.receive(batch);
        if let Reads::Guessed(guessed) = &mut *lock(&self.reads) {
            batch.iter().for_each(|datagram| guessed.incoming(datagram.bytes));
        }
        count
    }

    fn arm(&mut self) -> bool {
        self.link.arm()
    }

    fn has_arrivals(&self) -> bool {
        self.link.has_arrivals()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.link.fds()
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        self.link.counters(into);
    }
}

/// A network in this process with a node, its peer and hostile peers.
struct Network {
    hub: Arc<Hub>,
    /// `None` for sessions without encryption.
    root: Option<Authority>,
    given: u8,
}

impl Network {
    fn options(&mut self, name: &str, reads: Option<&Arc<Mutex<Reads>>>) -> NodeOptions {
        self.given += 1;
        let address = SocketAddr::from(([127, 80, 0, self.given], 1000));
        let hub = Arc::clone(&self.hub);
        let link = match reads.cloned() {
            None => LinkChoice::InProcess(hub),
            Some(reads) => LinkChoice::Custom(LinkFactory::new(move || {
                Ok(Box::new(ReadsLink { link: hub.link()?, reads: Arc::clone(&reads) }))
            })),
        };
        let device = SoftOptions { addresses: vec![address.ip()], link, ..SoftOptions::default() };
        let options = NodeOptions::new()
            .listen(address)
            .provider(ProviderChoice::Soft)
            .device(device)
            .session_loss_time(Duration::from_secs(60));
        match &self.root {
            None => options,
            Some(root) => options.credentials(issue(root, root, name, 4000)).exempt_local_user(false),
        }
    }
}

/// Results of guesses.
#[derive(Debug, Default)]
struct Results {
    refused: usize,
    served: usize,
    canaries: usize,
}

/// Guesses keys and addresses of a node that exchanges large messages with another peer.
fn guess(level: Level, mut guesses: Vec<Guess>) -> Results {
    let root = (level != Level::None).then(|| authority("root"));
    let mut network = Network { hub: Hub::new(), root, given: 0 };
    let canary = CANARY.iter().copied().cycle().take(LARGE).collect::<Vec<_>>();
    let others = Arc::new(Mutex::new(Reads::Unchanged));
    let mut node = TestNode::start(network.options("node.example", None), 1);
    let mut other = TestNode::start(network.options("other.example", Some(&others)), 1);
    let its_node = other.connect(0, node.address);
    // The node also holds a canary that it has received.
    other.send(0, its_node, &[KEEP], canary.clone().into(), 1);
    node.wait("a message is kept", |_, event| matches!(event, Happened::Kept(_)).then_some(()));
    other.send(0, its_node, b"hello", b"".as_slice().into(), 2);
    let (origin, _) = node.message();
    let mut results = Results::default();
    for round in 0.. {
        *lock(&others) = Reads::Withheld(None);
        node.job(0, Job::Answer { to: origin, head: canary.clone(), token: 1 });
        let known = wait_until("the other peer READs", LIMIT, || match &*lock(&others) {
            Reads::Withheld(first) => *first,
            _ => None,
        });
        let awaited = usize::from(POLLERS).min(guesses.len());
        let reads = Arc::new(Mutex::new(Reads::Unchanged));
        let mut hostile = TestNode::start(network.options("hostile.example", Some(&reads)), POLLERS);
        let peers =
            (0..POLLERS.into()).map(|poller| hostile.connect(poller, node.address)).collect::<Vec<_>>();
        *lock(&reads) = Reads::Guessed(GuessedReads::new(awaited, std::mem::take(&mut guesses), known));
        for (poller, peer) in peers.into_iter().enumerate() {
            hostile.send(poller, peer, &[ECHO], pattern(READ, 3), 1);
        }
        wait_until("the guesses are answered, or the session has ended", LIMIT, || {
            let mut events = std::iter::from_fn(|| hostile.try_event().ok());
            let is_down = events.any(|(_, event)| matches!(event, Happened::Peer(_, PeerEvent::Down { .. })));
            let Reads::Guessed(guessed) = &*lock(&reads) else { return None };
            (is_down || guessed.is_answered()).then_some(())
        });
        drop(hostile);
        let Reads::Guessed(mut guessed) = std::mem::replace(&mut *lock(&reads), Reads::Unchanged) else {
            unreachable!("nothing else replaces it");
        };
        guesses = guessed.take_left();
        assert!(round < 200, "{} guesses have no answer", guesses.len());
        results.refused += guessed.refused;
        results.served += guessed.served;
        results.canaries += guessed.bytes.windows(CANARY.len()).filter(|bytes| *bytes == CANARY).count();
        // After a message the node requests the withheld bytes again.
        *lock(&others) = Reads::Unchanged;
        other.send(0, its_node, b"again", b"".as_slice().into(), 3);
        assert!(other.message().1 == canary, "the message was announced all the time");
        if guesses.is_empty() {
            break;
        }
    }
    results
}

/// Returns guesses with the key and the address given to the other peer. Only the other peer's packets contain them.
fn known() -> impl Iterator<Item = Guess> {
    [0, 4096, 64 << 10, 512 << 10, 900 << 10].into_iter().map(|address_step| Guess {
        other_key: true,
        other_address: true,
        address_step,
        ..Guess::OWN
    })
}

/// Returns guesses derived from the keys and addresses given to a peer, and from the other peer's address.
fn derived() -> impl Iterator<Item = Guess> {
    let near = (1..=150_u32).flat_map(|step| [step, step.wrapping_neg()]);
    let far = (2..=20).map(|step| step << 8).chain((0..32).map(|bit| 1 << bit));
    let keys = near.chain(far).map(|key_step| Guess { key_step, ..Guess::OWN });
    let steps = [1_u64, 32, 4096, 20 << 10, 32 << 10, 64 << 10, 1 << 20];
    let addresses = steps.into_iter().flat_map(|step| [step, step.wrapping_neg()]);
    let addresses = addresses.map(|address_step| Guess { address_step, ..Guess::OWN });
    let of_other = [0, 4096].map(|address_step| Guess { other_address: true, address_step, ..Guess::OWN });
    let by_its_key = Guess { other_key: true, ..Guess::OWN };
    keys.chain(addresses).chain(of_other).chain([by_its_key])
}

#[test]
fn derived_rkeys_do_not_read_sealed_messages_of_other_peers() {
    let guesses = derived().chain(known()).collect::<Vec<_>>();
    let all = guesses.len();
    let results = guess(Level::Encrypted, guesses);
    assert_eq!(
        (results.served, results.refused, results.canaries),
        (known().count(), all - known().count(), 0)
    );
}

#[test]
fn known_key_reads_message_of_session_in_clear() {
    let results = guess(Level::None, known().collect());
    assert_eq!((results.served, results.refused), (known().count(), 0));
    assert!(results.canaries > 1000, "{results:?}");
}
