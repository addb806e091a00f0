//! Tests of each row of the machine's table, and of pairs of machines over a network that reorders packets, drops
//! connections and restarts nodes.

use super::*;
use crate::provider::connections::ConnectionKind;
use crate::session::private_data::MAX_POLLERS;
use proptest::prelude::*;
use std::num::NonZeroU16;
use trunkline_verbs::SrqNumber;

/// Name that the peer proves.
const NAME: &str = "peer.example";
const ME: u64 = 11;
const PEER: u64 = 22;

fn hello(epoch: u64, number: u32, echo: Option<u32>, poller: u16, pollers: u16) -> Hello {
    Hello {
        features: Features::NONE,
        listener_port: NonZeroU16::new(1).unwrap(),
        session: SessionName { epoch, number },
        echo: echo.map(|number| SessionName { epoch: ME, number }),
        poller,
        pollers,
        connections: ConnectionKind::Xrc,
        cookie: None,
        udp_port: 4791,
        is_local: false,
    }
}

fn welcome(epoch: u64, number: u32, pollers: u16) -> Welcome {
    assert!(pollers <= MAX_POLLERS);
    Welcome {
        udp_port: 4791,
        is_local: false,
        features: Features::NONE,
        session: SessionName { epoch, number },
        srqs: (0..u32::from(pollers)).map(SrqNumber::new).collect(),
    }
}

fn new(epoch: u64, pollers: u16) -> Machine {
    machine(epoch, pollers, Levels::None)
}

fn machine(epoch: u64, pollers: u16, levels: Levels) -> Machine {
    Machine::new(epoch, pollers, levels, Numbers::default())
}

/// Returns all pairs of levels, with the features of their sessions.
fn level_pairs() -> impl Iterator<Item = ([Levels; 2], Option<Features>)> {
    let all = [Levels::None, Levels::Encrypted, Levels::Either];
    all.into_iter().flat_map(move |first| all.map(|second| [first, second])).map(|levels| {
        let features = match levels {
            [Levels::None, Levels::Encrypted] | [Levels::Encrypted, Levels::None] => None,
            [Levels::None, _] | [_, Levels::None] => Some(Features::NONE),
            _ => Some(Features::HANDSHAKE),
        };
        (levels, features)
    })
}

/// Returns a machine with one poller that is dialing.
fn dialing(now: Time) -> Machine {
    let mut machine = new(ME, 1);
    let mut actions = Vec::new();
    machine.want(now, Connect::FailFast, &mut actions);
    assert_eq!(actions, [Action::Dial { number: 1, poller: 0, echo: None }]);
    machine
}

/// Returns a machine whose session 1 is up with session `remote` of the peer.
fn up(now: Time, remote: u32) -> Machine {
    let mut machine = dialing(now);
    let mut actions = Vec::new();
    machine.answered(now, 1, 0, welcome(PEER, remote, 1), &mut actions);
    assert_eq!(actions, []);
    assert_eq!(machine.request(now, &hello(PEER, remote, Some(1), 0, 1), &mut actions), Ok(1));
    machine.arrived(now, 1, 0, &mut actions);
    assert!(matches!(&actions[..], [Action::Up { number: 1, .. }]), "{actions:?}");
    assert!(machine.is_up());
    machine
}

#[test]
fn unexpected_request_is_accepted_and_dialed_back() {
    let now = Time(1_000_000);
    let mut machine = new(ME, 2);
    let mut actions = Vec::new();
    assert_eq!(machine.request(now, &hello(PEER, 7, None, 0, 1), &mut actions), Ok(1));
    let echo = Some(SessionName { epoch: PEER, number: 7 });
    assert_eq!(
        actions,
        [Action::Dial { number: 1, poller: 0, echo }],
        "one dial until the peer has answered it"
    );
    actions.clear();
    machine.answered(now, 1, 0, welcome(PEER, 7, 1), &mut actions);
    assert_eq!(actions, [Action::Dial { number: 1, poller: 1, echo }]);
    actions.clear();
    machine.answered(now, 1, 1, welcome(PEER, 7, 1), &mut actions);
    assert_eq!(actions, [], "and each once");
}

