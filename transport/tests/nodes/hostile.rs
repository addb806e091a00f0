//! A peer that completes the handshake and then sends malformed frames. The peer loses its session, and the node
//! continues to serve other peers.
//!
//! The peer is built directly on verbs, so the bytes here also fix the layouts of the handshake and of frames.

use crate::common;
use crate::common::{ACCEPTED, ECHO, HEADER, Job, LIMIT, REFUSED, TestNode, fresh_address, over_udp};
use bytes::Bytes;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Instant;
use trunkline_softrdma::device::{Slot, SoftDevice, SoftOptions};
use trunkline_testkit::frame::{self, ANNOUNCES, CREDIT, CRITICAL, FIN, FIRST_GRANT, SETTINGS};
use trunkline_testkit::{HandMadePeer, Hello, first_srq, post_frame, wait_until};
use trunkline_transport::{Connections, PeerDown, PeerEvent, ProviderChoice};
use trunkline_verbs::{
    Access, CmChannel, CmEventKind, CmId, Completion, ConnectParameters, Memory, MemoryRegion, QpInit,
    QpModify, QpType, QueuePair, ReceiveRequest, SendData, Sge, SharedReceiveQueue, SrqInit, SrqKind,
    SrqNumber, XrcDomain, XrcdFlags,
};

const EPOCH: u64 = 0x1234;

/// Number of the peer's receives, and their length.
const RECEIVES: usize = 16;
const RECEIVE_BYTES: usize = 4096;
/// Work request number of the first receive.
const FIRST_RECEIVE: u64 = 100;
/// Maximum number of sends in flight.
const SENDS: u32 = 32;

/// A peer with an INI to the node and TGTs from it, or with RC QPs in their place.
struct RawPeer {
    dialer: HandMadePeer,
    listener: Arc<dyn CmId>,
    /// `None` over RC.
    xrcd: Option<Arc<dyn XrcDomain>>,
    srq: Arc<dyn SharedReceiveQueue>,
    ini: Arc<dyn QueuePair>,
    ids: Vec<Arc<dyn CmId>>,
    node_srq: SrqNumber,
    /// Number of pollers of the node.
    pollers: u8,
    memory: Arc<Memory>,
    region: Arc<dyn MemoryRegion>,
    /// Credit granted by the node, messages that have used credit, and sends in flight.
    granted: Cell<u16>,
    used: Cell<u16>,
    sending: Cell<u32>,
    received: Cell<u32>,
    broken: Cell<bool>,
}

impl RawPeer {
    fn connect(node: SocketAddr) -> Self {
        Self::connect_over(QpType::XrcIni, node)
    }

    /// Connects, and sends its settings to each poller. `sending` is the type of its INI.
    fn connect_over(sending: QpType, node: SocketAddr) -> Self {
        let peer = Self::connect_silent(sending, node);
        for poller in 0..peer.pollers {
            peer.send(&with(frame::build(SETTINGS, 0, 0, &settings()), 7, &[poller]));
        }
        peer
    }

    /// Connects, waits until the node has begun each lane, and sends nothing.
    fn connect_silent(sending: QpType, node: SocketAddr) -> Self {
        let mut peer = Self::dial_over(sending, node);
        peer.finish(true);
        let until = Instant::now() + LIMIT;
        while peer.received.get() < u32::from(peer.pollers) {
            assert!(Instant::now() < until, "the node sends no settings");
            peer.poll();
        }
        peer
    }

    /// Connects its INI, and leaves the node's dial-backs unanswered.
    fn connect_one_way(sending: QpType, node: SocketAddr) -> Self {
        let mut peer = Self::dial_over(sending, node);
        peer.finish(false);
        peer
    }

