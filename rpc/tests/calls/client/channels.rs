//! Channels to servers that have several addresses or names, or that move. The tests check which addresses are tried and
//! which errors callers get.

use crate::common::{LIMIT, until};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Poll, Waker};
use trunkline::report::PeerKey;
use trunkline::{
    CallOptions, Channel, Code, Connect, Context, Dns, InProcessNetwork, Node, NodeBuilder, PollerIndex,
    Reason, Resolve, Resolving, ServerList, StartError, Status, Target, block_on,
};

#[trunkline::service]
trait Who {
    async fn who(&self) -> Result<u32, Status>;
    async fn ask_back(&self, cx: &Context) -> Result<u32, Status>;
}

/// Returns its number. Calls its callers back through the node in the second field.
struct Number(u32, Option<Arc<Mutex<Option<Node>>>>);

impl Who for Number {
    async fn who(&self) -> Result<u32, Status> {
        Ok(self.0)
    }

    async fn ask_back(&self, cx: &Context) -> Result<u32, Status> {
        let node = self.1.as_ref().ok_or_else(|| Status::internal("it has no node"))?;
        let peer = cx.peer().ok_or_else(|| Status::internal("nobody called"))?;
        let channel = node.lock().unwrap().as_ref().map(|node| node.channel_to(peer));
        WhoClient::new(channel.ok_or_else(|| Status::internal("no node"))?).who().await
    }
}

fn node(network: &InProcessNetwork) -> NodeBuilder {
    Node::builder().in_process(network)
}

fn server(network: &InProcessNetwork, number: u32) -> Node {
    node(network).serve(WhoServer::new(Number(number, None))).start().unwrap()
}

/// Returns an address on the node's host at which nothing listens.
fn next_to(node: &Node) -> SocketAddr {
    let taken = node.local_address();
    SocketAddr::new(taken.ip(), taken.port() ^ 1)
}

fn patient() -> CallOptions {
    CallOptions::new().timeout(LIMIT).connect(Connect::Wait)
}

fn who(channel: &Channel, options: &CallOptions) -> Result<u32, Status> {
    block_on(WhoClient::new(channel.clone()).with(options).who())
}

/// A resolver that returns addresses set by the test, and counts lookups.
#[derive(Debug, Clone, Default)]
struct Directory(Arc<Mutex<Vec<SocketAddr>>>, Arc<AtomicUsize>);

impl Directory {
    fn set(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses.into_iter().collect();
    }

    fn lookups(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

impl Resolve for Directory {
    fn resolve(&self) -> Resolving<'_> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            Ok(self
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .copied()
                .map(PeerKey::new)
                .collect())
        })
    }
}

#[test]
fn channel_connects_lazily_by_ready() {
    let network = InProcessNetwork::new();
    let (there, caller) = (server(&network, 7), node(&network).start().unwrap());
    let channel = caller.channel(there.local_address());
    assert_eq!((caller.report().ini, channel.is_connected()), (0, false));
    assert_eq!(block_on(channel.ready()), Ok(()));
    assert!(channel.is_connected() && channel.clone().is_connected() && caller.report().ini > 0);
    drop(there);
    until("the session ends", || (!channel.is_connected()).then_some(()));
}

/// Calls another server through a client that was created before the node.
struct Passer(WhoClient);

impl Who for Passer {
    async fn who(&self) -> Result<u32, Status> {
        self.0.who().await
    }

    async fn ask_back(&self, _: &Context) -> Result<u32, Status> {
        Err(Status::unimplemented("it only passes calls on"))
    }
}

#[test]
fn channel_of_unstarted_node_refuses_calls_until_node_runs() {
    let network = InProcessNetwork::new();
    let there = server(&network, 7);
    let directory = Directory::default();
    directory.set([there.local_address()]);
    let targets: [Target; 2] = [there.local_address().into(), Target::resolver(directory)];
    for target in targets {
        let builder = node(&network);
        let channel = builder.channel(target);
        let refused = |outcome: Result<u32, Status>| {
            let status = outcome.unwrap_err();
            let kind = (status.code(), status.reason(), status.may_have_run());
            assert_eq!(kind, (Code::FailedPrecondition, Some(Reason::Misuse), false), "{status}");
            assert!(status.message().contains("NodeBuilder::start"), "{status}");
        };
        refused(block_on(channel.ready()).map(|()| 0));
        refused(who(&channel, &patient()));
        refused(who(&channel.ordered(), &patient()));
        assert!(!channel.is_connected());
        let handler = Passer(WhoClient::new(channel.clone()));
        let passer = builder.pollers(2).serve(WhoServer::new(handler)).start().unwrap();
        assert_eq!(who(&there.channel(passer.local_address()), &patient()), Ok(7));
        assert_eq!(block_on(channel.ready()), Ok(()));
        assert!(channel.is_connected());
        passer.shutdown();
        let over = who(&channel, &patient()).unwrap_err();
        assert_eq!(over.code(), Code::Unavailable, "{over}");
    }
}

