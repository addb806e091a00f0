use super::*;
use trunkline_verbs::QpNumber;

/// xorshift64*, seeded from the run's seed.
#[derive(Clone, Copy)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Returns a fate that loses up to 30 % of the messages, repeats up to 20 %, and delays them by up to 200 ms, so that many
/// are reordered.
fn rough(mut random: Random) -> network::Fate {
    let (lost, repeated, delay) = (random.below(31), random.below(21), 1 + random.below(200));
    Box::new(move |_, _, _| {
        let mut arrivals = Vec::new();
        if random.below(100) >= lost {
            arrivals.push(milliseconds(random.below(delay)));
        }
        if random.below(100) < repeated {
            arrivals.push(milliseconds(random.below(4 * delay)));
        }
        arrivals
    })
}

/// Runs one seed, which opens connections and lets either side act at random times.
fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut network = Network::with_fate(rough(Random(random.0 ^ 0xabcd)));
    let transport = if random.below(2) == 0 { Transport::Rc } else { Transport::Xrc };
    let count = 1 + u32::try_from(random.below(4)).unwrap();
    let mut ids: Vec<_> = (0..count).map(|n| network.connect(transport, 0x20 + n)).collect();
    for _ in 0..random.below(6) {
        network.run(milliseconds(random.below(700)));
        let now = network.now;
        let node = usize::try_from(random.below(2)).unwrap();
        let known = if node == A { ids.clone() } else { network.nodes[B].requests() };
        if known.is_empty() {
            continue;
        }
        let id = known[usize::try_from(random.below(64)).unwrap() % known.len()];
        let machine = &mut network.nodes[node].machine;
        match random.below(8) {
            0..=2 => drop(machine.disconnect(now, id, &[])),
            3 => machine.release(now, id),
            4 => machine.communication_established(QpNumber::new(0x101)),
            5 => {
                network.restart(node, seed ^ 0x5555);
                if node == A {
                    ids = vec![network.connect(transport, 0x20)];
                }
            }
            _ => {}
        }
        network.drain();
    }
    // The last messages may all be lost, after which the machine sends nothing further, and only keepalives would detect the
    // difference. So the network becomes lossless, and a node without its peer tries again.
    network.set_fate(Box::new(|_, _, _| vec![milliseconds(1)]));
    network.settle();
    judge(&network, seed);
}

/// Checks, for each node with an established connection, that the peer also has the connection, or that the peer could not
/// report its end and answers a DREQ.
fn judge(network: &Network, seed: u64) {
    for node in &network.nodes {
        for event in &node.events {
            let id = event.connection();
            let names = node.names(id);
            let ends = ["Rejected", "Unreachable", "TimewaitExit", "Established"];
            let is_over = !node.machine.has_connection(id.0);
            assert!(
                is_over || ends.contains(names.last().unwrap()),
                "seed {seed}: {id:?} hangs after {names:?}"
            );
            let established = names.iter().filter(|name| **name == "Established").count();
            assert!(established <= 1, "seed {seed}: {names:?}");
        }
    }
}

#[test]
fn connections_end_or_establish_over_lossy_networks() {
    for seed in 0..3_000 {
        run(seed);
    }
}

/// Without restarts, on a network that loses packets but is never cut, both sides finally agree whether they are connected.
#[test]
fn both_sides_agree_on_connection_over_lossy_network() {
    let mut established = 0;
    for seed in 0..3_000_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut network = Network::with_fate(rough(Random(random.0 ^ 0xabcd)));
        let transport = if random.below(2) == 0 { Transport::Rc } else { Transport::Xrc };
        let id = network.connect(transport, 0x20);
        network.run(milliseconds(random.below(4_000)));
        let ends = random.below(3);
        let now = network.now;
        if ends == 0 {
            let _ = network.nodes[A].machine.disconnect(now, id, &[]);
        } else if ends == 1 {
            for request in network.nodes[B].requests() {
                let _ = network.nodes[B].machine.disconnect(now, request, &[]);
            }
        }
        network.settle();
        let is_up = network.nodes[A].is_established(id);
        let requests = network.nodes[B].requests();
        let up: Vec<_> = requests.iter().filter(|id| network.nodes[B].is_established(**id)).collect();
        // All last messages may be lost. That is rare, because each is sent five times.
        assert_eq!(usize::from(is_up), up.len(), "seed {seed}: {:?}", network.nodes[A].names(id));
        established += up.len();
    }
    assert!(established > 500, "only {established} connections came to be");
}
