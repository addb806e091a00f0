//! The parameters of one run, drawn from its seed.

use crate::random::Random;
use trunkline_roce::engine::Tuning;
use trunkline_roce::wire::Packet;
use trunkline_verbs::Mtu;

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) connections: usize,
    pub(crate) messages: u64,
    pub(crate) mtu: Mtu,
    pub(crate) tuning: Tuning,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) retry_count: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) near_wrap: bool,
    pub(crate) network: Network,
    /// Probability in per mille that a placement, or the bytes of a READ, complete late.
    pub(crate) late_per_mille: u64,
    /// Initial number of receives in an SRQ. `repost_ns` is the time until a used receive is posted again.
    pub(crate) receives: usize,
    pub(crate) repost_ns: u64,
    /// Probability in per mille that a packet may contain the payload of several packets, as between processes of a host; 0
    /// if the network does not carry such packets.
    pub(crate) joined_per_mille: u64,
    /// Probability in per mille that a node pauses, each time it is served.
    pub(crate) pause_per_mille: u64,
    /// Node that is restarted, and the time of the restart in nanoseconds.
    pub(crate) restart: Option<(usize, u64)>,
    /// True if one message of the first connection has a key or SRQ that does not exist.
    pub(crate) refused: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    pub(crate) loss_per_mille: u64,
    pub(crate) duplicate_per_mille: u64,
    pub(crate) corrupt_per_mille: u64,
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
}

impl Plan {
    /// Parses a packet according to the rules of the network.
    pub(crate) fn parse<'a>(&self, bytes: &'a [u8]) -> Packet<'a> {
        let parsed =
            if self.joined_per_mille > 0 { Packet::parse_joined(bytes) } else { Packet::parse(bytes) };
        parsed.expect("what was emitted parses")
    }

    pub(crate) fn draw(random: &mut Random) -> Self {
        let nodes = random.pick(&[2, 2, 3]);
        let rough = random.chance(600);
        let scale = |random: &mut Random, most| if rough { random.below(most) } else { 0 };
        let most_reads = random.pick(&[5, 5, 5, 128]);
        let max_rd_atomic = u8::try_from(random.between(1, most_reads)).expect("small");
        let max_dest =
            u8::try_from(random.between(u64::from(max_rd_atomic), most_reads.max(16))).expect("small");
        let fate = random.below(10);
        let probe_floor_ns = random.pick(&[0, MS, MS, MS, MS, MS]);
        // With the nominal timeouts alone, a bad network would legitimately exhaust the seven retries about once in ten
        // thousand runs.
        let most_loss = if probe_floor_ns == 0 { 40 } else { 150 };
        Self {
            nodes,
            connections: usize::try_from(random.between(1, 4)).expect("small"),
            messages: random.between(1, 24),
            mtu: random.pick(&[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024]),
            tuning: Tuning {
                window: random.between_u32(2, 64),
                ack_every: random.between_u32(1, 32),
                read_piece: random.pick(&[1, 1, 2, 3, 64]),
                read_window: random.between_u32(1, 8),
                probe_floor_ns,
                ..Tuning::default()
            },
            max_rd_atomic,
            max_dest_rd_atomic: max_dest,
            retry_count: 7,
            min_rnr_timer: random.pick(&[1, 6, 10, 12]),
            near_wrap: random.chance(500),
            network: Network {
                loss_per_mille: scale(random, most_loss),
                duplicate_per_mille: scale(random, 100),
                corrupt_per_mille: scale(random, most_loss / 5),
                delay_ns: random.between(US, 50 * US),
                jitter_ns: if rough { random.below(300 * US) } else { random.below(US) },
            },
            late_per_mille: random.pick(&[0, 0, 50, 400]),
            receives: random.pick(&[1, 2, 8, 64]),
            repost_ns: random.between(US, 500 * US),
            joined_per_mille: random.pick(&[0, 0, 500, 1000]),
            pause_per_mille: random.pick(&[0, 0, 5]),
            restart: (fate == 0).then(|| (random.index(nodes), random.between(0, 3 * MS))),
            refused: fate == 1,
        }
    }
}
