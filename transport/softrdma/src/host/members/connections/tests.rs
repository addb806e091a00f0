//! Tests of members that exchange messages, die, or send malformed messages.

use super::*;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use trunkline_testkit::Folder as Runtime;

fn member(folder: &Path) -> Connections {
    let host = Host::join(Some(&folder.join("run"))).unwrap();
    Connections::new(Arc::clone(&host), host.directory().unwrap()).unwrap()
}

/// Returns members that share a runtime directory.
fn members<const N: usize>() -> (Runtime, [Connections; N]) {
    let runtime = Runtime::new().unwrap();
    let members = [(); N].map(|()| member(runtime.path()));
    (runtime, members)
}

/// Returns the next message as owned bytes. Its sender, in this process, has sent it before the call.
fn next(link: &mut Connections) -> Option<(MemberId, u8, Vec<u8>)> {
    match link.receive()? {
        Arrived::Message { from, kind, bytes } => Some((from, kind, bytes.to_vec())),
        other => panic!("{other:?}"),
    }
}

fn lost(link: &mut Connections) -> Option<MemberId> {
    match link.receive()? {
        Arrived::Lost(member) => Some(member),
        other => panic!("{other:?}"),
    }
}

fn count(link: &Connections, name: &str) -> u64 {
    let mut all = Vec::new();
    link.counters(&mut all);
    all.iter().find(|counter| counter.name == name).unwrap().value
}

fn me(link: &Connections) -> MemberId {
    link.host.me()
}

#[test]
fn messages_arrive_whole_in_order_and_with_their_sender() {
    let (_runtime, [mut a, mut b, mut c]) = members();
    assert!(!b.is_readable());
    let long = vec![9; MAX_MESSAGE_BYTES];
    a.send(me(&b), 1, &[b"one", b"", b"two"]).unwrap();
    a.send(me(&b), 2, &[&long]).unwrap();
    assert!(b.is_readable());
    assert_eq!(next(&mut b), Some((me(&a), 1, b"onetwo".to_vec())));
    assert_eq!(next(&mut b), Some((me(&a), 2, long)));
    c.send(me(&b), 3, &[]).unwrap();
    assert_eq!(next(&mut b), Some((me(&c), 3, Vec::new())));
    b.send(me(&a), 4, &[b"back"]).unwrap();
    assert_eq!(next(&mut a), Some((me(&b), 4, b"back".to_vec())));
    assert_eq!(next(&mut b), None);
    assert!(!b.is_readable());
    assert_eq!((count(&a, "local_sent"), count(&b, "local_received")), (2, 3));
}

#[test]
fn too_long_message_is_refused_by_send() {
    let (_runtime, [mut a, mut b]) = members();
    let long = vec![0; MAX_MESSAGE_BYTES + 1];
    assert_eq!(a.send(me(&b), 1, &[&long]), Err(Undelivered::TooLong));
    assert_eq!(a.send(me(&b), 1, &[&[0][..]; MAX_PARTS + 1]), Err(Undelivered::TooLong));
    assert_eq!(next(&mut b), None);
}

#[test]
fn messages_to_non_reading_member_are_dropped_and_counted() {
    let (_runtime, [mut a, mut b]) = members();
    let bytes = vec![1; 4096];
    let mut left = 0;
    for _ in 0..10_000 {
        left += u64::from(a.send(me(&b), 1, &[&bytes]).is_ok());
    }
    assert!(left > 0 && left < 10_000, "{left}");
    assert_eq!(count(&a, "drop_local_full"), 10_000 - left);
    let mut got = 0;
    while next(&mut b).is_some() {
        got += 1;
    }
    assert_eq!(got, left);
    a.send(me(&b), 1, &[b"again"]).unwrap();
    assert_eq!(next(&mut b).unwrap().2, b"again");
}

/// The end of a connection would end everything that the two members share.
#[test]
fn resource_shortage_does_not_end_connection() {
    let (_runtime, [mut a, mut b]) = members();
    a.send(me(&b), 1, &[b"first"]).unwrap();
    for (errno, outcome) in [
        (libc::ENOBUFS, Undelivered::Full),
        (libc::ENOMEM, Undelivered::Full),
        (libc::ETOOMANYREFS, Undelivered::TooManyDescriptors),
    ] {
        assert_eq!(a.deliver(me(&b), |_| Err(io::Error::from_raw_os_error(errno))), Err(outcome));
    }
    assert_eq!(lost(&mut a), None);
    assert_eq!((next(&mut b).unwrap().2, next(&mut b)), (b"first".to_vec(), None));
}

