//! A trunk, which is one poller's INI to one peer node, with a lane for each of the peer's pollers.
//!
//! A trunk owns all work that is queued, staged, in flight or partly transferred on the INI. The poller creates a
//! trunk when a session comes up, and calls it. A trunk never calls the driver. It queues events for the driver and
//! marks itself for the poller, in the [`Resources`] that each call lends.
//!
//! | file | role |
//! |---|---|
//! | `sending.rs` | from lanes' queues to staged frames |
//! | `pipeline.rs` | from staged frames to posted work and its completions |
//! | `signals.rs` | work requests that are signalled |
//! | `receiving.rs` | checked frames from the peer |
//! | `large.rs`, `rendezvous.rs` | large messages that the receiver READs, on both sides; their records |
//! | `copying.rs` | copies of large messages that the peer may READ |
//! | `timers.rs` | deadlines, keepalives, release of credit |
//! | `ending.rs` | end of a trunk, in two phases |
//! | `lane.rs`, `queue.rs`, `outbound.rs` | state for one of the peer's pollers; message queues; a queued message |
//! | `resources.rs`, `events.rs` | resources shared by all trunks of a poller; events for the driver |
#![forbid(unsafe_code)]

mod copying;
mod ending;
mod events;
mod lane;
mod large;
mod outbound;
mod pipeline;
mod queue;
mod receiving;
pub(crate) mod rendezvous;
mod resources;
mod sending;
mod signals;
mod timers;
#[cfg(not(feature = "identity"))]
mod unsealed;

pub(crate) use ending::destroy_ini;
#[cfg(feature = "identity")]
pub(crate) use ending::not_shared;
#[cfg(feature = "identity")]
pub(crate) use ending::too_large;
pub(crate) use outbound::Outbound;
pub(crate) use pipeline::parse_wr_id;
#[cfg(feature = "identity")]
pub(crate) use pipeline::wr_id;
pub(crate) use queue::{Cancelling, MessageQueue};
pub(crate) use resources::{ReceiveRoom, Resources, SendRoom};
#[cfg(feature = "identity")]
pub(crate) use sending::own_settings;

#[cfg(feature = "identity")]
use crate::PeerEvent;
use crate::PeerIdentity;
use crate::PeerKey;
use crate::PollerIndex;
use crate::budget::Counted;
use crate::buffer::Received;
#[cfg(feature = "identity")]
use crate::command::CmCommand;
use crate::command::SessionUp;
use crate::credit::GrantId;
#[cfg(feature = "identity")]
use crate::identity::keys::RenewedKeys;
#[cfg(feature = "identity")]
use crate::identity::seal::{self, LaneSeal, OVERHEAD, PhaseLimit};
use crate::report::ledger::Spending;
use crate::wire::frame::FrameError;
use crate::wire::settings::Settings;
use ending::Health;
use lane::Lane;
use pipeline::Pipeline;
use rendezvous::{MOST_READS, Sinks, Sources};
use std::sync::Arc;
#[cfg(feature = "identity")]
use std::time::Duration;
use timers::Silence;
use trunkline_verbs::Time;
#[cfg(not(feature = "identity"))]
use unsealed as seal;

/// Maximum number of handshake frames that wait for credit, enough for two exchanges.
#[cfg(feature = "identity")]
const MOST_HANDSHAKE: usize = 24;

/// A trunk of one session.
#[derive(Debug)]
pub(crate) struct Trunk {
    peer: PeerKey,
    /// This node's number for the session.
    number: u32,
    began: Time,
    health: Health,
    /// Lanes, by index of the peer's poller.
    lanes: Vec<Lane>,
    /// The peer's incarnation.
    epoch: u64,
    identity: PeerIdentity,
    /// Last period of ten seconds in which handshake frames arrived, and the number of frames in it.
    #[cfg(feature = "identity")]
    handshakes: (u64, u8),
    /// Keys of a renewal until the lanes switch, and the number of lanes that have switched since the last
    /// renewal, counted per direction.
    #[cfg(feature = "identity")]
    renewed: RenewedKeys,
    #[cfg(feature = "identity")]
    switches: usize,
    /// Settings from the handshake's proof. The peer's SETTINGS frame must equal them.
    bound_settings: Option<Arc<[u8]>>,
    /// Limits from the peer's settings, which are the message and frame size in bytes, and announced messages per lane.
    max_message: usize,
    max_frame: usize,
    large_messages: u32,
    /// Maximum size of a bundle and of a message in a bundle, in bytes; 0 if the peer does not accept bundles.
    max_bundle: usize,
    max_bundled: usize,
    /// True once the messages that waited for the session are queued in the trunk.
    is_open: bool,
    pipeline: Pipeline,
    sources: Sources,
    sinks: Sinks,
    /// Index of the lane that copies next.
    next_copy: usize,
    silence: Silence,
    /// True if only the trunk's keepalive timer runs. The trunk is then not in the poller's list of busy
    /// trunks.
    rests: bool,
    /// True if the trunk is in the poller's list of trunks to stage and post.
    marked: bool,
}