#[test]
fn cookie_makes_all_pollers_dial_with_limited_repeats() {
    let now = Time(1_000_000);
    let mut machine = new(ME, 2);
    let mut actions = Vec::new();
    machine.want(now, Connect::FailFast, &mut actions);
    let dial = |poller| Action::Dial { number: 1, poller, echo: None };
    assert_eq!(actions, [dial(0)]);
    actions.clear();
    machine.unproven(now, 1, 0, &mut actions);
    assert_eq!(actions, [dial(0), dial(1)]);
    actions.clear();
    machine.unproven(now, 1, 1, &mut actions);
    machine.unproven(now, 9, 0, &mut actions);
    assert_eq!(actions, [dial(1)], "of this session only");
    for _ in 0..4 {
        assert_eq!(machine.current(), Some(1));
        machine.unproven(now, 1, 0, &mut actions);
    }
    machine.unproven(now, 1, 0, &mut actions);
    assert_eq!(machine.current(), None);
}

#[test]
fn requests_are_accepted_or_refused_by_session_name() {
    let now = Time(1_000_000);
    // (request, answer, whether session 1 stays up)
    let rows = [
        (hello(PEER, 5, Some(9), 0, 1), Err(Refusal::Stale), true),
        (hello(PEER, 5, None, 0, 1), Err(Refusal::Malformed), true),
        (hello(PEER, 4, None, 0, 1), Err(Refusal::Stale), true),
        (hello(PEER, 6, Some(1), 0, 1), Err(Refusal::Stale), true),
        (hello(PEER, 6, None, 0, 1), Ok(2), false),
        (hello(33, 1, None, 0, 1), Ok(2), false),
        (hello(33, 1, Some(1), 0, 1), Err(Refusal::Stale), true),
        (hello(PEER, 5, None, 0, 2), Err(Refusal::Malformed), true),
    ];
    for (request, answer, lives) in rows {
        let mut machine = up(now, 5);
        let mut actions = Vec::new();
        assert_eq!(machine.request(now, &request, &mut actions), answer, "{request:?}");
        assert_eq!(machine.current() == Some(1), lives, "{request:?}");
        if !lives {
            let cause = if request.session.epoch == PEER { PeerDown::Replaced } else { PeerDown::Restarted };
            assert_eq!(actions[..2], [Action::Close { number: 1 }, Action::Down { number: 1, cause }]);
        }
    }
}

#[test]
fn simultaneous_connects_become_one_session() {
    let now = Time(1_000_000);
    let mut machine = dialing(now);
    let mut actions = Vec::new();
    assert_eq!(machine.request(now, &hello(PEER, 3, None, 0, 1), &mut actions), Ok(1));
    machine.arrived(now, 1, 0, &mut actions);
    machine.answered(now, 1, 0, welcome(PEER, 3, 1), &mut actions);
    assert_eq!(actions, [Action::Up { number: 1, welcome: welcome(PEER, 3, 1) }]);
}

#[test]
fn late_and_repeated_answers_are_ignored() {
    let now = Time(1_000_000);
    let mut machine = up(now, 5);
    let mut actions = Vec::new();
    machine.answered(now, 1, 0, welcome(PEER, 5, 1), &mut actions);
    machine.arrived(now, 1, 0, &mut actions);
    machine.arrived(now, 1, 9, &mut actions);
    machine.answered(now, 0, 0, welcome(PEER, 5, 1), &mut actions);
    machine.fail(now, 0, PeerDown::Died, false, &mut actions);
    machine.want(now, Connect::FailFast, &mut actions);
    assert_eq!(actions, []);
    assert!(machine.is_up());
}

#[test]
fn half_open_session_times_out_and_waiters_are_notified() {
    let now = Time(1_000_000);
    let mut machine = dialing(now);
    let mut actions = Vec::new();
    machine.answered(now, 1, 0, welcome(PEER, 1, 1), &mut actions);
    let now = machine.next_timer().unwrap();
    machine.tick(now, &mut actions);
    let until = machine.backoff.not_before(now).unwrap();
    let away = Action::Away { number: 1, cause: PeerDown::NoConnectionBack, until, is_new: true };
    assert_eq!(actions, [Action::Close { number: 1 }, away]);
    // A session that was not requested by a poller ends without a report.
    let mut machine = new(ME, 1);
    machine.request(now, &hello(PEER, 1, None, 0, 1), &mut actions).unwrap();
    actions.clear();
    machine.tick(now + HANDSHAKE_LIMIT, &mut actions);
    assert_eq!(actions, [Action::Close { number: 1 }, Action::Unanswered]);
}