#[test]
fn channel_of_failed_or_dropped_builder_fails_at_once() {
    let network = InProcessNetwork::new();
    let unused: SocketAddr = ([127, 0, 0, 1], 7000).into();
    // The settings are refused, the pollers fail to start, or the builder is dropped.
    let refused = node(&network).pollers(0);
    let broken = node(&network).serve(WhoServer::per_poller(|_| Err::<Number, _>("no disk")));
    let forgotten = node(&network);
    let channels = [&refused, &broken, &forgotten].map(|builder| builder.channel(unused));
    assert!(refused.start().is_err() && broken.start().is_err());
    drop(forgotten);
    for channel in channels {
        let failures = [who(&channel, &patient()).unwrap_err(), block_on(channel.ready()).unwrap_err()];
        for status in failures {
            assert_ne!(status.reason(), Some(Reason::Expired), "{status}");
            assert!(!status.may_have_run(), "{status}");
        }
    }
}

#[test]
fn names_are_resolved_again_after_failed_dial_and_session_end() {
    let network = InProcessNetwork::new();
    let (first, second) = (server(&network, 1), server(&network, 2));
    let caller = node(&network).start().unwrap();
    let directory = Directory::default();
    let channel = caller.channel(Target::resolver(directory.clone()));
    let status = who(&channel, &CallOptions::new()).unwrap_err();
    assert!(status.message().contains("the name has no address"), "{status}");
    directory.set([next_to(&first)]);
    let waiting = WhoClient::new(channel.clone());
    let options = patient();
    let mut waiting = pin!(waiting.with(&options).who());
    assert!(waiting.as_mut().poll(&mut Task::from_waker(Waker::noop())).is_pending());
    let before = directory.lookups();
    until("it is asked again", || (directory.lookups() > before + 2).then_some(()));
    assert_eq!(waiting.as_mut().poll(&mut Task::from_waker(Waker::noop())), Poll::Pending);
    directory.set([next_to(&first), first.local_address()]);
    assert_eq!(block_on(waiting), Ok(1));
    // While this server is up, calls go to it without a lookup.
    let asked = directory.lookups();
    directory.set([second.local_address()]);
    assert_eq!((who(&channel, &CallOptions::new()), directory.lookups()), (Ok(1), asked));
    first.shutdown();
    until("the other one answers", || who(&channel, &CallOptions::new()).ok().filter(|who| *who == 2));
    assert_eq!(directory.lookups(), asked + 1);
}

#[test]
fn silent_resolvers_do_not_delay_other_targets() {
    /// Blocks until the test drops the sender.
    #[derive(Debug)]
    struct Silent(Arc<Mutex<std::sync::mpsc::Receiver<()>>>, std::sync::mpsc::Sender<()>);
    impl Resolve for Silent {
        fn resolve(&self) -> Resolving<'_> {
            Box::pin(async {
                let _begun = self.1.send(());
                let _until_dropped = self.0.lock().map(|end| end.recv());
                Ok(Vec::new())
            })
        }
    }
    let network = InProcessNetwork::new();
    let (there, caller) = (server(&network, 7), node(&network).start().unwrap());
    let (end, ends) = std::sync::mpsc::channel();
    let (begins, begun) = std::sync::mpsc::channel();
    let ends = Arc::new(Mutex::new(ends));
    let silent = || caller.channel(Target::resolver(Silent(Arc::clone(&ends), begins.clone())));
    let channels = (0..64).map(|_| silent()).collect::<Vec<_>>();
    let mut waiting = channels.iter().map(|channel| Box::pin(channel.ready())).collect::<Vec<_>>();
    for ready in &mut waiting {
        assert!(ready.as_mut().poll(&mut Task::from_waker(Waker::noop())).is_pending());
    }
    for _ in &channels {
        begun.recv_timeout(LIMIT).expect("all lookups are in progress");
    }
    let listed = Target::resolver(ServerList::new("servers", [there.local_address()]));
    let answer = who(&caller.channel(listed), &CallOptions::new());
    drop(end);
    assert_eq!(answer, Ok(7));
}