/// Returns the limit of a key phase. It is low in a simulation, because runs are short.
#[cfg(feature = "identity")]
fn phase_limit(res: &Resources) -> PhaseLimit {
    if res.shared.runtime.is_simulated() {
        return PhaseLimit { frames: 1000, time: Duration::from_secs(1) };
    }
    PhaseLimit { frames: 1 << 23, time: Duration::from_secs(600) }
}

impl Trunk {
    /// Returns the credits of each lane, for a ledger.
    pub(crate) fn spending(&self) -> Vec<Spending> {
        let Ok(attributes) = self.pipeline.qp().query() else { return Vec::new() };
        let peer = self.peer;
        let lane = |(poller, lane): (u16, &Lane)| {
            let [granted, released, sent] = lane.spender.positions();
            Spending { peer, target: attributes.destination_qp, poller, granted, released, sent }
        };
        (0..).zip(&self.lanes).map(lane).collect()
    }

    /// Creates the trunk of a session that came up, for place `slot` in the poller's table. The pairs belong to the
    /// TGTs of the peer's pollers, in the order of these pollers.
    pub(crate) fn new(
        res: &mut Resources,
        session: SessionUp,
        slot: usize,
        pairs: impl Iterator<Item = (PollerIndex, GrantId)>,
    ) -> Self {
        #[cfg(feature = "identity")]
        let (overhead, renewed, mut seals) = match session.keys {
            None => (0, RenewedKeys::default(), None),
            Some(keys) => (OVERHEAD, keys.renewed, Some(keys.lanes.into_iter())),
        };
        #[cfg(feature = "identity")]
        assert!(
            seals.is_some() || !matches!(session.identity, PeerIdentity::Proven(_)),
            "a session with a proved name has keys"
        );
        #[cfg(not(feature = "identity"))]
        let overhead = 0;
        let SessionUp { peer, number, srqs, .. } = session;
        res.probe_ms = 0;
        let mut lane = |(srq, (poller, pair))| {
            let counters = res.shared.traffic.lane(peer, res.index, poller);
            #[cfg(not(feature = "identity"))]
            let seal = None;
            #[cfg(feature = "identity")]
            let seal = seals.as_mut().map(|seals| {
                let secrets = seals.next().expect("each lane has secrets");
                Box::new(LaneSeal::new(secrets, phase_limit(res), res.time.now()))
            });
            Lane::new(srq, pair, counters, res.time.now_ms(), seal)
        };
        Self {
            peer,
            number,
            began: res.time.now(),
            health: Health::Live,
            lanes: srqs.into_iter().zip(pairs).map(&mut lane).collect(),
            epoch: session.epoch,
            identity: session.identity,
            #[cfg(feature = "identity")]
            handshakes: (0, 0),
            bound_settings: session.settings,
            #[cfg(feature = "identity")]
            renewed,
            #[cfg(feature = "identity")]
            switches: 0,
            max_message: 0,
            max_frame: 0,
            large_messages: 0,
            max_bundle: 0,
            max_bundled: 0,
            is_open: false,
            pipeline: Pipeline::new(session.qp, slot, overhead),
            sources: Sources::new(),
            sinks: Sinks::new(u32::from(session.read_depth).clamp(1, MOST_READS)),
            next_copy: 0,
            silence: Silence::new(res.time.now_ms(), session.is_accepted),
            rests: true,
            marked: false,
        }
    }