#[test]
fn dial_back_without_answer_is_reported() {
    let now = Time(1_000_000);
    let later = now + PEER_GIVES_UP;
    for (at, is_answered, cause, is_reported) in [
        (now, false, PeerDown::Unreachable, true),
        (now, false, PeerDown::Closed, false),
        (later, false, PeerDown::Closed, true),
        (later, true, PeerDown::Closed, false),
        (later, false, PeerDown::NotListening, false),
    ] {
        let mut machine = new(ME, 1);
        let mut actions = Vec::new();
        machine.request(now, &hello(PEER, 1, None, 0, 1), &mut actions).unwrap();
        if is_answered {
            machine.answered(now, 1, 0, welcome(PEER, 1, 1), &mut actions);
        }
        machine.fail(at, 1, cause, true, &mut actions);
        assert_eq!(actions.contains(&Action::Unanswered), is_reported, "{cause:?} {is_answered}");
    }
    let mut machine = dialing(now);
    let mut actions = Vec::new();
    machine.fail(later, 1, PeerDown::Unreachable, true, &mut actions);
    assert!(!actions.contains(&Action::Unanswered), "this node's own dial");
}

#[test]
fn transient_failures_are_retried_with_backoff() {
    let mut now = Time(1_000_000);
    let mut machine = dialing(now);
    let mut pauses = Vec::new();
    let mut number = 1;
    loop {
        let mut actions = Vec::new();
        machine.fail(now, number, PeerDown::Refused("stale"), true, &mut actions);
        if actions.iter().any(|action| matches!(action, Action::Away { .. })) {
            break;
        }
        let until = machine.next_timer().unwrap();
        pauses.push(until - now);
        now = until;
        actions.clear();
        machine.tick(now, &mut actions);
        number += 1;
        assert_eq!(actions, [Action::Dial { number, poller: 0, echo: None }]);
    }
    assert!(pauses.windows(2).all(|pair| pair[0] < pair[1]), "{pauses:?}");
    assert_eq!(machine.next_timer(), None, "nobody waits for the next attempt");
}

#[test]
fn expired_attempt_is_reported_by_last_answer_of_peer() {
    let rows = [
        (false, false, PeerDown::Unreachable),
        (true, false, PeerDown::NoFurtherAnswer),
        (true, true, PeerDown::NoConnectionBack),
    ];
    for (has_cookie, is_answered, cause) in rows {
        let mut machine = dialing(Time(1_000_000));
        let mut actions = Vec::new();
        if has_cookie {
            machine.unproven(Time(1_000_000), 1, 0, &mut actions);
        }
        if is_answered {
            machine.answered(Time(1_000_000), 1, 0, welcome(PEER, 7, 1), &mut actions);
        }
        let later = Time(1_000_000) + Duration::from_secs(2);
        let lacks = [Time(1_000_000), later].map(|now| machine.lacks_connections_back(now, 1));
        assert_eq!(lacks, [false, is_answered], "if the peer closes the session then");
        let expire = |machine: &mut Machine| {
            let mut actions = Vec::new();
            machine.tick(machine.next_timer().unwrap(), &mut actions);
            match actions.last() {
                Some(&Action::Away { cause, until, .. }) => (cause, until),
                _ => panic!("{actions:?}"),
            }
        };
        let (first, until) = expire(&mut machine);
        machine.want(until, Connect::FailFast, &mut actions);
        let of_silent = if has_cookie { PeerDown::NoFurtherAnswer } else { PeerDown::Unreachable };
        assert_eq!([first, expire(&mut machine).0], [cause, of_silent]);
    }
}