#[test]
fn name_is_resolved_by_dns_and_its_error_is_kept() {
    // The default resolver is the system's resolver, which resolves `localhost`.
    let server = crate::common::node().serve(WhoServer::new(Number(7, None))).start().unwrap();
    let caller = crate::common::node().start().unwrap();
    let port = server.local_address().port();
    let channel = caller.channel(format!("no-such-host.invalid:{port}"));
    let status = block_on(channel.ready()).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false), "{status}");
    assert!(status.message().contains(&format!("no-such-host.invalid:{port}")), "{status}");
    assert!(!status.causes().is_empty(), "{status}");
    // `localhost` resolves to 127.0.0.1, at which this server does not listen, and possibly to ::1.
    let status = block_on(caller.channel(("localhost", port)).ready()).unwrap_err();
    assert!(status.message().contains(&format!("127.0.0.1:{port}: ")), "{status}");
}

#[test]
fn hostile_resolver_fails_only_its_own_channel() {
    #[derive(Debug)]
    enum Hostile {
        Many(SocketAddr),
        Panics,
        Fails,
    }
    impl Resolve for Hostile {
        fn resolve(&self) -> Resolving<'_> {
            match self {
                Self::Many(dead) => {
                    let dead = *dead;
                    let all = (0..1_000_000_u32).map(move |at| {
                        let port = u16::try_from(at % 50_000).unwrap_or(0);
                        SocketAddr::new(dead.ip(), if port == dead.port() { 0 } else { port })
                    });
                    Box::pin(async move { Ok(all.map(PeerKey::new).collect()) })
                }
                Self::Panics => panic!("on purpose"),
                Self::Fails => Box::pin(async { Err("the directory is on fire".into()) }),
            }
        }
    }
    let network = InProcessNetwork::new();
    let (there, caller) = (server(&network, 7), node(&network).start().unwrap());
    let status = |resolver| block_on(caller.channel(Target::resolver(resolver)).ready()).unwrap_err();
    let many = status(Hostile::Many(there.local_address()));
    assert_eq!(many.message().matches("no node listens").count(), 16, "{many}");
    assert!(many.message().len() < 4096, "{many}");
    let panicked = status(Hostile::Panics);
    assert!(panicked.causes()[0].contains("the resolver panicked: on purpose"), "{panicked}");
    assert_eq!(status(Hostile::Fails).causes(), ["the directory is on fire"]);
    assert_eq!(who(&caller.channel(there.local_address()), &CallOptions::new()), Ok(7));
}

#[test]
fn resolver_in_status_does_not_show_its_fields() {
    #[derive(Debug)]
    struct Listed {
        _password: &'static str,
    }
    impl Resolve for Listed {
        fn resolve(&self) -> Resolving<'_> {
            Box::pin(async { Ok(vec!["0.0.0.0:7".parse()?, "224.0.0.1:7".parse()?]) })
        }
    }
    let node = node(&InProcessNetwork::new()).start().unwrap();
    let channel = node.channel(Target::resolver(Listed { _password: "secret" }));
    let status = who(&channel, &CallOptions::new()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().ends_with("at Listed: the name has no address at which a server can be"),
        "{status}"
    );
    let named = Target::resolver(Dns::new("shop.example", 7000));
    assert_eq!(named.to_string(), "shop.example:7000");
}

#[test]
fn invalid_target_is_refused_by_calls() {
    let network = InProcessNetwork::new();
    let caller = node(&network).start().unwrap();
    let nowhere =
        ["0.0.0.0:7", "[::]:7", "[::ffff:0.0.0.0]:7", "224.0.0.1:7", "[ff02::1]:7", "255.255.255.255:7"];
    let targets = ["shop", "shop:seven", "", "10.0.0.1:0"].into_iter().chain(nowhere).map(Target::from);
    for target in targets.chain([Target::from(Vec::<SocketAddr>::new())]) {
        let channel = caller.channel(target);
        for options in [CallOptions::new(), patient()] {
            let status = who(&channel, &options).unwrap_err();
            assert_eq!((status.code(), status.may_have_run()), (Code::InvalidArgument, false), "{status}");
            assert_eq!(status.reason(), Some(Reason::Misuse));
        }
        assert_eq!(block_on(channel.ready()).unwrap_err().code(), Code::InvalidArgument);
    }
}

