//! Tests of the machine's rules for levels, with pairs of machines in every order of messages, refused requests, and
//! actions that wait for the proof.

use super::*;

/// Calls `run` once for every sequence of choices. The argument of `run` chooses a number below a bound.
fn for_every_choice(mut run: impl FnMut(&mut dyn FnMut(usize) -> usize)) {
    let mut choices = Vec::<(usize, usize)>::new();
    loop {
        let mut next = 0;
        run(&mut |count| {
            if next == choices.len() {
                choices.push((0, count));
            }
            next += 1;
            choices[next - 1].0
        });
        while choices.last().is_some_and(|&(chosen, count)| chosen + 1 == count) {
            choices.pop();
        }
        let Some(last) = choices.last_mut() else { return };
        last.0 += 1;
    }
}

#[test]
fn levels_agree_in_every_order_of_messages() {
    for (levels, features) in level_pairs() {
        for dialling in [&[0][..], &[1], &[0, 1]] {
            for_every_choice(|choose| {
                let mut world = World::new([1, 1], levels);
                for &who in dialling {
                    world.want(who, Connect::FailFast);
                }
                let mut messages = 0;
                while !world.wires.is_empty() {
                    let index = choose(world.wires.len());
                    world.deliver(index);
                    messages += 1;
                    assert!(messages < 100, "no end of messages");
                }
                for _ in 0..10 {
                    if world.agreed() || features.is_none() {
                        break;
                    }
                    // The attempts that were refused as stale are repeated.
                    world.tick();
                    while !world.wires.is_empty() {
                        world.deliver(0);
                    }
                }
                assert_eq!(world.agreed(), features.is_some(), "{levels:?} {dialling:?}");
                if let Some(features) = features {
                    assert_eq!(
                        world.machines.each_ref().map(|machine| machine.features(machine.current().unwrap())),
                        [features; 2]
                    );
                } else {
                    let refusal = |who: &usize| match levels[*who] {
                        Levels::None => Refusal::IdentityRequired,
                        _ => Refusal::Feature,
                    };
                    let mut refusals = dialling.iter().map(refusal).collect::<Vec<_>>();
                    refusals.sort_by_key(|refusal| *refusal == Refusal::Feature);
                    world.refusals.sort_by_key(|refusal| *refusal == Refusal::Feature);
                    assert_eq!(world.refusals, refusals, "{levels:?} {dialling:?}");
                }
                if dialling.len() == 1 && levels[dialling[0]] != Levels::Either {
                    assert!(world.refusals.len() == usize::from(features.is_none()), "{:?}", world.refusals);
                }
            });
        }
    }
}

/// Returns a request with HANDSHAKE.
fn secure(hello: Hello) -> Hello {
    Hello { features: Features::HANDSHAKE, ..hello }
}

/// Returns a reply with HANDSHAKE for the peer's session 5.
fn secure_welcome(pollers: u16) -> Welcome {
    Welcome { features: Features::HANDSHAKE, ..welcome(PEER, 5, pollers) }
}

/// Returns a machine with two pollers, whose session 1 has been dialled.
fn dialling_at(now: Time, levels: Levels) -> Machine {
    let mut machine = machine(ME, 2, levels);
    let mut actions = Vec::new();
    machine.want(now, Connect::FailFast, &mut actions);
    assert_eq!(actions, [Action::Dial { number: 1, poller: 0, echo: None }]);
    machine
}

/// Returns a machine that waits for the proof of session 1, with session 5 of the peer. Both have two pollers.
fn exchanging(now: Time, levels: Levels) -> Machine {
    let mut machine = dialling_at(now, levels);
    let mut actions = Vec::new();
    machine.answered(now, 1, 0, secure_welcome(2), &mut actions);
    assert_eq!(machine.request(now, &secure(hello(PEER, 5, Some(1), 0, 2)), &mut actions), Ok(1));
    assert_eq!(actions, [], "one pair of connections");
    machine.arrived(now, 1, 0, &mut actions);
    assert_eq!(actions, [Action::Prove { number: 1, deadline: now + HANDSHAKE_LIMIT }]);
    machine
}

