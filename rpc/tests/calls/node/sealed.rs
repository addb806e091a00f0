//! Sealed sessions keep the contents of calls out of packets and out of memory shared by devices. The tests search captures
//! and this memory for one text per kind of content. The texts of unsealed sessions must be found, so a test that searches
//! in the wrong place fails.
//!
//! `deploy/checks/51-sealed.sh` runs these tests under tcpdump.

use crate::common::{Events, Reporter, events, fresh_address, until};
use crate::node::identity::{authority, named};
use crate::streams::items::Iterate;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use trunkline::device::PathChoice;
use trunkline::{
    Bytes, CallError, CallOptions, Context, Metadata, Node, ResponseMetadata, Status, Stream, Streaming,
    Target, block_on,
};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::Folder;
use trunkline_transport::NodeOptions;

/// Size of a large text, in bytes.
const LARGE: usize = 1 << 20;

/// Beginning of each text.
const CANARY: &str = "canary in ";

/// The parts of a call that contain a text.
const PLACES: [&str; 21] = [
    "an argument",
    "a result",
    "a one-way argument",
    "request metadata",
    "initial metadata",
    "trailing metadata",
    "a status message",
    "a cause",
    "status details",
    "status metadata",
    "a typed error",
    "a large argument",
    "a large result",
    "a large registered argument",
    "a large registered result",
    "a slice of an argument",
    "a slice of a result",
    "an item up",
    "an item down",
    "a large item up",
    "a large item down",
];

/// The kinds of sessions, as named in the texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    Sealed,
    Clear,
}

impl Session {
    /// Returns the text for a part of a call.
    fn text(self, place: &str) -> String {
        assert!(PLACES.contains(&place), "{place} is listed");
        format!("{CANARY}{place} of a {self:?} session. ")
    }

    /// Returns the text for a part of a call, repeated to [`LARGE`] bytes.
    fn large(self, place: &str) -> Vec<u8> {
        self.text(place).into_bytes().into_iter().cycle().take(LARGE).collect()
    }

    fn metadata(self, place: &str) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("text", &self.text(place)).unwrap();
        metadata
    }

    /// Returns the large text for a part of a call, in memory registered by the node.
    fn registered(self, node: &Node, place: &str) -> Bytes {
        let mut buffer = node.buffer(LARGE).unwrap();
        buffer.copy_from_slice(&self.large(place));
        buffer.freeze()
    }

    /// Returns all texts, in the form returned by [`found`].
    fn all(self) -> BTreeSet<String> {
        PLACES.map(|place| format!("{place} of a {self:?} session")).into()
    }
}