    /// Records that the peer has proved its names again. Each lane switches to the keys of this exchange.
    #[cfg(feature = "identity")]
    pub(crate) fn renewed(&mut self, res: &mut Resources, identity: PeerIdentity, exchange: u32) {
        self.identity = identity.clone();
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let Some((seal, secret)) = lane.seal.as_mut().zip(self.renewed.take_seals(at)) else { continue };
            seal.renew(secret);
            lane.switch = Some(exchange);
            lane.last = None;
            lane.begin_to_wait(res.time.now_ms());
        }
        self.mark(res);
        if self.is_live() && self.settings().is_some() {
            res.events.peer(self.peer, PeerEvent::Renewed { identity });
        }
    }

    /// Queues a handshake frame in the lane of the peer's poller 0.
    #[cfg(feature = "identity")]
    pub(crate) fn send_handshake(&mut self, res: &mut Resources, frame: Box<[u8]>) {
        if let Some(lane) = self.lanes.first_mut().filter(|lane| lane.handshake.len() < MOST_HANDSHAKE) {
            lane.begin_to_wait(res.time.now_ms());
            lane.last = None;
            lane.handshake.push_back(frame);
            self.mark(res);
        }
    }

    /// Counts a lane that has switched to the keys of a renewal in one direction.
    #[cfg(feature = "identity")]
    fn switched(&mut self, res: &Resources) {
        self.switches += 1;
        if self.switches == 2 * self.lanes.len() {
            self.switches = 0;
            res.shared.cm.command(CmCommand::Switched { peer: self.peer, number: self.number });
        }
    }

    /// Decrypts a frame from the peer's poller `lane` in place, if the session is sealed.
    ///
    /// # Errors
    /// Returns an error if the frame is not the next one that the peer sealed.
    #[inline]
    pub(crate) fn open_frame(
        &mut self,
        lane: usize,
        frame: &mut Received,
        now: Time,
    ) -> Result<(), FrameError> {
        if let Some(seal) = self.lanes.get_mut(lane).and_then(|lane| lane.seal.as_mut()) {
            let length = seal.open(frame.as_mut(), now)?;
            frame.truncate(length);
        }
        Ok(())
    }

    /// Returns the trunk's creation time.
    pub(crate) fn began(&self) -> Time {
        self.began
    }

    pub(crate) fn peer(&self) -> PeerKey {
        self.peer
    }

    /// Returns this node's number for the session.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the maximum size of a message that the peer accepts; 0 until its settings arrive.
    pub(crate) fn max_message(&self) -> usize {
        self.max_message
    }

    /// Returns the number of the peer's pollers.
    pub(crate) fn pollers(&self) -> u32 {
        u32::try_from(self.lanes.len()).unwrap_or(u32::MAX)
    }

    /// Returns true if the trunk accepts messages, both those that waited for the session and later ones.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns true if the peer's settings have arrived since [`Trunk::is_open`] was `false`.
    pub(crate) fn is_newly_open(&self) -> bool {
        !self.is_open && self.is_live() && self.settings().is_some()
    }

    /// Opens the trunk, so that messages for the session are queued in it.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    /// Starts the lanes, so that this node's settings are sent at the next push.
    pub(crate) fn begin(&mut self, res: &mut Resources) {
        self.mark(res);
    }

    /// Returns the peer's settings, once received on any lane.
    fn settings(&self) -> Option<Settings> {
        self.lanes.iter().find_map(|lane| lane.heard)
    }

    /// Counts the resources that the peer holds.
    pub(crate) fn count(&self, counted: &mut Counted) {
        for lane in &self.lanes {
            counted.queued(self.peer, lane.waiting());
        }
        counted.pinned(self.peer, self.sources.size());
        counted.announced(self.peer, self.sinks.len());
    }

    /// Returns true if there are neither queued messages nor work in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pipeline.is_empty()
            && self.sources.is_empty()
            && self.sinks.is_empty()
            && self.lanes.iter().all(Lane::is_empty)
    }

    /// Returns true if bytes of large messages are being sent or received.
    pub(crate) fn is_transferring(&self) -> bool {
        self.sinks.is_reading() || !self.sources.is_empty()
    }

    /// Returns true if the trunk awaits an acknowledgement. The acknowledgements of requests and replies are not
    /// awaited, since the peer answers or the device reports a failure.
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        !self.is_live() || !self.is_open || self.is_waiting() || self.pipeline.awaits_acknowledgement()
    }

    /// Adds the trunk to the poller's list of trunks to stage and post.
    fn mark(&mut self, res: &mut Resources) {
        if !self.marked {
            self.marked = true;
            res.marked.add(self.pipeline.slot());
            self.keep_busy(res);
        }
    }
}