    fn dial_over(sending: QpType, node: SocketAddr) -> Self {
        let is_rc = sending == QpType::Rc;
        let receiving = if is_rc { QpType::Rc } else { QpType::XrcTgt };
        let ip = fresh_address().ip();
        let device = SoftDevice::open(SoftOptions { addresses: vec![ip], ..SoftOptions::default() }).unwrap();
        let dialer = HandMadePeer::new(device, ip).unwrap();
        let listener = dialer.listen(0, receiving, &dialer.channel).unwrap();
        let HandMadePeer { device, cq, pd, .. } = &dialer;
        let xrcd = (!is_rc).then(|| device.open_xrcd(None, XrcdFlags::CREATE).unwrap());
        let kind = xrcd.clone().map_or(SrqKind::Basic, |xrcd| SrqKind::Xrc { xrcd, cq: Arc::clone(cq) });
        let srq = SrqInit { pd: Arc::clone(pd), kind, max_wr: 16, max_sge: 1, context: 0 };
        let srq = device.create_srq(srq).unwrap();
        let memory = Memory::zeroed(RECEIVES * RECEIVE_BYTES).unwrap();
        let region = pd.register(Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        // The first request contains no cookie, so it is refused with one.
        let hello = Hello { is_rc, ..Hello::new(listener.local_address().port(), EPOCH) };
        let _refused = dialer.dial(node, &hello).unwrap();
        let cookie = take_cookie(&*dialer.channel);
        let (id, ini) = dialer.dial(node, &Hello { cookie, ..hello }).unwrap();
        let peer = Self {
            dialer,
            listener,
            xrcd,
            srq,
            ini,
            ids: vec![id],
            node_srq: SrqNumber::new(0),
            pollers: 0,
            memory,
            region,
            granted: Cell::new(FIRST_GRANT),
            used: Cell::new(0),
            sending: Cell::new(0),
            received: Cell::new(0),
            broken: Cell::new(false),
        };
        (0..RECEIVES).for_each(|slot| peer.receive(slot));
        peer
    }

    /// Waits until its own connection is up. If `answers` is true, it accepts the dial-backs, one per poller of the
    /// node, and waits for their connections.
    fn finish(&mut self, answers: bool) {
        let (until, mut established, mut expected) = (Instant::now() + LIMIT, 0, 2);
        while established < expected {
            assert!(Instant::now() < until, "no session");
            let Some(event) = self.dialer.channel.next_event() else {
                std::thread::yield_now();
                continue;
            };
            match event.kind {
                CmEventKind::ConnectRequest { id, .. } if !answers => self.ids.push(id),
                CmEventKind::ConnectRequest { id, parameters } => {
                    let tgt = match &self.xrcd {
                        Some(xrcd) => QpInit { xrcd: Some(Arc::clone(xrcd)), ..QpInit::new(QpType::XrcTgt) },
                        None => QpInit {
                            pd: Some(Arc::clone(&self.dialer.pd)),
                            send_cq: Some(Arc::clone(&self.dialer.cq)),
                            receive_cq: Some(Arc::clone(&self.dialer.cq)),
                            srq: Some(Arc::clone(&self.srq)),
                            ..QpInit::new(QpType::Rc)
                        },
                    };
                    let tgt = self.dialer.device.create_qp(tgt).unwrap();
                    id.attach(Arc::clone(&tgt)).unwrap();
                    let access = Some(Access::REMOTE_READ | Access::REMOTE_WRITE);
                    tgt.modify(&QpModify { access, ..QpModify::default() }).unwrap();
                    let mut welcome = b"TRNK\x05\x00\x05\x01".to_vec();
                    welcome.extend(EPOCH.to_be_bytes());
                    welcome.extend(1u32.to_be_bytes());
                    // The UDP port, and two reserved bytes.
                    welcome.extend([0; 4]);
                    welcome.extend(self.srq.number().map_or(0, SrqNumber::get).to_be_bytes());
                    let responder_resources = parameters.responder_resources;
                    let answer = ConnectParameters {
                        private_data: welcome,
                        responder_resources,
                        ..Default::default()
                    };
                    id.accept(&answer).unwrap();
                    self.ids.push(id);
                }
                CmEventKind::Established => {
                    established += 1;
                    if event.id == self.ids[0].number() {
                        self.pollers = event.private_data[7];
                        expected = if answers { 1 + u32::from(self.pollers) } else { 1 };
                        self.node_srq = first_srq(&event.private_data);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(self.listener.peer_address().is_none());
    }

    fn send(&self, frame: &[u8]) {
        self.post(SendData::Inline(frame));
        self.poll();
    }

    fn post(&self, data: SendData<'_>) {
        post_frame(&*self.ini, self.node_srq, data).unwrap();
        self.sending.set(self.sending.get() + 1);
    }

    /// Sends a frame too long to be posted inline, and waits until it is acknowledged.
    fn send_long(&self, frame: &[u8]) {
        let memory = Memory::zeroed(frame.len()).unwrap();
        memory.write(0, frame).unwrap();
        let region = self.dialer.pd.register(Arc::clone(&memory), Access::empty()).unwrap();
        let length = u32::try_from(frame.len()).unwrap();
        let sge = [Sge { address: memory.address(0), length, lkey: region.lkey() }];
        self.post(SendData::Gather(&sge));
        self.finish_sends();
    }

    /// Waits until all sends are acknowledged.
    fn finish_sends(&self) {
        let until = Instant::now() + LIMIT;
        while self.sending.get() > 0 {
            assert!(Instant::now() < until, "a send does not complete");
            self.poll();
        }
    }

    fn receive(&self, slot: usize) {
        let address = self.memory.address(slot * RECEIVE_BYTES);
        let length = u32::try_from(RECEIVE_BYTES).unwrap();
        let scatter = [Sge { address, length, lkey: self.region.lkey() }];
        self.srq
            .post_receive(&[ReceiveRequest { wr_id: FIRST_RECEIVE + slot as u64, scatter: &scatter }])
            .unwrap();
    }

    /// Lets the device make progress on this thread, and records the node's grants.
    fn poll(&self) {
        let mut completions = [Completion::default(); 16];
        let count = self.dialer.cq.poll(&mut completions);
        for completion in &completions[..count] {
            if completion.wr_id < FIRST_RECEIVE {
                self.sending.set(self.sending.get() - 1);
                self.broken.set(self.broken.get() || !completion.status.is_success());
            } else if completion.status.is_success() {
                let slot = usize::try_from(completion.wr_id - FIRST_RECEIVE).unwrap();
                self.received.set(self.received.get() + 1);
                let mut grant = [0; 2];
                self.memory.read(slot * RECEIVE_BYTES + 4, &mut grant).unwrap();
                self.granted.set(u16::from_le_bytes(grant));
                self.receive(slot);
            }
        }
    }

    /// Returns the credit that is left.
    fn left(&self) -> u16 {
        self.granted.get().wrapping_sub(FIRST_GRANT - 1).wrapping_sub(self.used.get())
    }

    /// Sends like an honest peer, when the needed `credit` is granted and there is room. Returns false once the
    /// session has ended.
    fn send_politely(&self, frame: &[u8], credit: u16) -> bool {
        let until = Instant::now() + LIMIT;
        loop {
            let ended = self
                .dialer
                .channel
                .next_event()
                .is_some_and(|event| matches!(event.kind, CmEventKind::Disconnected { .. }));
            self.broken.set(self.broken.get() || ended);
            if self.broken.get() {
                return false;
            }
            if self.left() >= credit && self.sending.get() < SENDS {
                self.used.set(self.used.get() + credit);
                self.send(frame);
                return true;
            }
            assert!(Instant::now() < until, "no credit and no end");
            self.poll();
            std::thread::yield_now();
        }
    }
}

/// Waits for the cookie in the refusal of a request.
fn take_cookie(channel: &dyn CmChannel) -> [u8; 16] {
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until, "no cookie");
        let Some(event) = channel.next_event() else {
            std::thread::yield_now();
            continue;
        };
        assert!(matches!(event.kind, CmEventKind::Rejected(_)), "{:?}", event.kind);
        assert_eq!(event.private_data[..8], *b"TRNK\x05\x0b\x05\0");
        return Hello::cookie_in(&event.private_data).unwrap();
    }
}

const MESSAGE: u8 = HEADER.kind;

/// Returns the peer's settings, which are limits on messages, frames and announced messages.
fn settings() -> Vec<u8> {
    let mut out = vec![1, 0, 8, 0];
    out.extend((1u64 << 20).to_le_bytes());
    out.extend([2, 0, 4, 0]);
    out.extend(4096u32.to_le_bytes());
    out.extend([3, 0, 4, 0]);
    out.extend(64u32.to_le_bytes());
    out
}

/// Builds a message in the form of the tests' nodes.
fn message(payload: &[u8]) -> Vec<u8> {
    frame::build(MESSAGE, 0, HEADER.word, payload)
}

/// Builds the announcement of a message.
fn announcing(payload: &[u8]) -> Vec<u8> {
    frame::build(MESSAGE, ANNOUNCES, HEADER.word, payload)
}

fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Builds a rendezvous request for memory that does not exist.
fn request(body: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for field in [7, body, 0x1000] {
        out.extend(u64::to_le_bytes(field));
    }
    out.extend([0; 8]);
    out
}

/// Builds a rendezvous request with a head that exceeds the maximum.
fn with_long_head() -> Vec<u8> {
    let mut payload = request(5000);
    payload.resize(payload.len() + 4097, 0);
    announcing(&payload)
}

#[test]
fn malformed_frame_ends_only_its_session() {
    let mut node = TestNode::start(over_udp(), 1);
    let honest = message(b"hello");
    let rows: [(&str, Vec<u8>); 8] = [
        ("settings twice", frame::build(SETTINGS, 0, 0, &settings())),
        ("poller that there is not", with(honest.clone(), 7, &[1])),
        ("a few bytes", vec![1, 2, 0]),
        ("grant of nonsense", with(honest.clone(), 4, &(FIRST_GRANT - 1).to_le_bytes())),
        ("credit given back that was never there", frame::build(CREDIT, 0, 2, &[])),
        ("FIN for nothing", frame::build(FIN, 0, 1, &[0; 16])),
        ("rendezvous beyond all size", announcing(&request(u64::MAX))),
        ("rendezvous without memory", announcing(&request(5000))),
    ];
    for (what, nonsense) in rows {
        let peer = RawPeer::connect(node.address);
        let key = node.up();
        peer.send(&nonsense);
        let cause = node.down(key);
        let refused = matches!(cause, PeerDown::Misbehaved(_));
        assert!(refused || what == "rendezvous without memory", "{what}: {cause}");
    }
    let peer = RawPeer::connect(node.address);
    let key = node.up();
    peer.send_long(&with_long_head());
    let cause = node.down(key);
    assert!(matches!(cause, PeerDown::Misbehaved(why) if why.contains("head")), "{cause}");
    let peer = RawPeer::connect(node.address);
    node.up();
    peer.send(&honest);
    let heard = std::iter::repeat_with(|| node.message().1).find(|bytes| &bytes[..] == b"hello");
    assert!(heard.is_some());
    let mut client = TestNode::start(over_udp(), 1);
    let key = client.connect(0, node.address);
    client.send(0, key, &[ECHO], Bytes::from_static(b"still there"), 1);
    assert_eq!(&client.message().1[..], b"!still there");
}

/// Frames of kinds that a later version may define. Most are ignored, and critical ones end the session.
#[test]
fn unknown_kinds_of_frames_are_counted_or_end_session() {
    let mut node = TestNode::start(over_udp(), 1);
    let peer = RawPeer::connect(node.address);
    let key = node.up();
    assert!(peer.send_politely(&frame::build(0x0c, 0, 7, b"of a later version"), 1));
    assert!(peer.send_politely(&message(b"hello"), 1));
    assert_eq!(&node.message().1[..], b"hello");
    assert_eq!(node.report().counter("frames_of_unknown_kind"), Some(1));
    assert!(peer.send_politely(&frame::build(0x0d, CRITICAL, 0, &[]), 1));
    assert_eq!(node.down(key), PeerDown::UnknownFrame(0x0d));
    // The node has no identity, so it does not accept handshake frames.
    let peer = RawPeer::connect(node.address);
    let key = node.up();
    assert!(peer.send_politely(&frame::build(0x05, CRITICAL, 0, &[0; 12]), 1));
    assert_eq!(node.down(key), PeerDown::UnknownFrame(0x05));
}

/// Builds the announcement of one byte of a peer's memory.
fn announcement(peer: &RawPeer, id: u64, part: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in [id, 1, peer.memory.address(0).0] {
        out.extend(u64::to_le_bytes(field));
    }
    out.extend(peer.region.rkey().0.to_le_bytes());
    out.extend(1000u32.to_le_bytes());
    out.extend(part);
    announcing(&out)
}

/// Each message is READ and passed on, or refused, but the peer grants no credit for the FINs.
#[test]
fn announcements_of_peer_without_grants_are_bounded() {
    for (mut node, part) in
        [(TestNode::start(over_udp(), 1), &[][..]), (TestNode::start_screening(over_udp()), &[REFUSED])]
    {
        let peer = RawPeer::connect(node.address);
        let key = node.up();
        let sent = (0..500).take_while(|&id| peer.send_politely(&announcement(&peer, id, part), 1)).count();
        assert!(sent < 500, "all were taken");
        assert!(matches!(node.down(key), PeerDown::Misbehaved(_)));
        wait_until("nothing is announced", LIMIT, || (node.announced() == 0).then_some(()));
    }
}

#[test]
fn announcements_of_ended_session_are_forgotten() {
    let mut node = TestNode::start_screening(over_udp());
    for part in [&[REFUSED][..], &[ACCEPTED], &[]] {
        let peer = RawPeer::connect(node.address);
        let key = node.up();
        // The announced memory does not exist, so READing it also ends the session.
        let absent = with(announcement(&peer, 7, part), 8 + 16, &0x1000u64.to_le_bytes());
        let sent = (0..3).take_while(|_| peer.send_politely(&absent, 1)).count();
        if sent == 3 {
            peer.send_politely(&frame::build(FIN, 0, 1, &[0; 16]), 1);
        }
        node.down(key);
        wait_until("nothing is announced", LIMIT, || (node.announced() == 0).then_some(()));
    }
    let mut client = TestNode::start(over_udp(), 1);
    let key = client.connect(0, node.address);
    client.send(0, key, &[ECHO], Bytes::from(vec![1; 100_000]), 1);
    assert_eq!(client.message().1.len(), 100_001);
}

/// Keeps the first poller busy until a value is sent.
fn keep_busy(node: &TestNode) -> mpsc::Sender<()> {
    let ((busy, begun), (release, wait)) = (mpsc::sync_channel(0), mpsc::channel());
    node.job(0, Job::Wait(begun));
    node.job(0, Job::Wait(wait));
    busy.send(()).unwrap();
    release
}

/// Frames wait for their peer's turn only within its credit. Frames beyond it would be kept without a
/// bound.
#[test]
fn frame_beyond_credit_does_not_wait() {
    const CREDIT: u16 = 100;
    let mut node = TestNode::start(over_udp(), 1);
    let peer = RawPeer::connect(node.address);
    let key = node.up();
    // The frame claims that further messages wait.
    let eager = with(message(b"hello"), 6, &[u8::MAX]);
    while peer.left() < CREDIT {
        assert!(peer.send_politely(&eager, 1));
    }
    (0..peer.used.get()).for_each(|_| _ = node.message());
    let release = keep_busy(&node);
    // More messages than one peer's credit, nearly all of them in the completions of one round.
    for _ in 0..300 {
        assert!(peer.send_politely(&eager, 0));
    }
    peer.finish_sends();
    release.send(()).unwrap();
    assert_eq!(node.down(key), PeerDown::Misbehaved("sent beyond its credit"));
    let mut handled = 0;
    node.take_passed(|event| handled += u16::from(matches!(event, common::Happened::Message(..))));
    assert!(handled < CREDIT / 2, "{handled} were handled before");
}

/// A poller that was busy takes more from its CQ in two rounds than it handles, and the device is removed between
/// them.
#[test]
fn waiting_messages_of_removed_device_keep_their_order() {
    const SENT: u16 = 310;
    let slot = Slot::new();
    let device = SoftOptions { slot: Some(slot.clone()), ..SoftOptions::default() };
    let options = over_udp().srq_depth(2048).provider(ProviderChoice::Soft).device(device);
    let mut node = TestNode::start(options, 1);
    let peer = RawPeer::connect(node.address);
    let key = node.up();
    let eager = |number: u16| with(message(&number.to_be_bytes()), 6, &[u8::MAX]);
    while peer.left() < SENT {
        assert!(peer.send_politely(&eager(0), 1));
    }
    (0..peer.used.get()).for_each(|_| _ = node.message());
    let release = keep_busy(&node);
    for number in 0..SENT {
        assert!(peer.send_politely(&eager(number), 1));
    }
    peer.finish_sends();
    slot.remove();
    wait_until("the removal is known", LIMIT, || node.report().removed_since.map(drop));
    release.send(()).unwrap();
    assert_eq!(node.down(key), PeerDown::DeviceRemoved);
    let mut numbers = Vec::new();
    node.take_passed(|event| {
        if let common::Happened::Message(_, bytes) = event {
            numbers.push(u16::from_be_bytes(bytes[..2].try_into().unwrap()));
        }
    });
    assert!(numbers.iter().copied().eq(0..SENT), "{numbers:?}");
}

/// A busy poller does not read the frames that other pollers forward to it, and the ring to it is bounded.
#[test]
fn sending_beyond_credit_to_busy_poller_ends_session() {
    let mut node = TestNode::start(over_udp().connections(Connections::Rc).srq_depth(32), 2);
    // Two peers, whose frames together exceed the ring.
    let greedy = [0; 2].map(|_| {
        let peer = RawPeer::connect_over(QpType::Rc, node.address);
        let key = node.up();
        node.up();
        (peer, key)
    });
    let (release, wait) = mpsc::channel();
    node.job(1, Job::Wait(wait));
    // A frame for poller 1, through the trunk that ends at poller 0. It uses no credit.
    let crossing = with(frame::build(CREDIT, 0, 0, &[]), 7, &[1]);
    for (peer, key) in &greedy {
        // Frames that arrive before another thread has closed the session are ignored.
        let until = Instant::now() + LIMIT;
        while peer.send_politely(&crossing, 0) {
            assert!(Instant::now() < until, "all were taken");
        }
        let PeerDown::Misbehaved(why) = node.down(*key) else { panic!("not its fault") };
        assert!(why.contains("more frames at once"), "{why}");
    }
    // A message from another peer, which has not exceeded its credit, waits until there is room.
    let mut client = TestNode::start(over_udp().connections(Connections::Rc), 1);
    let other = client.name(0, node.address);
    client.send_to(0, other, Some(1), &[ECHO], Bytes::from_static(b"are you there"), 1, None);
    release.send(()).unwrap();
    assert_eq!(&client.message().1[..], b"!are you there");
}

/// A frame that arrives through one poller's trunk for another poller is checked there like any other frame.
#[test]
fn malformed_frame_for_another_poller_ends_session() {
    let mut node = TestNode::start(over_udp().connections(Connections::Rc), 2);
    let crossing = |frame| with(frame, 7, &[1]);
    let rows = [
        ("reserved flag", crossing(with(message(b"hello"), 1, &[8]))),
        ("FIN for nothing", crossing(frame::build(FIN, 0, 1, &[0; 16]))),
        ("poller that there is not", with(message(b"hello"), 7, &[2])),
    ];
    for (what, nonsense) in rows {
        let peer = RawPeer::connect_over(QpType::Rc, node.address);
        let key = node.up();
        node.up();
        peer.send(&nonsense);
        let cause = node.down(key);
        assert!(matches!(cause, PeerDown::Misbehaved(_)), "{what}: {cause}");
    }
    let peer = RawPeer::connect_over(QpType::Rc, node.address);
    node.up();
    peer.send(&crossing(message(b"hello")));
    let (poller, bytes) = node.wait("message", |poller, event| match event {
        common::Happened::Message(_, bytes) => Some((poller.0, bytes.clone())),
        _ => None,
    });
    assert_eq!((poller, &bytes[..]), (1, &b"hello"[..]));
}

/// Frames that must not begin a lane. Each is sent in place of the peer's settings, and the cause names it.
#[test]
fn lane_without_initial_settings_ends_session() {
    let mut node = TestNode::start(over_udp(), 1);
    let rows = [
        (message(b"hello"), "before the settings"),
        (frame::build(CREDIT, 0, 0, &[]), "before the settings"),
        (frame::build(SETTINGS, 0, 0, &settings()[..12]), "incomplete"),
    ];
    for (first, expected) in rows {
        let peer = RawPeer::connect_silent(QpType::XrcIni, node.address);
        peer.send(&first);
        let cause = node.wait("an end", |_, event| match event {
            common::Happened::Peer(_, PeerEvent::Down { cause }) => Some(*cause),
            common::Happened::Peer(_, PeerEvent::Up { .. }) => panic!("up, without settings"),
            _ => None,
        });
        assert!(cause.to_string().contains(expected), "{cause}");
    }
}

/// A peer whose session is up before the node's may send only its settings.
#[test]
fn message_in_half_open_session_ends_session() {
    for (sending, options) in [
        (QpType::XrcIni, over_udp().connections(Connections::Xrc)),
        (QpType::Rc, over_udp().connections(Connections::Rc)),
    ] {
        let server = TestNode::start(options, 1);
        let peer = RawPeer::connect_one_way(sending, server.address);
        peer.send(&frame::build(SETTINGS, 0, 0, &settings()));
        peer.send(&message(b"early"));
        let until = Instant::now() + LIMIT;
        let ended = |event: trunkline_verbs::CmEvent| matches!(event.kind, CmEventKind::Disconnected { .. });
        while !peer.dialer.channel.next_event().is_some_and(ended) {
            assert!(Instant::now() < until, "the session goes on");
            peer.poll();
        }
    }
}