#[test]
fn end_of_member_is_reported_once_to_each_peer() {
    let (_runtime, [mut a, mut b, mut c]) = members();
    let gone = me(&b);
    a.watch(gone);
    b.send(me(&a), 1, &[b"x"]).unwrap();
    b.send(me(&c), 1, &[b"x"]).unwrap();
    assert!(next(&mut a).is_some() && next(&mut c).is_some());
    assert_eq!(next(&mut b), None);
    drop(b);
    assert_eq!((lost(&mut a), lost(&mut a)), (Some(gone), None));
    assert_eq!((lost(&mut c), lost(&mut c)), (Some(gone), None));
    assert_eq!(a.send(gone, 1, &[b"x"]), Err(Undelivered::Gone));
    // A member that starts to watch after the end also gets the report.
    a.watch(gone);
    assert_eq!(lost(&mut a), Some(gone));
    assert_eq!(a.connections.len() + c.connections.len(), 0);
}

#[test]
fn last_messages_of_member_arrive_before_its_end() {
    let (runtime, [mut a, mut b]) = members();
    let gone = me(&b);
    a.send(gone, 1, &[b"x"]).unwrap();
    b.send(me(&a), 0, &[b"x"]).unwrap();
    assert!(next(&mut b).is_some() && next(&mut a).is_some());
    let last = [1, 2, 3];
    last.iter().for_each(|kind| b.send(me(&a), *kind, &[b"last"]).unwrap());
    drop(b);
    assert_eq!(
        last.map(|_| next(&mut a).map(|(from, kind, _)| (from, kind))),
        last.map(|kind| Some((gone, kind)))
    );
    assert_eq!((lost(&mut a), lost(&mut a)), (Some(gone), None));
    assert_eq!(a.connections.len(), 0);
    // This side detects the end when it sends.
    let (mut a, mut b) = (member(runtime.path()), member(runtime.path()));
    let gone = me(&b);
    a.send(gone, 1, &[b"x"]).unwrap();
    b.send(me(&a), 1, &[b"last"]).unwrap();
    assert!(next(&mut b).is_some() && next(&mut a).is_some());
    b.send(me(&a), 2, &[b"last"]).unwrap();
    drop(b);
    assert!(a.send(gone, 1, &[b"x"]).is_err());
    assert_eq!(next(&mut a), Some((gone, 2, b"last".to_vec())));
    assert_eq!(lost(&mut a), Some(gone));
}

/// A member may end before this side has accepted its connection.
#[test]
fn messages_of_ended_member_arrive_before_report_of_its_end() {
    // This side may have a connection to the member, or begin to watch it later.
    for (is_connected, is_watched) in [(false, false), (true, false), (false, true)] {
        let (_runtime, [mut a, mut b]) = members();
        let gone = me(&b);
        if is_connected {
            a.send(gone, 1, &[b"x"]).unwrap();
            assert!(next(&mut b).is_some());
        }
        b.send(me(&a), 2, &[b"first"]).unwrap();
        b.send(me(&a), 3, &[b"last"]).unwrap();
        drop(b);
        if is_watched {
            assert!(a.watch(gone));
        }
        assert_eq!(next(&mut a), Some((gone, 2, b"first".to_vec())));
        assert_eq!(next(&mut a), Some((gone, 3, b"last".to_vec())));
        assert_eq!((lost(&mut a), lost(&mut a)), (Some(gone), None));
        assert_eq!(a.connections.len(), 0);
    }
}

#[test]
fn messages_on_earlier_connection_of_member_arrive() {
    let (_runtime, [mut a, mut b]) = members();
    let of_b = me(&b);
    b.send(me(&a), 1, &[b"first"]).unwrap();
    assert!(next(&mut a).is_some());
    b.send(me(&a), 2, &[b"second"]).unwrap();
    let newer = b.folder.connect(me(&a).slot).unwrap();
    socket::send(&newer, &[IoSlice::new(&hello(of_b, me(&a)))]).unwrap();
    socket::send(&newer, &[IoSlice::new(b"\x03third")]).unwrap();
    // Read the newer connection first.
    a.readable.clear();
    a.readable.push_back(LISTENER);
    let mut kinds = [next(&mut a), next(&mut a)].map(|message| message.unwrap().1);
    kinds.sort_unstable();
    assert_eq!(kinds, [2, 3]);
    assert_eq!(lost(&mut a), None);
    assert_eq!(a.connections.len(), 1);
    drop(newer);
    assert_eq!(lost(&mut a), Some(of_b));
}