#[test]
fn requests_are_judged_by_level() {
    let now = Time(1_000_000);
    let idle = |levels| machine(ME, 2, levels);
    let joined = || {
        let mut machine = dialling_at(now, Levels::Either);
        machine.request(now, &secure(hello(PEER, 5, None, 0, 2)), &mut Vec::new()).unwrap();
        machine
    };
    let proved = || {
        let mut machine = exchanging(now, Levels::Either);
        machine.proved(now, 1, &NAME.into(), &mut Vec::new());
        machine
    };
    let unproven = || {
        let mut machine = idle(Levels::Either);
        machine.request(now, &hello(PEER, 5, None, 0, 2), &mut Vec::new()).unwrap();
        machine
    };
    let plain = |number| hello(PEER, number, None, 0, 2);
    let other = |number| secure(hello(PEER, number, None, 1, 2));
    for (row, mut machine, request, refusal) in [
        (0, idle(Levels::Encrypted), plain(5), Refusal::IdentityRequired),
        (1, exchanging(now, Levels::Encrypted), plain(6), Refusal::IdentityRequired),
        (2, dialling_at(now, Levels::Either), plain(5), Refusal::Stale),
        (3, joined(), plain(5), Refusal::Stale),
        (4, joined(), hello(33, 1, None, 0, 2), Refusal::Stale),
        (5, proved(), hello(33, 1, None, 0, 2), Refusal::IdentityRequired),
        (6, unproven(), secure(plain(5)), Refusal::Stale),
        (7, unproven(), other(5), Refusal::Stale),
        (8, idle(Levels::Encrypted), secure(hello(ME, 1, None, 0, 2)), Refusal::Malformed),
        (9, dialling_at(now, Levels::Encrypted), secure(hello(ME, 1, None, 0, 2)), Refusal::Malformed),
        (10, idle(Levels::Encrypted), other(5), Refusal::Malformed),
        (11, joined(), other(5), Refusal::Malformed),
        (12, exchanging(now, Levels::Encrypted), other(5), Refusal::Malformed),
        (13, proved(), other(6), Refusal::Malformed),
    ] {
        let (before, mut actions) = (machine.current(), Vec::new());
        assert_eq!(machine.request(now, &request, &mut actions), Err(refusal), "row {row}");
        assert_eq!((machine.current(), actions), (before, Vec::new()), "row {row}");
    }
    let mut client = exchanging(now, Levels::Encrypted);
    client.peer_proved(1);
    for mut machine in [client, proved()] {
        assert_eq!(machine.request(now, &other(5), &mut Vec::new()), Ok(1));
    }
}

#[test]
fn dial_without_handshake_yields_to_dial_with_handshake() {
    let now = Time(1_000_000);
    let dialling = || {
        let mut machine = dialling_at(now, Levels::Either);
        let mut actions = Vec::new();
        assert!(machine.feature_refused(now, 1, &mut actions));
        let dial = Action::Dial { number: 2, poller: 0, echo: None };
        assert_eq!(actions, [Action::Close { number: 1 }, dial]);
        assert_eq!(machine.features(2), Features::NONE);
        assert!(!machine.feature_refused(now, 2, &mut actions), "once");
        machine
    };
    let (mut machine, mut actions) = (dialling(), Vec::new());
    assert_eq!(machine.request(now, &secure(hello(PEER, 5, None, 0, 2)), &mut actions), Ok(3));
    let dial = Action::Dial { number: 3, poller: 0, echo: Some(SessionName { epoch: PEER, number: 5 }) };
    assert_eq!(actions, [Action::Close { number: 2 }, dial]);
    assert_eq!((machine.features(3), machine.is_wanted()), (Features::HANDSHAKE, true));
    let echo = secure(hello(PEER, 5, Some(2), 0, 2));
    assert_eq!(
        dialling().request(now, &echo, &mut actions),
        Err(Refusal::Stale),
        "it has accepted the other"
    );
}

#[test]
fn dial_keeps_features_unless_handshake_is_optional() {
    let now = Time(1_000_000);
    let mut named = dialling_at(now, Levels::Either);
    named.request(now, &secure(hello(PEER, 5, None, 0, 2)), &mut Vec::new()).unwrap();
    for (mut machine, number) in [
        (dialling_at(now, Levels::None), 1),
        (dialling_at(now, Levels::Encrypted), 1),
        (dialling_at(now, Levels::Either), 9),
        (named, 1),
    ] {
        let (features, mut actions) = (machine.features(1), Vec::new());
        assert!(!machine.feature_refused(now, number, &mut actions));
        assert_eq!((actions, machine.current(), machine.features(1)), (Vec::new(), Some(1), features));
    }
}

#[test]
fn reply_with_other_features_than_request_ends_session() {
    let now = Time(1_000_000);
    for (levels, reply) in [(Levels::None, secure_welcome(2)), (Levels::Either, welcome(PEER, 5, 2))] {
        let (mut machine, mut actions) = (dialling_at(now, levels), Vec::new());
        machine.answered(now, 1, 0, reply, &mut actions);
        let ended = Action::Close { number: 1 };
        assert!(
            matches!(&actions[..], [close, Action::Away { cause: PeerDown::Misbehaved(_), .. }] if *close == ended),
            "{actions:?}"
        );
    }
}