/// Returns a machine whose first attempt was not answered, and the time of the next attempt.
fn away(now: Time) -> (Machine, Time) {
    let mut machine = dialing(now);
    let mut actions = Vec::new();
    machine.fail(now, 1, PeerDown::Unreachable, false, &mut actions);
    let Some(&Action::Away { number: 1, cause: PeerDown::Unreachable, until, is_new: true }) = actions.last()
    else {
        panic!("{actions:?}");
    };
    assert!(until > now);
    (machine, until)
}

#[test]
fn want_during_backoff_is_refused_and_dials_after_pause() {
    let now = Time(1_000_000);
    let (mut machine, until) = away(now);
    for at in [now, Time(until.0 - 1)] {
        let mut actions = Vec::new();
        machine.want(at, Connect::FailFast, &mut actions);
        let refusal = Action::Away { number: 0, cause: PeerDown::Unreachable, until, is_new: false };
        assert_eq!(actions, [refusal]);
        assert_eq!((machine.next_timer(), machine.is_wanted()), (None, false), "nobody waits");
    }
    let mut actions = Vec::new();
    machine.want(until, Connect::FailFast, &mut actions);
    assert_eq!(actions, [Action::Dial { number: 2, poller: 0, echo: None }]);
    actions.clear();
    machine.want(until, Connect::FailFast, &mut actions);
    assert_eq!(actions, [], "it waits for the attempt that is under way");
    assert!(machine.is_wanted());
}

#[test]
fn waiting_caller_shortens_pause() {
    let now = Time(1_000_000);
    let (mut machine, until) = away(now);
    let early = machine.backoff.early(now);
    assert!(early < until);
    let mut actions = Vec::new();
    machine.want(now, Connect::Wait, &mut actions);
    assert_eq!((actions.as_slice(), machine.next_timer()), (&[][..], Some(early)));
    machine.want(now, Connect::FailFast, &mut actions);
    let refusal = Action::Away { number: 0, cause: PeerDown::Unreachable, until, is_new: false };
    assert_eq!(actions, [refusal], "others need not wait with it");
    actions.clear();
    assert!(!machine.is_early(now) && machine.is_early(early));
    let reserved = early + Duration::from_millis(200);
    machine.delay(early, reserved);
    machine.want(early, Connect::Wait, &mut actions);
    machine.tick(early, &mut actions);
    assert_eq!((actions.as_slice(), machine.is_early(reserved)), (&[][..], false), "it keeps its turn");
    machine.tick(reserved, &mut actions);
    assert_eq!(actions, [Action::Dial { number: 2, poller: 0, echo: None }]);
}

#[test]
fn connection_from_peer_resets_its_backoff() {
    let now = Time(1_000_000);
    let (mut machine, _) = away(now);
    let mut actions = Vec::new();
    assert_eq!(machine.request(now, &hello(PEER, 7, None, 0, 1), &mut actions), Ok(2));
    actions.clear();
    machine.want(now, Connect::FailFast, &mut actions);
    assert_eq!(actions, [], "it waits for that session");
    machine.answered(now, 2, 0, welcome(PEER, 7, 1), &mut actions);
    machine.arrived(now, 2, 0, &mut actions);
    assert!(matches!(&actions[..], [Action::Up { number: 2, .. }]), "{actions:?}");
    // When that session ends, the earlier failed attempt no longer counts.
    let now = now + Duration::from_secs(2);
    actions.clear();
    machine.fail(now, 2, PeerDown::Died, false, &mut actions);
    machine.want(now, Connect::FailFast, &mut actions);
    let dial = Action::Dial { number: 3, poller: 0, echo: None };
    let down = Action::Down { number: 2, cause: PeerDown::Died };
    assert_eq!(actions, [Action::Close { number: 2 }, down, dial]);
}

#[test]
fn permanent_failure_is_reported_at_once_each_time() {
    let now = Time(1_000_000);
    let cause = PeerDown::NoAddress { listens_on: ([127, 0, 0, 1], 7471).into() };
    let mut machine = new(ME, 1);
    for number in 1..20 {
        let mut actions = Vec::new();
        machine.want(now, Connect::FailFast, &mut actions);
        assert_eq!(actions, [Action::Dial { number, poller: 0, echo: None }]);
        actions.clear();
        machine.fail(now, number, cause, false, &mut actions);
        assert_eq!(actions, [Action::Close { number }, Action::Down { number, cause }]);
    }
}