/// A link-local address may belong to different hosts on different interfaces, and the key of a peer does not contain an
/// interface.
#[test]
fn link_local_addresses_are_refused_with_remedy() {
    #[derive(Debug)]
    struct Listed(&'static [&'static str]);
    impl Resolve for Listed {
        fn resolve(&self) -> Resolving<'_> {
            let all = self.0.iter().map(|text| text.parse::<PeerKey>()).collect::<Result<Vec<_>, _>>();
            Box::pin(async move { Ok(all?) })
        }
    }
    const SCOPED: &str = "[fe80::1%3]:7000";
    let caller = node(&InProcessNetwork::new()).start().unwrap();
    let scoped = SCOPED.parse::<SocketAddr>().unwrap();
    let both = Target::from(vec![scoped, "[febf::1]:7000".parse().unwrap()]);
    for target in [Target::from(SCOPED), Target::from(scoped), Target::from("[fe80::1]:7000"), both] {
        let status = who(&caller.channel(target), &CallOptions::new()).unwrap_err();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::InvalidArgument, Some(Reason::Misuse)),
            "{status}"
        );
        assert!(
            status.message().contains("is link-local") && status.message().contains("fd00::/8"),
            "{status}"
        );
    }
    let status = WhoClient::connect(&caller, SCOPED).err().unwrap();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let resolved = Target::resolver(Listed(&[SCOPED]));
    let status = who(&caller.channel(resolved), &CallOptions::new()).unwrap_err();
    assert!(format!("{:?}", status.causes()).contains("is link-local"), "{status:?}");
    for address in [SCOPED, "[fe80::1]:0"] {
        let error = Node::builder().listen(address).start().unwrap_err();
        assert!(matches!(error, StartError::BadAddress { .. }), "{error}");
        assert!(error.to_string().contains("is link-local"), "{error}");
    }
}

#[test]
fn server_calls_its_client_over_same_session() {
    let network = InProcessNetwork::new();
    let own = Arc::new(Mutex::new(None));
    let handler = Number(1, Some(Arc::clone(&own)));
    let there = node(&network).serve(WhoServer::new(handler)).start().unwrap();
    let address = there.local_address();
    *own.lock().unwrap() = Some(there);
    let caller = server(&network, 2);
    let client = WhoClient::new(caller.channel(address));
    assert_eq!(block_on(client.who()), Ok(1));
    let halves = |node: &Node| (node.report().ini, node.report().tgt);
    let before = (halves(&caller), own.lock().unwrap().as_ref().map(halves));
    assert_eq!(block_on(client.ask_back()), Ok(2));
    assert_eq!(
        (halves(&caller), own.lock().unwrap().as_ref().map(halves)),
        before,
        "another session was made"
    );
    own.lock().unwrap().take();
}

#[test]
fn channel_serves_poller_tasks_of_own_and_other_nodes() {
    let network = InProcessNetwork::new();
    let (there, caller) = (server(&network, 7), node(&network).pollers(2).start().unwrap());
    let other = node(&network).start().unwrap();
    let directory = Directory::default();
    directory.set([next_to(&there), there.local_address()]);
    let channel = caller.channel(Target::resolver(directory));
    for (node, poller) in [(&caller, 0), (&caller, 1), (&other, 0)] {
        let channel = channel.clone();
        let task = move |context: trunkline::PollerContext| async move {
            let local = channel.on(&context);
            local.ready().await?;
            assert!(local.is_connected());
            WhoLocal::new(local).who().await
        };
        assert_eq!(block_on(node.run_on(PollerIndex(poller), task)), Ok(Ok(7)));
    }
}

#[test]
fn dropped_channel_removes_its_route() {
    let network = InProcessNetwork::new();
    let (there, caller) = (server(&network, 7), node(&network).start().unwrap());
    let directory = Directory::default();
    directory.set([there.local_address()]);
    let weak = Arc::downgrade(&directory.0);
    let channel = caller.channel(Target::resolver(directory));
    assert_eq!(who(&channel, &CallOptions::new()), Ok(7));
    drop(channel);
    until("pollers forget it", || weak.upgrade().is_none().then_some(()));
}