#[test]
fn no_further_connection_is_dialled_before_proof() {
    let now = Time(1_000_000);
    let (mut machine, mut actions) = (dialling_at(now, Levels::Encrypted), Vec::new());
    machine.unproven(now, 1, 0, &mut actions);
    assert_eq!(actions, [Action::Dial { number: 1, poller: 0, echo: None }], "also with a cookie");
    actions.clear();
    machine.request(now, &secure(hello(PEER, 5, None, 0, 2)), &mut actions).unwrap();
    machine.arrived(now, 1, 0, &mut actions);
    machine.proved(now, 1, &NAME.into(), &mut actions);
    machine.peer_proved(1);
    assert_eq!(actions, [], "half a pair proves nothing");
    machine.answered(now, 1, 0, secure_welcome(2), &mut actions);
    machine.arrived(now, 1, 0, &mut actions);
    assert_eq!(
        actions,
        [Action::Prove { number: 1, deadline: now + HANDSHAKE_LIMIT }],
        "once, whichever comes last"
    );
    actions.clear();
    machine.proved(now, 9, &NAME.into(), &mut actions);
    assert_eq!(actions, [], "of another session");
    let later = now + HANDSHAKE_LIMIT / 2;
    machine.proved(later, 1, &NAME.into(), &mut actions);
    machine.proved(later, 1, &NAME.into(), &mut actions);
    assert_eq!(actions, [Action::Dial { number: 1, poller: 1, echo: None }]);
    assert_eq!(machine.next_timer(), Some(later + HANDSHAKE_LIMIT));
    actions.clear();
    machine.request(later, &secure(hello(PEER, 5, None, 1, 2)), &mut actions).unwrap();
    machine.arrived(later, 1, 1, &mut actions);
    assert_eq!(actions, []);
    machine.answered(later, 1, 1, secure_welcome(2), &mut actions);
    assert_eq!(actions, [Action::Up { number: 1, welcome: secure_welcome(2) }]);
    // With one poller each, the proof is the last step.
    let (mut machine, mut actions) = (Machine::new(ME, 1, Levels::Encrypted, Numbers::default()), Vec::new());
    machine.request(now, &secure(hello(PEER, 5, None, 0, 1)), &mut actions).unwrap();
    machine.arrived(now, 1, 0, &mut actions);
    machine.answered(now, 1, 0, secure_welcome(1), &mut actions);
    assert_eq!(actions.last(), Some(&Action::Prove { number: 1, deadline: now + HANDSHAKE_LIMIT }));
    machine.proved(now, 1, &NAME.into(), &mut actions);
    assert_eq!(actions.last(), Some(&Action::Up { number: 1, welcome: secure_welcome(1) }));
}

#[test]
fn each_half_of_session_with_handshake_has_time_limit() {
    let now = Time(1_000_000);
    let mut answered = dialling_at(now, Levels::Encrypted);
    answered.answered(now, 1, 0, secure_welcome(2), &mut Vec::new());
    let mut client = exchanging(now, Levels::Encrypted);
    client.peer_proved(1);
    let late = now + HANDSHAKE_LIMIT / 2;
    let mut proved = exchanging(now, Levels::Encrypted);
    proved.proved(late, 1, &NAME.into(), &mut Vec::new());
    let timed_out = PeerDown::RefusedHere("the handshake timed out");
    let told = now + FAILURE_LIMIT;
    for (row, mut machine, start, cause) in [
        (0, dialling_at(now, Levels::Encrypted), now, PeerDown::Unreachable),
        (1, answered, now, PeerDown::NoConnectionBack),
        (2, exchanging(now, Levels::Encrypted), told, timed_out),
        (3, client, told, timed_out),
        (4, proved, late, PeerDown::NoFurtherAnswer),
    ] {
        let (end, mut actions) = (start + HANDSHAKE_LIMIT, Vec::new());
        machine.tick(Time(end.0 - 1), &mut actions);
        assert_eq!(actions, [], "row {row}");
        machine.tick(end, &mut actions);
        assert!(
            matches!(actions[..], [Action::Close { number: 1 }, Action::Away { cause: told, .. }] if told == cause),
            "row {row}: {actions:?}"
        );
    }
}