#[test]
fn closed_machine_refuses_requests_and_dials() {
    let now = Time(1_000_000);
    let mut machine = up(now, 5);
    let mut actions = Vec::new();
    machine.close(now, &mut actions);
    assert_eq!(
        actions,
        [Action::Close { number: 1 }, Action::Down { number: 1, cause: PeerDown::ShuttingDown }]
    );
    assert_eq!(machine.request(now, &hello(PEER, 6, None, 0, 1), &mut actions), Err(Refusal::ShuttingDown));
    machine.want(now, Connect::FailFast, &mut actions);
    assert_eq!(machine.current(), None);
}

/// A packet in flight between the two machines of a [`World`].
#[derive(Debug, Clone)]
enum Packet {
    Request {
        from: usize,
        number: u32,
        hello: Hello,
    },
    Answer {
        to: usize,
        number: u32,
        poller: u16,
        welcome: Welcome,
    },
    Arrival {
        to: usize,
        number: u32,
        poller: u16,
    },
    Refused {
        to: usize,
        number: u32,
        refusal: Refusal,
    },
    /// One of the four flights of a handshake.
    Flight {
        to: usize,
        flight: u8,
        from: SessionName,
        of: SessionName,
    },
    Gone {
        to: usize,
        session: SessionName,
    },
}

struct World {
    machines: [Machine; 2],
    epochs: [u64; 2],
    pollers: [u16; 2],
    levels: [Levels; 2],
    wires: Vec<Packet>,
    /// Flights that came before the first pair of connections was complete.
    early: Vec<Packet>,
    /// Number of the last proved session of each side.
    proved: [u32; 2],
    refusals: Vec<Refusal>,
    now: Time,
}

impl World {
    fn new(pollers: [u16; 2], levels: [Levels; 2]) -> Self {
        let epochs = [ME, PEER];
        Self {
            machines: [0, 1].map(|who| machine(epochs[who], pollers[who], levels[who])),
            epochs,
            pollers,
            levels,
            wires: Vec::new(),
            early: Vec::new(),
            proved: [0; 2],
            refusals: Vec::new(),
            now: Time(1_000_000),
        }
    }

    /// Handles a flight of a handshake, and sends the next one.
    fn flight(&mut self, to: usize, flight: u8, [from, of]: [SessionName; 2], actions: &mut Vec<Action>) {
        let machine = &mut self.machines[to];
        if machine.session(of.number).is_none_or(|session| session.remote != Some(from)) {
            return;
        }
        if machine.proof(of.number) == ProofState::Pairing {
            self.early.push(Packet::Flight { to, flight, from, of });
            return;
        }
        match flight {
            0 => {}
            1 => machine.peer_proved(of.number),
            _ => {
                self.proved[to] = of.number;
                machine.proved(self.now, of.number, &NAME.into(), actions);
            }
        }
        if flight < 3 {
            self.wires.push(Packet::Flight { to: 1 - to, flight: flight + 1, from: of, of: from });
        }
    }