/// Returns the complete texts in `bytes`, without [`CANARY`].
fn found(bytes: &[u8]) -> BTreeSet<String> {
    let all = [Session::Sealed, Session::Clear].map(Session::all);
    let bytes = String::from_utf8_lossy(bytes);
    let rests = bytes.split(CANARY).skip(1);
    rests.filter_map(|rest| all.iter().flatten().find(|text| rest.starts_with(*text)).cloned()).collect()
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Refusal(String);

#[trunkline::service(name = "tests.Talk")]
trait Talk {
    async fn exchange(&self, cx: &Context, text: String) -> String;
    #[oneway]
    async fn tell(&self, text: String);
    async fn fail(&self) -> Result<(), Status>;
    async fn refuse(&self) -> Result<(), Refusal>;
    async fn large(&self, text: Bytes, result: u8) -> Bytes;
    async fn chat(&self, says: Streaming<Bytes>)
    -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
}

struct Server {
    session: Session,
    told: Reporter<()>,
    /// Results of the method `large`.
    results: &'static OnceLock<[Bytes; 3]>,
}

impl Talk for Server {
    async fn exchange(&self, cx: &Context, _: String) -> String {
        cx.set_initial_metadata(self.session.metadata("initial metadata"));
        cx.set_trailing_metadata(self.session.metadata("trailing metadata"));
        self.session.text("a result")
    }

    async fn tell(&self, _: String) {
        self.told.tell(());
    }

    async fn fail(&self) -> Result<(), Status> {
        Err(Status::not_found(self.session.text("a status message"))
            .with_cause(self.session.text("a cause"))
            .with_details(self.session.text("status details"))
            .with_metadata(self.session.metadata("status metadata")))
    }

    async fn refuse(&self) -> Result<(), Refusal> {
        Err(Refusal(self.session.text("a typed error")))
    }

    async fn large(&self, _: Bytes, result: u8) -> Bytes {
        self.results.get().unwrap()[usize::from(result)].clone()
    }

    async fn chat(
        &self,
        mut says: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        let mut is_large = false;
        while let Some(item) = says.message().await? {
            is_large = item.len() == LARGE;
        }
        let item = if is_large {
            self.session.large("a large item down").into()
        } else {
            self.session.text("an item down").into()
        };
        Ok(Iterate([Ok(item)].into_iter()))
    }
}

/// Two nodes and their state.
struct Rig {
    session: Session,
    server: Node,
    node: Node,
    client: TalkClient,
    told: Events<()>,
}

impl Rig {
    /// Starts the nodes. They have identities if the session is sealed.
    fn new(session: Session, options: &NodeOptions) -> Self {
        let root = authority("root");
        let builder = |name| {
            let builder = Node::builder().transport(options.clone()).listen(fresh_address());
            if session == Session::Sealed { named(builder, &root, name) } else { builder }
        };
        let ((reporter, told), results) = (events(), Box::leak(Box::default()));
        let server = TalkServer::new(Server { session, told: reporter, results });
        let server = builder("server.example").serve(server).start().unwrap();
        let of = |place| session.registered(&server, place);
        let ready = [
            session.large("a large result").into(),
            of("a large registered result"),
            of("a slice of a result").slice(1000..LARGE / 2),
        ];
        results.set(ready).unwrap();
        let node = builder("client.example").start().unwrap();
        let target = Target::from(server.local_address());
        let target = if session == Session::Sealed { target.named("server.example") } else { target };
        let client = TalkClient::new(node.channel(target));
        Self { session, server, node, client, told }
    }

    /// Makes calls of all kinds. Calls `look` after each, before later packets overwrite the call in shared memory.
    fn talk(&self, mut look: impl FnMut()) {
        let (session, client) = (self.session, &self.client);
        let received = ResponseMetadata::new();
        let options = CallOptions::new().metadata(session.metadata("request metadata"));
        let options = options.response_metadata(&received);
        let result = block_on(client.with(&options).exchange(session.text("an argument")));
        assert_eq!(result.unwrap(), session.text("a result"));
        assert_eq!(received.initial(), session.metadata("initial metadata"));
        look();
        block_on(client.tell(session.text("a one-way argument"))).unwrap();
        self.told.next();
        look();
        let status = block_on(client.fail()).unwrap_err();
        assert_eq!(status.message(), session.text("a status message"));
        assert_eq!(status.details(), session.text("status details").as_bytes());
        look();
        let refused = block_on(client.refuse()).unwrap_err();
        assert!(matches!(refused, CallError::Handler(Refusal(_))), "{refused:?}");
        look();
        let of = |place| session.registered(&self.node, place);
        let arguments = [
            session.large("a large argument").into(),
            of("a large registered argument"),
            of("a slice of an argument").slice(1000..LARGE / 2),
        ];
        for (argument, result) in arguments.into_iter().zip(0..) {
            let returned = block_on(client.large(argument, result)).unwrap();
            assert!(returned.len() > LARGE / 3, "{}", returned.len());
            look();
        }
        for says in [session.text("an item up").into(), session.large("a large item up").into()] {
            let mut items = block_on(client.chat(Iterate([says].into_iter()))).unwrap();
            while block_on(items.message()).unwrap().is_some() {}
            look();
        }
    }

    /// Checks that the session is of the intended kind, and shuts down the nodes.
    fn end(self) {
        let proven = self.server.report().counter("sessions_proven");
        assert_eq!(proven.unwrap_or(0), u64::from(self.session == Session::Sealed));
        self.node.shutdown();
        self.server.shutdown();
    }
}

/// Returns the texts in the mapped device areas of this process.
fn found_in_areas() -> BTreeSet<String> {
    let (memory, mut texts) = (File::open("/proc/self/mem").unwrap(), BTreeSet::new());
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap();
    for mapping in mappings.lines().filter(|mapping| mapping.contains("/memfd:trunkline")) {
        let range = mapping.split(['-', ' ']).take(2).map(|at| u64::from_str_radix(at, 16).unwrap());
        let [start, end] = range.collect::<Vec<_>>().try_into().unwrap();
        let mut area = vec![0; usize::try_from(end - start).unwrap()];
        // Other tests may unmap their areas at the same time.
        if memory.read_exact_at(&mut area, start).is_ok() {
            texts.append(&mut found(&area));
        }
    }
    texts
}

#[test]
fn no_packet_of_sealed_session_has_text_in_clear() {
    let folder = Folder::new().unwrap();
    let capture = folder.join("sessions.pcap");
    let device = SoftOptions { capture: Some(capture.clone()), ..SoftOptions::from_env().unwrap() };
    let options = NodeOptions::new().device(device).faults("drop=0.02,duplicate=0.02,reorder=0.02,seed=7");
    let options = options.unwrap();
    for session in [Session::Sealed, Session::Clear] {
        let rig = Rig::new(session, &options);
        until("packets were lost and sent again", || {
            rig.talk(|| ());
            (rig.node.report().retransmits > 0 && rig.server.report().retransmits > 0).then_some(())
        });
        rig.end();
    }
    assert_eq!(found(&std::fs::read(capture).unwrap()), Session::Clear.all());
}

#[test]
fn no_memory_between_devices_has_text_of_sealed_session_in_clear() {
    let options = NodeOptions::new().path(PathChoice::Shm);
    let mut texts = BTreeSet::new();
    for session in [Session::Sealed, Session::Clear] {
        let rig = Rig::new(session, &options);
        rig.talk(|| texts.append(&mut found_in_areas()));
        rig.end();
    }
    assert_eq!(texts, Session::Clear.all());
}