#[test]
fn request_joined_to_dial_of_another_session_loses_connection() {
    let now = Time(1_000_000);
    for arrives in [false, true] {
        let (mut machine, mut actions) = (dialling_at(now, Levels::Encrypted), Vec::new());
        machine.request(now, &secure(hello(33, 7, None, 0, 3)), &mut actions).unwrap();
        if arrives {
            machine.arrived(now, 1, 0, &mut actions);
        }
        machine.answered(now, 1, 0, secure_welcome(2), &mut actions);
        assert_eq!(actions, [Action::DropTarget { number: 1, poller: 0 }]);
        assert!(!machine.is_accepted());
        machine.arrived(now, 1, 0, &mut actions);
        assert_eq!(actions.len(), 1, "a late arrival of the lost connection");
        assert_eq!(machine.request(now, &secure(hello(PEER, 5, Some(1), 0, 2)), &mut actions), Ok(1));
        machine.arrived(now, 1, 0, &mut actions);
        assert_eq!(actions[1..], [Action::Prove { number: 1, deadline: now + HANDSHAKE_LIMIT }]);
    }
    let mut machine = dialling_at(now, Levels::Encrypted);
    for (session, current) in [(5, Some(1)), (6, None)] {
        let reply = Welcome { features: Features::HANDSHAKE, ..welcome(PEER, session, 2) };
        machine.answered(now, 1, 0, reply, &mut Vec::new());
        assert_eq!(machine.current(), current, "the second reply is a restart");
    }
}

/// Passes in the REQ of a newcomer, whose session becomes the candidate `number`, and continues up to the exchange.
fn newcomer(machine: &mut Machine, now: Time, epoch: u64, number: u32, actions: &mut Vec<Action>) {
    let request = secure(hello(epoch, 1, None, 0, 2));
    assert_eq!(machine.request(now, &request, actions), Ok(number));
    let reply = Welcome { features: Features::HANDSHAKE, ..welcome(epoch, 1, 2) };
    machine.arrived(now, number, 0, actions);
    machine.answered(now, number, 0, reply, actions);
    machine.peer_proved(number);
}

#[test]
fn live_session_ends_only_for_newcomer_of_same_name() {
    let now = Time(1_000_000);
    let live = |features| {
        let mut machine = match features {
            Features::NONE => up(now, 5),
            _ => exchanging(now, Levels::Either),
        };
        machine.levels = Levels::Either;
        machine.proved(now, 1, &NAME.into(), &mut Vec::new());
        machine
    };
    for (row, mut machine, name, outcome) in [
        (0, live(Features::HANDSHAKE), NAME, Some(PeerDown::Restarted)),
        (1, live(Features::HANDSHAKE), "other.example", None),
        (2, live(Features::NONE), NAME, Some(PeerDown::Restarted)),
    ] {
        let (mut actions, number) = (Vec::new(), machine.numbers.0.load(Ordering::Relaxed) + 1);
        newcomer(&mut machine, now, 33, number, &mut actions);
        assert_eq!(machine.current(), Some(1), "row {row}: a request alone ends nothing");
        let was_up = machine.is_up();
        actions.clear();
        assert_eq!(machine.proved(now, number, &name.into(), &mut actions), outcome.is_some(), "row {row}");
        match outcome {
            Some(cause) => {
                let ended = [Action::Close { number: 1 }, Action::Down { number: 1, cause }];
                assert!(actions.starts_with(&ended[..1 + usize::from(was_up)]), "row {row}: {actions:?}");
                assert_eq!(machine.current(), Some(number), "row {row}");
            }
            None => {
                assert_eq!((actions.len(), machine.current()), (0, Some(1)), "row {row}");
                machine.fail(now, number, PeerDown::Closed, false, &mut actions);
                assert_eq!(actions, [Action::Close { number }], "row {row}: nobody is told");
            }
        }
    }
}

#[test]
fn first_newcomer_with_proven_name_becomes_session_and_others_time_out() {
    let now = Time(1_000_000);
    let (mut machine, mut actions) = (exchanging(now, Levels::Encrypted), Vec::new());
    newcomer(&mut machine, now, 33, 2, &mut actions);
    actions.clear();
    assert!(machine.proved(now, 2, &NAME.into(), &mut actions));
    assert_eq!(machine.current(), Some(2));
    assert!(machine.has(1) && !actions.contains(&Action::Close { number: 1 }), "{actions:?}");
    actions.clear();
    assert!(!machine.proved(now, 1, &"other.example".into(), &mut actions), "another name is live");
    machine.tick(now + HANDSHAKE_LIMIT + FAILURE_LIMIT, &mut actions);
    assert!(actions.contains(&Action::Close { number: 1 }), "{actions:?}");
}