    fn perform(&mut self, who: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Dial { number, poller, echo } => {
                    let features = self.machines[who].features(number);
                    let is_proved = features == Features::NONE || self.proved[who] == number;
                    assert!(poller == 0 || is_proved, "dialled before the proof");
                    let hello = Hello {
                        features,
                        listener_port: NonZeroU16::new(1).unwrap(),
                        session: SessionName { epoch: self.epochs[who], number },
                        echo,
                        poller,
                        pollers: self.pollers[who],
                        connections: ConnectionKind::Xrc,
                        cookie: None,
                        udp_port: 4791,
                        is_local: false,
                    };
                    self.wires.push(Packet::Request { from: who, number, hello });
                }
                Action::Close { number } => {
                    let session = SessionName { epoch: self.epochs[who], number };
                    self.wires.push(Packet::Gone { to: 1 - who, session });
                }
                Action::Prove { number, .. } => {
                    self.wires.append(&mut self.early);
                    let from = SessionName { epoch: self.epochs[who], number };
                    let of = self.machines[who].session(number).unwrap().remote.unwrap();
                    if from.epoch < of.epoch {
                        self.wires.push(Packet::Flight { to: 1 - who, flight: 0, from, of });
                    }
                }
                Action::Up { number, .. } => {
                    let features = self.machines[who].features(number);
                    assert!(features == Features::NONE || self.proved[who] == number, "up before the proof");
                }
                Action::DropTarget { .. }
                | Action::Unanswered
                | Action::Down { .. }
                | Action::Away { .. } => {}
            }
        }
    }

    fn deliver(&mut self, index: usize) {
        let packet = self.wires.swap_remove(index);
        let mut actions = Vec::new();
        let now = self.now;
        let who = match packet {
            Packet::Request { from, number, hello } => {
                let to = 1 - from;
                if hello.session.epoch != self.epochs[from] {
                    return;
                }
                let hello = Hello::parse(&hello.emit(), self.levels[to].features());
                let answer = hello
                    .and_then(|hello| Ok((hello, self.machines[to].request(now, &hello, &mut actions)?)));
                match answer {
                    Ok((hello, session)) => {
                        let features = self.machines[to].features(session);
                        let welcome = welcome(self.epochs[to], session, self.pollers[to]);
                        let welcome = Welcome { features, ..welcome };
                        self.wires.push(Packet::Answer { to: from, number, poller: hello.poller, welcome });
                        self.wires.push(Packet::Arrival { to, number: session, poller: hello.poller });
                    }
                    Err(refusal) => {
                        self.refusals.push(refusal);
                        self.wires.push(Packet::Refused { to: from, number, refusal });
                    }
                }
                to
            }
            Packet::Answer { to, number, poller, welcome } => {
                self.machines[to].answered(now, number, poller, welcome, &mut actions);
                to
            }
            Packet::Arrival { to, number, poller } => {
                self.machines[to].arrived(now, number, poller, &mut actions);
                to
            }
            Packet::Refused { to, number, refusal } => {
                let machine = &mut self.machines[to];
                if refusal != Refusal::Feature || !machine.feature_refused(now, number, &mut actions) {
                    machine.fail(now, number, refusal.cause(), refusal == Refusal::Stale, &mut actions);
                }
                to
            }
            Packet::Flight { to, flight, from, of } => {
                self.flight(to, flight, [from, of], &mut actions);
                to
            }
            Packet::Gone { to, session } => {
                let machine = &mut self.machines[to];
                let gone = machine.sessions().find(|own| own.remote == Some(session));
                if let Some(number) = gone.map(|own| own.number) {
                    machine.fail(now, number, PeerDown::Closed, true, &mut actions);
                }
                to
            }
        };
        self.perform(who, actions);
    }

    fn tick(&mut self) {
        let next = self.machines.iter().filter_map(Machine::next_timer).min();
        if let Some(next) = next {
            self.now = self.now.max(next);
        }
        for who in 0..2 {
            let mut actions = Vec::new();
            self.machines[who].tick(self.now, &mut actions);
            self.perform(who, actions);
        }
    }

    fn want(&mut self, who: usize, connect: Connect) {
        let mut actions = Vec::new();
        self.machines[who].want(self.now, connect, &mut actions);
        self.perform(who, actions);
    }

    fn agreed(&self) -> bool {
        let names = [0, 1].map(|who| match &self.machines[who].state {
            SessionState::Open(session) if session.up_since.is_some() => {
                Some((SessionName { epoch: self.epochs[who], number: session.number }, session.remote))
            }
            _ => None,
        });
        match names {
            [Some((a, a_remote)), Some((b, b_remote))] => a_remote == Some(b) && b_remote == Some(a),
            _ => false,
        }
    }
}