#[test]
fn malformed_messages_of_same_user_are_dropped_and_counted() {
    let (_runtime, [mut a, mut b]) = members();
    let (of_a, of_b) = (me(&a), me(&b));
    let stranger = MemberId { slot: of_a.slot, generation: of_a.generation.wrapping_add(1) };
    let absent = MemberId { slot: 1023, generation: u32::MAX };
    let hellos = [
        b"hello".to_vec(),
        vec![0; HELLO_BYTES],
        vec![0xff; HELLO_BYTES],
        vec![7; 2 * MAX_MESSAGE_BYTES],
        hello(of_a, stranger).to_vec(),
        hello(stranger, of_b).to_vec(),
        hello(absent, of_b).to_vec(),
        hello(of_a, of_b)[..HELLO_BYTES - 1].to_vec(),
    ];
    for (index, bytes) in hellos.iter().enumerate() {
        let socket = b.folder.connect(of_b.slot).unwrap();
        socket::send(&socket, &[IoSlice::new(bytes)]).unwrap();
        socket::send(&socket, &[IoSlice::new(b"\x01not delivered")]).unwrap();
        assert_eq!(next(&mut b), None, "hello {index}");
        assert_eq!(count(&b, "drop_local_nonsense"), index as u64 + 1);
        assert!(b.connections.is_empty());
    }
    // A member sends a message that is too long, on the connection that it opened and on the other one.
    let socket = b.folder.connect(of_b.slot).unwrap();
    socket::send(&socket, &[IoSlice::new(&hello(of_a, of_b))]).unwrap();
    socket::send(&socket, &[IoSlice::new(&vec![1; MAX_MESSAGE_BYTES + 2])]).unwrap();
    socket::send(&socket, &[IoSlice::new(b"\x05fine")]).unwrap();
    assert_eq!(next(&mut b), Some((of_a, 5, b"fine".to_vec())));
    b.send(of_a, 1, &[b"x"]).unwrap();
    assert_eq!(next(&mut a).unwrap().0, of_b);
    let key = a.from[&of_b];
    socket::send(&a.connections[key].socket, &[IoSlice::new(&vec![1; MAX_MESSAGE_BYTES + 2])]).unwrap();
    assert_eq!(next(&mut b), None);
    assert_eq!(count(&b, "drop_local_nonsense"), hellos.len() as u64 + 2);
}

#[test]
fn member_unable_to_connect_replies_on_existing_connection() {
    let (runtime, [mut a, mut b]) = members();
    let (of_a, of_b) = (me(&a), me(&b));
    // Has the same effect as a change of the root directory.
    let hidden = runtime.path().join("hidden");
    let hide = || std::fs::rename(runtime.path().join("run"), &hidden).unwrap();
    let show = || std::fs::rename(&hidden, runtime.path().join("run")).unwrap();
    hide();
    assert_eq!(a.send(of_b, 1, &[b"x"]), Err(Undelivered::Gone));
    assert!(a.is_cut_off, "it says why");
    show();
    b.send(of_a, 1, &[b"x"]).unwrap();
    let again = a.folder.connect(of_a.slot).unwrap();
    hide();
    assert!(next(&mut a).is_some());
    a.send(of_b, 2, &[b"back"]).unwrap();
    assert_eq!(next(&mut b), Some((of_a, 2, b"back".to_vec())));
    // The other member opens a new connection, which ends the old one.
    socket::send(&again, &[IoSlice::new(&hello(of_b, of_a))]).unwrap();
    assert_eq!(next(&mut a), None);
    a.send(of_b, 3, &[b"here"]).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(area_ffi::receive(again.as_fd(), &mut buffer).unwrap().0, 5);
    assert_eq!((lost(&mut b), lost(&mut b)), (Some(of_a), None));
    show();
}

#[test]
fn number_of_silent_connections_is_bounded() {
    let (_runtime, [mut a, mut b]) = members();
    let mut silent = Vec::new();
    for _ in 0..3 * MAX_UNNAMED {
        silent.push(b.folder.connect(me(&b).slot).unwrap());
        assert_eq!(next(&mut b), None);
    }
    assert_eq!(b.connections.len(), MAX_UNNAMED);
    a.send(me(&b), 1, &[b"heard"]).unwrap();
    assert_eq!(next(&mut b), Some((me(&a), 1, b"heard".to_vec())));
}

#[test]
fn runtime_directory_longer_than_socket_address_works() {
    let runtime = Runtime::new().unwrap();
    let deep = runtime.path().join("a".repeat(120));
    std::fs::DirBuilder::new().mode(0o700).create(&deep).unwrap();
    let (mut a, mut b) = (member(&deep), member(&deep));
    a.send(me(&b), 1, &[b"deep"]).unwrap();
    assert_eq!(next(&mut b).unwrap().2, b"deep");
}

#[test]
fn obstructed_socket_path_is_named_with_remedy() {
    let runtime = Runtime::new().unwrap();
    let host = Host::join(Some(&runtime.path().join("run"))).unwrap();
    let folder = host.directory().unwrap();
    let socket = folder.join(format!("slot-{}.sock", host.me().slot));
    std::fs::create_dir(&socket).unwrap();
    let text = Connections::new(Arc::clone(&host), folder).unwrap_err().to_string();
    assert!(text.contains(&format!("{socket:?}")), "{text}");
    assert!(text.contains("remove it, or name another directory in TRUNKLINE_RUNTIME_DIR"), "{text}");
    std::fs::remove_dir(&socket).unwrap();
    Connections::new(Arc::clone(&host), folder).unwrap();
}