#[test]
fn newcomers_are_bounded_in_number_and_time() {
    let now = Time(1_000_000);
    let (mut machine, mut actions) = (exchanging(now, Levels::Encrypted), Vec::new());
    machine.proved(now, 1, &NAME.into(), &mut Vec::new());
    for number in 2..8 {
        actions.clear();
        newcomer(&mut machine, now, 100 + u64::from(number), number, &mut actions);
        let oldest = number.checked_sub(4).filter(|oldest| *oldest > 1);
        let closed = oldest.map(|number| Action::Close { number });
        assert_eq!(actions.iter().find(|action| matches!(action, Action::Close { .. })), closed.as_ref());
    }
    assert_eq!(machine.unproven_sessions() + machine.candidates(), 4, "all have proved a name");
    let other = |epoch| secure(hello(epoch, 1, None, 1, 2));
    assert_eq!(machine.request(now, &other(107), &mut actions), Ok(7), "its second poller, after its proof");
    machine.request(now, &secure(hello(200, 1, None, 0, 2)), &mut actions).unwrap();
    assert_eq!(machine.request(now, &other(200), &mut actions), Err(Refusal::Malformed), "before its proof");
    actions.clear();
    machine.tick(now + HANDSHAKE_LIMIT + FAILURE_LIMIT, &mut actions);
    assert_eq!(
        actions.iter().filter(|action| matches!(action, Action::Close { .. })).count(),
        5,
        "with ours"
    );
}

/// Returns a reply for session 5 without a handshake.
fn plain_welcome(is_local: bool) -> Welcome {
    Welcome { is_local, ..welcome(PEER, 5, 2) }
}

#[test]
fn dial_of_local_user_needs_proof_of_user_or_handshake() {
    let now = Time(1_000_000);
    let local = || {
        let (mut machine, mut actions) = (machine(ME, 2, Levels::Encrypted), Vec::new());
        machine.set_local(true);
        machine.want(now, Connect::FailFast, &mut actions);
        assert_eq!(actions, [Action::Dial { number: 1, poller: 0, echo: None }]);
        assert_eq!(machine.features(1), Features::NONE);
        machine
    };
    let again = [Action::Close { number: 1 }, Action::Dial { number: 2, poller: 0, echo: None }];
    for is_proved in [true, false] {
        let (mut machine, mut actions) = (local(), Vec::new());
        machine.answered(now, 1, 0, plain_welcome(is_proved), &mut actions);
        if is_proved {
            assert_eq!(actions, [Action::Dial { number: 1, poller: 1, echo: None }]);
            assert!(machine.is_with_local_user());
        } else {
            assert_eq!((&actions[..], machine.features(2)), (&again[..], Features::HANDSHAKE));
        }
    }
    let (mut machine, mut actions) = (local(), Vec::new());
    assert!(machine.identity_required(now, 1, &mut actions));
    assert_eq!((&actions[..], machine.features(2)), (&again[..], Features::HANDSHAKE));
    assert!(!machine.identity_required(now, 2, &mut actions), "once");
}

#[test]
fn requests_of_local_users_need_no_handshake() {
    let now = Time(1_000_000);
    let hello = |epoch, is_local| Hello { is_local, ..hello(epoch, 5, None, 0, 1) };
    let idle = || machine(ME, 1, Levels::Encrypted);
    assert_eq!(idle().request(now, &hello(PEER, false), &mut Vec::new()), Err(Refusal::IdentityRequired));
    let live = |levels| {
        let (mut machine, mut actions) = (machine(ME, 1, levels), Vec::new());
        assert_eq!(machine.request(now, &hello(PEER, true), &mut actions), Ok(1));
        machine.arrived(now, 1, 0, &mut actions);
        machine.answered(now, 1, 0, Welcome { is_local: true, ..welcome(PEER, 5, 1) }, &mut actions);
        assert!(machine.is_up() && machine.is_with_local_user());
        machine
    };
    let mut machine = live(Levels::Either);
    let refused = machine.request(now, &hello(33, false), &mut Vec::new());
    assert_eq!(refused, Err(Refusal::IdentityRequired), "of another user at the address");
    assert_eq!(machine.request(now, &hello(33, true), &mut Vec::new()), Ok(2), "the same user");
    let (mut machine, mut actions) = (live(Levels::Encrypted), Vec::new());
    newcomer(&mut machine, now, 33, 2, &mut actions);
    assert!(!machine.proved(now, 2, &NAME.into(), &mut actions), "a local user is live");
}