proptest! {
    /// After any history, two nodes agree on a session if one of them requests it.
    #[test]
    fn machines_converge_to_one_session(
        pollers in (1u16..4, 1u16..4),
        levels in any::<proptest::sample::Index>(),
        steps in proptest::collection::vec((0u8..12, any::<u16>()), 0..120),
        last in 0usize..2,
    ) {
        let pollers = [pollers.0, pollers.1];
        let agreeing = level_pairs().filter(|(_, features)| features.is_some()).collect::<Vec<_>>();
        let (levels, features) = *levels.get(&agreeing);
        let mut world = World::new(pollers, levels);
        for (step, random) in steps {
            let who = usize::from(random % 2);
            match step {
                0 => world.want(who, if random % 3 == 0 { Connect::Wait } else { Connect::FailFast }),
                1 => world.tick(),
                2 => {
                    // The trunk breaks, as seen from one side.
                    if let Some(number) = world.machines[who].current() {
                        let mut actions = Vec::new();
                        let now = world.now;
                        world.machines[who].fail(now, number, PeerDown::Died, false, &mut actions);
                        world.perform(who, actions);
                    }
                }
                3 if random % 4 == 0 => {
                    world.epochs[who] += 100;
                    world.machines[who] = machine(world.epochs[who], pollers[who], levels[who]);
                }
                _ if !world.wires.is_empty() => {
                    let index = usize::from(random) % world.wires.len();
                    world.deliver(index);
                }
                _ => {}
            }
        }
        let mut rounds = 0;
        while !(world.wires.is_empty() && world.agreed()) {
            if !world.machines[last].is_up() {
                world.want(last, Connect::Wait);
            }
            while !world.wires.is_empty() {
                world.deliver(0);
                rounds += 1;
                prop_assert!(rounds < 20_000, "no end of packets: {:?}", world.wires);
            }
            if !world.agreed() {
                // A side with a session unknown to the other detects this through its keepalive.
                for who in 0..2 {
                    if world.machines[who].is_up() {
                        let number = world.machines[who].current().unwrap();
                        let mut actions = Vec::new();
                        let now = world.now;
                        world.machines[who].fail(now, number, PeerDown::Died, false, &mut actions);
                        world.perform(who, actions);
                    }
                }
                world.tick();
            }
            rounds += 1;
            prop_assert!(rounds < 20_000, "never agreed");
        }
        prop_assert_eq!(world.machines.each_ref().map(|machine| Some(machine.features(machine.current().unwrap()))), [features; 2]);
    }
}

#[test]
fn unknown_critical_setting_is_refused_by_number_until_peer_restarts() {
    let now = Time(1_000_000);
    let cause = PeerDown::UnknownSetting(9);
    let mut machine = up(now, 5);
    let mut actions = Vec::new();
    machine.fail(now, 1, cause, false, &mut actions);
    let [Action::Close { number: 1 }, Action::Away { number: 1, cause: told, until, is_new: true }] =
        actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(told, cause);
    // All earlier callers have failed, so new callers do not wait for the next attempt.
    for connect in [Connect::FailFast, Connect::Wait] {
        actions.clear();
        machine.want(now, connect, &mut actions);
        assert_eq!(actions, [Action::Away { number: 0, cause, until, is_new: false }]);
    }
    actions.clear();
    assert_eq!(machine.request(now, &hello(PEER, 6, None, 0, 1), &mut actions), Err(Refusal::Setting(9)));
    assert_eq!(actions, []);
    // The next attempt ends as soon as the incarnation is identified, from its answer or its own request.
    for number in [2, 3] {
        let now = until + Duration::from_secs(number.into());
        machine.want(now, Connect::FailFast, &mut actions);
        assert_eq!(actions, [Action::Dial { number, poller: 0, echo: None }]);
        actions.clear();
        if number == 2 {
            machine.answered(now, number, 0, welcome(PEER, 7, 1), &mut actions);
        } else {
            let request = hello(PEER, 7, Some(number), 0, 1);
            assert_eq!(machine.request(now, &request, &mut actions), Err(Refusal::Setting(9)));
        }
        assert!(
            matches!(actions[..], [Action::Close { .. }, Action::Away { cause: told, .. }] if told == cause),
            "{actions:?}"
        );
        actions.clear();
    }
    assert_eq!(machine.request(now, &hello(33, 1, None, 0, 1), &mut actions), Ok(4), "its successor");
}

#[path = "level_tests.rs"]
mod levels;
