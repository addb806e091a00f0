//! Tests of pollers without a CM machine. A test connects the pollers' QPs, sends commands to the pollers and takes
//! theirs.

use super::*;
use crate::command::{CmHandle, Command, PollerHandle};
use crate::identity::tests::node_credentials;
use crate::node::incarnation::{DeviceShared, Intake, Opened, open};
use crate::node::share;
use crate::node::shared::NodeShared;
use crate::poller::{Begun, OfNode, Parts};
use crate::wire::SEND_QUEUE_DEPTH;
use crate::wire::frame::{self, HANDSHAKE};
use crate::{Connections, InProcessNetwork, NodeOptions, PollerIndex};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_machine::Sleeper;
use trunkline_testkit::{HandMadeConnection, wait_until};
use trunkline_verbs::{
    Access, IoAddress, Memory, MemoryRegion, QpInit, QueueCapacities, Sge, SharedReceiveQueue, SrqInit,
    SrqKind,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Two pollers of a node.
struct Pollers {
    transports: Vec<Transport>,
    device: Arc<DeviceShared>,
    shared: Arc<NodeShared>,
    address: IpAddr,
    /// TGTs, kept so that they are not destroyed.
    targets: RefCell<Vec<Arc<dyn QueuePair>>>,
    _sleeper: Sleeper,
}

impl Pollers {
    fn new(network: &InProcessNetwork, connections: Connections, handshakes: bool) -> Self {
        let options = NodeOptions::new().pollers(2).in_process(network).connections(connections);
        let credentials = handshakes.then(|| Arc::new(node_credentials("node.example")));
        let options = NodeOptions { credentials, ..options };
        let address = options.listens_on()[0].ip();
        let Opened { shared: device, pollers, .. } = open(&options, &options.listens_on()).unwrap();
        let part = |(index, device)| {
            let (sleeper, waker) = options.runtime.sleeper().unwrap();
            let index = PollerIndex(index);
            Parts { index, handle: PollerHandle::new(index, waker), sleeper, device }
        };
        let parts = (0..).zip(pollers).map(part).collect::<Vec<_>>();
        let (sleeper, waker) = options.runtime.sleeper().unwrap();
        let handles = parts.iter().map(|part| part.handle.clone()).collect();
        let shared = share(&options, handles, CmHandle::new(waker));
        let device = Arc::new(device);
        shared.open(&device);
        let of_node = || OfNode { shared: Arc::clone(&shared), alive: shared.gauges.machine() };
        let transports = parts.into_iter().map(|part| Transport::new(part, of_node()).unwrap()).collect();
        Self { transports, device, shared, address, targets: RefCell::default(), _sleeper: sleeper }
    }

    fn pair(connections: Connections) -> (Self, Self) {
        let network = InProcessNetwork::new();
        (Self::new(&network, connections, true), Self::new(&network, connections, true))
    }

    /// Runs a turn of each poller. Returns their commands to the CM machine.
    fn turn(&mut self) -> Vec<CmCommand> {
        for transport in &mut self.transports {
            match transport.begin_turn() {
                Begun::Round => {
                    while transport.poll_event().is_some() {}
                    transport.begin_work();
                    while transport.poll_event().is_some() {}
                    transport.flush_round();
                    transport.end_turn(BTreeMap::new);
                }
                Begun::LookAgain => drop(transport.sleep_unless(false, None)),
                Begun::Over(_) => {}
            }
        }
        std::iter::from_fn(|| self.shared.cm.next_command()).collect()
    }

    fn key(&self) -> PeerKey {
        PeerKey::new(SocketAddr::new(self.address, 1))
    }

    fn tell(&self, command: impl Fn() -> Command) {
        self.shared.pollers.iter().for_each(|poller| poller.command(command()));
    }

    fn send(&self, peer: PeerKey, number: u32, frames: &[Vec<u8>]) {
        for frame in frames {
            let frame = frame.clone().into_boxed_slice();
            self.shared.pollers[0].command(Command::SendHandshake { peer, number, frame });
        }
    }

    fn slots(&self) -> (u32, u32) {
        self.transports[0].handshakes.count()
    }

    /// Connects an INI to a peer, for a session that has this number on both sides.
    fn dial(&self, to: &Self, number: u32, poller: u16) -> Arc<dyn QueuePair> {
        let (near, far) = (&self.device, &to.device);
        let (pd, send_cq) = (Some(Arc::clone(&near.pd)), Some(Arc::clone(&near.cqs[0])));
        let capacities = QueueCapacities {
            max_send_wr: u32::try_from(SEND_QUEUE_DEPTH).unwrap(),
            max_send_sge: 1,
            ..QueueCapacities::default()
        };
        let kind = near.connections.sending();
        let receive_cq = matches!(near.intake, Intake::Rc(_)).then(|| Arc::clone(&near.cqs[0]));
        let ini = QpInit { pd, send_cq, receive_cq, capacities, ..QpInit::new(kind) };
        let ini = near.device.create_qp(ini).unwrap();
        let tgt = QpInit::new(far.connections.receiving());
        let tgt = match &far.intake {
            Intake::Xrc(xrcd) => QpInit { xrcd: Some(Arc::clone(xrcd)), ..tgt },
            Intake::Rc(srqs) => QpInit {
                pd: Some(Arc::clone(&far.pd)),
                send_cq: Some(Arc::clone(&far.cqs[0])),
                receive_cq: Some(Arc::clone(&far.cqs[0])),
                srq: Some(Arc::clone(&srqs[0])),
                capacities: QueueCapacities { max_send_wr: 1, max_send_sge: 1, ..QueueCapacities::default() },
                ..tgt
            },
        };
        let tgt = far.device.create_qp(tgt).unwrap();
        for (qp, peer, other) in [(&ini, to.address, &tgt), (&tgt, self.address, &ini)] {
            let steps = HandMadeConnection::new(peer, other.number()).steps();
            steps.iter().for_each(|step| qp.modify(step).unwrap());
        }
        let (peer, target) = (self.key(), tgt.number());
        to.targets.borrow_mut().push(tgt);
        to.tell(|| Command::TargetAdded { peer, number, poller, target });
        ini
    }

    /// Begins a handshake over a new INI.
    fn begin(&self, to: &Self, number: u32, srq: SrqNumber) -> Arc<dyn QueuePair> {
        let (peer, ini) = (to.key(), self.dial(to, number, 0));
        let qp = Arc::clone(&ini);
        self.shared.pollers[0].command(Command::BeginHandshake { peer, number, qp, srq });
        ini
    }

    /// Ends a session as the CM machine does.
    fn close(&self, peer: PeerKey, number: u32, ini: &dyn QueuePair) {
        ini.destroy().unwrap();
        self.tell(|| Command::SessionClosed { peer, number, cause: PeerDown::Closed });
    }

    /// Creates an SRQ without receives.
    fn empty_srq(&self) -> Arc<dyn SharedReceiveQueue> {
        let Intake::Xrc(xrcd) = &self.device.intake else { panic!("over XRC only") };
        let kind = SrqKind::Xrc { xrcd: Arc::clone(xrcd), cq: Arc::clone(&self.device.cqs[0]) };
        let pd = Arc::clone(&self.device.pd);
        self.device.device.create_srq(SrqInit { pd, kind, max_wr: 1, max_sge: 1, context: 0 }).unwrap()
    }

    /// Sends a frame without the code under test. Keep the returned region until the frame has arrived.
    fn post(&self, ini: &dyn QueuePair, remote_srq: SrqNumber, frame: &[u8]) -> Arc<dyn MemoryRegion> {
        let memory = Memory::zeroed(frame.len()).unwrap();
        memory.write(0, frame).unwrap();
        let region = self.device.pd.register(Arc::clone(&memory), Access::empty()).unwrap();
        let length = u32::try_from(frame.len()).unwrap();
        let sge = Sge { address: memory.address(0), length, lkey: region.lkey() };
        let data = SendData::Gather(slice::from_ref(&sge));
        let (operation, flags) = (SendOperation::Send, SendFlags::SIGNALED);
        ini.post_send(&[SendRequest { wr_id: 0, operation, data, flags, remote_srq }]).unwrap();
        region
    }
}

/// Runs turns of both sides until a command of `near` to the CM machine is accepted.
fn until<T>(
    what: &str,
    near: &mut Pollers,
    far: &mut Pollers,
    mut pick: impl FnMut(CmCommand) -> Option<T>,
) -> T {
    wait_until(what, LIMIT, || {
        far.turn();
        near.turn().into_iter().find_map(&mut pick)
    })
}

fn is_sent(command: &CmCommand) -> Option<u32> {
    if let CmCommand::HandshakeSent { number, .. } = command { Some(*number) } else { None }
}

fn broken(command: CmCommand) -> Option<(u32, PeerDown)> {
    if let CmCommand::Broken { number, cause, .. } = command { Some((number, cause)) } else { None }
}

fn flight(is_sealed: bool, length: usize) -> Vec<Vec<u8>> {
    let bytes = (0u8..=250).cycle().take(length).collect::<Vec<_>>();
    Fragment::all(0, is_sealed, Part::Tls, &bytes).map(|fragment| fragment.emit()).collect()
}

#[test]
fn flights_go_both_ways_before_session_is_up() {
    for connections in [Connections::Xrc, Connections::Rc] {
        let (mut near, mut far) = Pollers::pair(connections);
        let (a, b) = (near.key(), far.key());
        near.begin(&far, 1, far.device.srqs[0]);
        far.begin(&near, 1, near.device.srqs[0]);
        let (hello, mut answer) = (flight(false, 4096), flight(false, 1000));
        answer.extend(flight(true, 12_288));
        assert_eq!((hello.len(), answer.len()), (3, 8));
        near.send(b, 1, &hello);
        let (mut received, mut answered, mut sent) = (Vec::new(), Vec::new(), [0, 0]);
        wait_until("the answer is acknowledged", LIMIT, || {
            for command in near.turn() {
                sent[0] += usize::from(is_sent(&command).is_some());
                if let CmCommand::Handshake { peer, number: 1, frame } = command {
                    assert_eq!(peer, b);
                    answered.push(frame.into_vec());
                }
            }
            for command in far.turn() {
                sent[1] += usize::from(is_sent(&command).is_some());
                if let CmCommand::Handshake { peer, number: 1, frame } = command {
                    assert_eq!(peer, a);
                    received.push(frame.into_vec());
                    if received.len() == hello.len() {
                        far.send(a, 1, &answer);
                    }
                }
            }
            (answered.len() == answer.len() && sent[1] > 0).then_some(())
        });
        assert!(received == hello && answered == answer, "in order, over {connections:?}");
        assert_eq!(sent, [1, 1], "reported once for all frames");
        for side in [&near, &far] {
            assert_eq!(side.slots(), (1024, 1024));
            assert!(!side.transports[0].handshakes.await_acknowledgement());
        }
    }
}

#[test]
fn peer_without_receives_holds_one_slot_until_session_ends() {
    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let (b, srq) = (far.key(), far.empty_srq());
    let stuck = near.begin(&far, 1, srq.number().unwrap());
    let frames = flight(true, 12_288);
    near.send(b, 1, &frames);
    near.send(b, 1, &frames[..2]);
    near.begin(&far, 2, far.device.srqs[0]);
    near.send(b, 2, &frames);
    let sent = until("the other session is served", &mut near, &mut far, |command| is_sent(&command));
    assert_eq!((sent, near.slots()), (2, (1023, 1024)));
    assert!(near.transports[0].handshakes.await_acknowledgement());
    near.send(b, 1, &frames[..1]);
    let cause = until("a tenth frame is refused", &mut near, &mut far, broken);
    assert!(matches!(cause, (1, PeerDown::RefusedHere(_))), "{cause:?}");
    near.close(b, 1, &*stuck);
    wait_until("the slot is free", LIMIT, || {
        near.turn();
        (near.slots() == (1024, 1024)).then_some(())
    });
    near.tell(|| Command::SessionClosed { peer: b, number: 1, cause: PeerDown::Closed });
    near.turn();
    assert_eq!(near.slots(), (1024, 1024), "once");
}

#[test]
fn late_completion_is_ignored() {
    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let (b, srq) = (far.key(), far.empty_srq());
    let ends = [1, 2].map(|number| {
        let ini = near.begin(&far, number, srq.number().unwrap());
        near.send(b, number, &flight(false, 1));
        (number, ini)
    });
    wait_until("both are posted", LIMIT, || {
        near.turn();
        (near.slots().0 == 1022).then_some(())
    });
    let late = |near: &mut Pollers, place, sequence| {
        let wr_id = wr_id(place, sequence);
        near.transports[0].send_completed(&Completion { wr_id, ..Completion::default() });
        let flushed = CompletionStatus::WorkRequestFlushed;
        near.transports[0].send_completed(&Completion { wr_id, status: flushed, ..Completion::default() });
        assert!(near.turn().is_empty());
    };
    let [(first, ini), _second] = ends;
    near.close(b, first, &*ini);
    wait_until("the first is closed", LIMIT, || {
        near.turn();
        (near.slots().0 == 1023).then_some(())
    });
    // The slot is used again, under another sequence number.
    near.begin(&far, first, srq.number().unwrap());
    near.send(b, first, &flight(false, 1));
    wait_until("a third is posted", LIMIT, || {
        near.turn();
        (near.slots().0 == 1022).then_some(())
    });
    late(&mut near, PLACE, 0);
    late(&mut near, PLACE, u64::from(u32::MAX) + 2);
    // A completion of a trunk that was already freed.
    late(&mut near, 0, 1);
    assert_eq!(near.slots().0, 1022);
    far.turn();
}

#[test]
fn frame_refused_by_peer_ends_session() {
    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let b = far.key();
    near.begin(&far, 1, SrqNumber::new(0x00ab_cdef));
    near.send(b, 1, &flight(false, 4096));
    assert_eq!(until("it ends", &mut near, &mut far, broken), (1, PeerDown::AccessRefused));
    assert_eq!(near.slots(), (1024, 1024));
    near.shared.pollers[0].command(Command::ReleaseDevice);
    until("the device is released", &mut near, &mut far, |command| {
        matches!(command, CmCommand::Released { .. }).then_some(())
    });
    assert_eq!(near.slots(), (0, 0));
}

#[test]
fn sessions_wait_for_slot_in_turn() {
    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let (b, srq) = (far.key(), far.empty_srq());
    let slots = SendSlots::new(&*near.device.pd, 1, HANDSHAKE_FRAME, IoAddress(1 << 40)).unwrap();
    near.transports[0].handshakes = Handshakes::new(Some(slots));
    let stuck = near.begin(&far, 1, srq.number().unwrap());
    near.send(b, 1, &flight(false, 1));
    for number in [2, 3] {
        near.begin(&far, number, far.device.srqs[0]);
        near.send(b, number, &flight(false, 4096));
    }
    for _ in 0..100 {
        far.turn();
        assert!(near.turn().is_empty(), "no slot is free");
    }
    near.close(b, 1, &*stuck);
    let mut sent = Vec::new();
    wait_until("both are sent", LIMIT, || {
        far.turn();
        sent.extend(near.turn().iter().filter_map(is_sent));
        (sent.len() == 2).then_some(())
    });
    sent.sort_unstable();
    assert_eq!((&sent[..], near.slots()), (&[2, 3][..], (1, 1)));
}

#[test]
fn invalid_handshake_frames_end_session() {
    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let small = flight(false, 1).remove(0);
    let with_length = |length| [&small[..], &vec![0; length]].concat()[..length].to_vec();
    let to_poller_1 = [&small[..7], &[1], &small[8..]].concat();
    let settings = frame::settings().to_vec();
    let rows: [(&str, u16, usize, Vec<Vec<u8>>); 6] = [
        ("more handshake frames", 0, 0, vec![small.clone(); 13]),
        ("invalid length", 0, 0, vec![with_length(FRAGMENT)]),
        ("invalid length", 0, 0, vec![with_length(HANDSHAKE_FRAME + 1)]),
        ("another poller", 0, 1, vec![to_poller_1]),
        ("another poller", 1, 0, vec![small.clone()]),
        ("after its settings", 0, 0, vec![settings, small.clone()]),
    ];
    for (number, (what, from, to, frames)) in (1..).zip(rows) {
        let ini = far.dial(&near, number, from);
        let srq = near.device.srqs[to];
        let _regions = frames.iter().map(|frame| far.post(&*ini, srq, frame)).collect::<Vec<_>>();
        let (mut arrived, expected) = (0, if frames.len() == 13 { 12 } else { 0 });
        let (of, cause) = until(what, &mut near, &mut far, |command| {
            arrived += usize::from(matches!(command, CmCommand::Handshake { .. }));
            broken(command)
        });
        let PeerDown::Misbehaved(why) = cause else { panic!("{what}: {cause}") };
        assert!(of == number && why.contains(what), "{what}: {why}");
        assert_eq!(arrived, expected, "{what}");
    }
    // All lengths between these two are accepted.
    let ini = far.dial(&near, 7, 0);
    let _regions = [FRAGMENT + 1, HANDSHAKE_FRAME]
        .map(|length| far.post(&*ini, near.device.srqs[0], &with_length(length)));
    let mut lengths = Vec::new();
    wait_until("both arrive", LIMIT, || {
        far.turn();
        for command in near.turn() {
            let CmCommand::Handshake { frame, number: 7, .. } = command else { panic!("{command:?}") };
            lengths.push(frame.len());
        }
        (lengths == [FRAGMENT + 1, HANDSHAKE_FRAME]).then_some(())
    });
}

#[test]
fn peer_answers_whole_flights_only() {
    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let srq = far.empty_srq();
    near.begin(&far, 1, srq.number().unwrap());
    near.send(far.key(), 1, &flight(false, 4096));
    near.turn();
    let failure = Fragment::all(0, false, Part::Failure, &[0; 4]).map(|fragment| fragment.emit());
    let ini = far.dial(&near, 1, 0);
    let frames = failure.chain(flight(false, 1)).collect::<Vec<_>>();
    let _regions = frames.iter().map(|frame| far.post(&*ini, near.device.srqs[0], frame)).collect::<Vec<_>>();
    let mut arrived = Vec::new();
    let (_, cause) = until("it ends", &mut near, &mut far, |command| match command {
        CmCommand::Handshake { frame, .. } => {
            arrived.push(frame.into_vec());
            None
        }
        other => broken(other),
    });
    assert!(matches!(cause, PeerDown::Misbehaved(why) if why.contains("a part of a flight")), "{cause}");
    assert_eq!(arrived, frames[..1], "a failure is taken at any time");
}

#[test]
fn handshake_frames_are_unknown_to_node_without_handshakes() {
    let network = InProcessNetwork::new();
    let mut near = Pollers::new(&network, Connections::Xrc, false);
    let mut far = Pollers::new(&network, Connections::Xrc, true);
    assert_eq!(near.slots(), (0, 0));
    let ini = far.dial(&near, 1, 0);
    let _regions = far.post(&*ini, near.device.srqs[0], &flight(false, 1)[0]);
    let cause = until("it ends", &mut near, &mut far, broken);
    assert_eq!(cause, (1, PeerDown::UnknownFrame(HANDSHAKE)));
}

/// A trunk that is being taken down still accepts messages, because they were reported as delivered to their sender.
/// The sender may have switched to the keys of a renewal before it sent them.
#[test]
fn closing_trunk_accepts_messages_after_key_switch() {
    use crate::command::SessionUp;
    use crate::identity::keys::{Aead, Exported, PollerKeys, Pollers as Numbers, RenewedKeys};
    use crate::identity::seal::{LaneSeal, OVERHEAD, PhaseLimit};
    use crate::trunk::own_settings;
    use crate::{Event, MessageHeader, PeerIdentity};
    use trunkline_verbs::Time;

    for switches in [false, true] {
        let (mut near, mut far) = Pollers::pair(Connections::Xrc);
        let exported = |seed| {
            Exported::new(|out| {
                out.fill(seed);
                Ok::<_, ()>(())
            })
            .unwrap()
        };
        let lanes =
            |seed, is_client| exported(seed).lanes(Aead::Aes256Gcm, Numbers { own: 2, peers: 2, is_client });
        let limit = PhaseLimit { frames: u32::MAX, time: Duration::MAX };
        let mut seals = lanes(1, true).into_iter().map(|mut own| {
            let secrets = own.remove(0);
            LaneSeal::new(secrets, limit, Time(0))
        });
        let [mut first, mut second] = [seals.next().unwrap(), seals.next().unwrap()];
        first.renew(lanes(2, true).remove(0).remove(0).seals);

        let proven = {
            let credentials = node_credentials("near.example");
            PeerIdentity::Proven(Arc::new(credentials.check_own().unwrap()))
        };
        let inis = [0, 1].map(|poller| near.dial(&far, 1, poller));
        let (qp, renewed) = (far.dial(&near, 1, 0), RenewedKeys::default());
        renewed.put(lanes(2, false).remove(0));
        far.shared.pollers[0].command(Command::SessionUp(Box::new(SessionUp {
            peer: near.key(),
            number: 1,
            epoch: 7,
            qp,
            srqs: near.device.srqs.clone(),
            read_depth: 2,
            is_accepted: false,
            identity: proven,
            settings: None,
            keys: Some(PollerKeys { lanes: lanes(1, false).remove(0), renewed }),
            renewed_by: None,
        })));
        let seal = |lane: &mut LaneSeal, frame: &[u8]| {
            let mut frame = frame.to_vec();
            // The position grants only the base credit, and the backlog is large.
            frame[4..8].copy_from_slice(&[0x19, 0xfc, 0xff, 0]);
            frame.resize(frame.len() + OVERHEAD, 0);
            lane.seal(&mut frame, Time(0));
            frame
        };
        let settings = [&frame::settings()[..], &own_settings(&far.shared.limits).emit()].concat();
        let srq = far.device.srqs[0];
        let mut regions = vec![near.post(&*inis[0], srq, &seal(&mut first, &settings))];
        regions.push(near.post(&*inis[1], srq, &seal(&mut second, &settings)));

        // Takes turns, and collects the messages of poller 0 of `far`.
        let turn = |near: &mut Pollers, far: &mut Pollers, messages: &mut usize, ups: &mut usize| {
            near.turn();
            let transport = &mut far.transports[0];
            let mut take = |event: Event| match event {
                Event::Message(..) => *messages += 1,
                Event::Peer(..) => *ups += 1,
                _ => {}
            };
            match transport.begin_turn() {
                Begun::Round => {
                    while let Some(event) = transport.poll_event() {
                        take(event);
                    }
                    transport.begin_work();
                    while let Some(event) = transport.poll_event() {
                        take(event);
                    }
                    transport.flush_round();
                    transport.end_turn(BTreeMap::new);
                }
                Begun::LookAgain => drop(transport.sleep_unless(false, None)),
                Begun::Over(_) => {}
            }
            far.turn()
        };
        let (mut messages, mut ups) = (0, 0);
        wait_until("the session is up", LIMIT, || {
            turn(&mut near, &mut far, &mut messages, &mut ups);
            (ups > 0).then_some(())
        });
        for _ in 0..50 {
            turn(&mut near, &mut far, &mut messages, &mut ups);
        }
        // The lane of the peer's poller 1 breaks, so the trunk dies.
        regions.push(near.post(&*inis[1], srq, &[0x40; 64]));
        wait_until("the trunk dies", LIMIT, || {
            let reports = turn(&mut near, &mut far, &mut messages, &mut ups);
            reports.into_iter().find_map(broken)
        });
        if switches {
            let switch =
                Fragment::all(1, false, Part::Switch, &[]).map(|switch| switch.emit()).next().unwrap();
            regions.push(near.post(&*inis[0], srq, &seal(&mut first, &switch)));
            first.switch(Time(0));
        }
        let header = MessageHeader { kind: 0x40, flags: 0, word: 0 };
        let (header, size) = frame::message(header, 0, 0, None);
        let message = [&header[..size], &[1, 2, 3]].concat();
        regions.push(near.post(&*inis[0], srq, &seal(&mut first, &message)));
        wait_until("the message is taken", LIMIT, || {
            turn(&mut near, &mut far, &mut messages, &mut ups);
            (messages > 0).then_some(())
        });
    }
}

/// Another poller of the node may already have ended the earlier session, and take part in the renewal.
#[test]
fn session_queued_behind_another_switches_to_renewed_keys() {
    use crate::PeerIdentity;
    use crate::command::SessionUp;
    use crate::identity::keys::{Aead, Exported, PollerKeys, Pollers as Numbers, RenewedKeys};
    use std::sync::atomic::Ordering;

    let (mut near, mut far) = Pollers::pair(Connections::Xrc);
    let lanes = |seed| {
        let exported = Exported::new(|out| {
            out.fill(seed);
            Ok::<_, ()>(())
        });
        exported.unwrap().lanes(Aead::Aes256Gcm, Numbers { own: 2, peers: 2, is_client: false }).remove(0)
    };
    let (peer, renewed) = (near.key(), RenewedKeys::default());
    let mut inis = Vec::new();
    for number in [1, 2] {
        inis.extend([0, 1].map(|poller| near.dial(&far, number, poller)));
        far.shared.pollers[0].command(Command::SessionUp(Box::new(SessionUp {
            peer,
            number,
            epoch: 7,
            qp: far.dial(&near, number, 0),
            srqs: near.device.srqs.clone(),
            read_depth: 2,
            is_accepted: false,
            identity: PeerIdentity::Unproven,
            settings: None,
            keys: Some(PollerKeys { lanes: lanes(1), renewed: renewed.clone() }),
            renewed_by: None,
        })));
    }
    renewed.put(lanes(2));
    for number in [3, 2] {
        let identity = PeerIdentity::Unproven;
        far.shared.pollers[0].command(Command::Renewed { peer, number, identity, exchange: 1 });
    }
    far.turn();
    let before = far.shared.gauges.ini.load(Ordering::Relaxed);
    for command in [
        Command::SessionClosed { peer, number: 1, cause: PeerDown::Closed },
        Command::PeerDown { peer, number: 1, cause: PeerDown::Closed, next: None },
    ] {
        far.shared.pollers[0].command(command);
    }
    wait_until("the first session is gone", LIMIT, || {
        near.turn();
        far.turn();
        (far.shared.gauges.ini.load(Ordering::Relaxed) != before).then_some(())
    });
    assert!(renewed.take_seals(0).is_none() && renewed.take_seals(1).is_none(), "a lane does not switch");
    assert!(renewed.take_opens(0).is_some(), "the peer has not switched");
}
