//! Memory for the values of a peer. Arguments and items are charged to the peer, and refused if they exceed its budget.

use crate::common::{LIMIT, node, until};
use crate::gate::Gate;
use crate::streams::items::Iterate;
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Serialize, Serializer};
use trunkline::stream::{Stream, channel};
use trunkline::{Bytes, Code, Limit, Node, NodeBuilder, Reason, Status, Streaming, block_on};

const KIB: usize = 1 << 10;

/// A list of texts. Its encoding ends before a text that equals "missing".
#[derive(Deserialize)]
struct Texts(Vec<String>);

impl Texts {
    fn new(count: usize) -> Self {
        Self(vec![String::new(); count])
    }
}

impl Serialize for Texts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Seq<'a>(&'a [String]);
        impl Serialize for Seq<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut texts = serializer.serialize_seq(Some(self.0.len()))?;
                for text in self.0.iter().take_while(|text| *text != "missing") {
                    texts.serialize_element(text)?;
                }
                texts.end()
            }
        }
        serializer.serialize_newtype_struct("Texts", &Seq(&self.0))
    }
}

#[trunkline::service]
trait Store {
    /// Holds its arguments at the gate.
    async fn keep(&self, texts: Texts) -> u64;
    /// Holds its argument at the gate.
    async fn keep_raw(&self, bytes: Bytes) -> u64;
    /// Takes items after it has passed the gate. Returns the sum of their sizes.
    async fn gather(&self, items: Streaming<Bytes>) -> Result<u64, Status>;
    /// Streams items of these sizes.
    async fn feed(&self, sizes: Vec<usize>) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
    /// Streams lists with these numbers of zeros.
    async fn zeros(&self, counts: Vec<usize>)
    -> Result<impl Stream<Item = Result<Vec<u64>, Status>>, Status>;
}

struct Keeper(Gate);

impl Store for Keeper {
    async fn keep(&self, texts: Texts) -> u64 {
        self.0.pass().await;
        texts.0.len() as u64
    }
    async fn keep_raw(&self, bytes: Bytes) -> u64 {
        self.0.pass().await;
        bytes.len() as u64
    }
    async fn gather(&self, mut items: Streaming<Bytes>) -> Result<u64, Status> {
        self.0.pass().await;
        let mut sum = 0;
        while let Some(item) = items.message().await? {
            sum += item.len() as u64;
        }
        Ok(sum)
    }
    async fn feed(&self, sizes: Vec<usize>) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        Ok(Iterate(sizes.into_iter().map(|size| Ok(vec![1; size].into()))))
    }
    async fn zeros(
        &self,
        counts: Vec<usize>,
    ) -> Result<impl Stream<Item = Result<Vec<u64>, Status>>, Status> {
        Ok(Iterate(counts.into_iter().map(|count| Ok(vec![0; count]))))
    }
}

/// Starts a server and a caller whose builders `set` changes.
fn rig(set: fn(NodeBuilder) -> NodeBuilder) -> (Node, Node, StoreClient, Gate) {
    let gate = Gate::default();
    let server = set(node()).serve(StoreServer::new(Keeper(gate.clone()))).start().unwrap();
    let caller = set(node()).start().unwrap();
    let client = StoreClient::connect(&caller, server.local_address()).unwrap().with_timeout(10 * LIMIT);
    (server, caller, client, gate)
}

/// Starts a server and a caller on which each peer may use 64 KiB.
fn small_budget() -> (Node, Node, StoreClient, Gate) {
    rig(|builder| builder.decoded_bytes(Limit { per_peer: 64 * KIB, in_all: 1 << 20 }))
}

fn until_charged(node: &Node, bytes: usize) {
    let mut seen = 0;
    until(&format!("the charge is {bytes} bytes"), || {
        let budgets = node.report().budgets;
        seen = budgets.iter().find(|budget| budget.name == "bytes of decoded arguments").unwrap().used;
        (seen == bytes as u64).then_some(())
    });
}

fn kind(status: &Status) -> (Code, Option<Reason>, bool) {
    (status.code(), status.reason(), status.may_have_run())
}

#[test]
fn refused_raw_and_small_arguments_are_not_charged() {
    let (server, _caller, client, gate) = small_budget();
    let status = block_on(client.keep(Texts::new(4000))).unwrap_err();
    assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::TooLarge), false), "{status}");
    let text = "they alone exceed one peer's budget of bytes of decoded arguments (65536, setting decoded_bytes of the \
                server)";
    assert!(status.message().contains(text), "{status}");
    let mut lacking = Texts::new(2000);
    lacking.0.push("missing".into());
    let status = block_on(client.keep(lacking)).unwrap_err();
    assert_eq!(kind(&status), (Code::InvalidArgument, Some(Reason::BadArguments), false), "{status}");
    until_charged(&server, 0);

    let held = (client.keep_raw(vec![7; 600_000].into()), client.keep(Texts::new(30)));
    until("the handlers run", || (gate.arrived() == 2).then_some(()));
    until_charged(&server, 0);
    gate.open();
    assert_eq!((block_on(held.0), block_on(held.1)), (Ok(600_000), Ok(30)));
}

#[test]
fn streams_and_their_items_are_charged_to_caller() {
    let (server, _caller, client, gate) = small_budget();
    let open = || {
        let (sender, items) = channel::<Bytes>(1);
        (sender, client.gather(items))
    };
    let held = [(); 4].map(|()| open());
    until("the handlers run", || (gate.arrived() == 4).then_some(()));
    let (_sender, fifth) = open();
    let status = block_on(fifth).unwrap_err();
    assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::Overloaded), false), "{status}");
    until_charged(&server, 64 * KIB);
    drop(held);
    until_charged(&server, 0);

    let (sender, first) = open();
    until("the handler runs", || (gate.arrived() == 5).then_some(()));
    block_on(sender.send(vec![1; 40 * KIB].into())).unwrap();
    until_charged(&server, 40 * KIB);
    let status = block_on(client.gather(Iterate([Bytes::from(vec![1; 48 * KIB])].into_iter()))).unwrap_err();
    assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::Overloaded), true), "{status}");
    assert!(status.message().contains("an item of 49152 bytes exceeds its sender's budget"), "{status}");
    until_charged(&server, 40 * KIB);
    gate.open();
    // The window does not double while an item is charged.
    until_charged(&server, 16 * KIB);
    sender.finish();
    assert_eq!(block_on(first), Ok(40 * 1024));
    until_charged(&server, 0);
}

#[test]
fn decoded_items_are_charged_to_sending_server() {
    let (_server, caller, client, _gate) = small_budget();
    let mut items = block_on(client.feed(vec![40 * KIB, 1])).unwrap();
    until_charged(&caller, 24 * KIB);
    assert_eq!(block_on(items.message()).unwrap().unwrap().len(), 40 * KIB);
    assert_eq!(block_on(items.message()).unwrap().unwrap().len(), 1);
    assert_eq!(block_on(items.message()), Ok(None));
    until_charged(&caller, 0);

    // The reply contains the only item of a stream.
    let mut items = block_on(client.feed(vec![81 * KIB, 1])).unwrap();
    for status in [block_on(items.message()).unwrap_err(), block_on(client.feed(vec![81 * KIB])).unwrap_err()]
    {
        assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::Overloaded), true), "{status}");
    }
    // Each zero is one byte in the encoding and eight bytes after decoding. An item is decoded when it is taken.
    let mut items = block_on(client.zeros(vec![4000, 4000, 9000])).unwrap();
    let mut next = || block_on(items.message()).map(|item| item.map(|item| item.len()));
    assert_eq!([next(), next()], [Ok(Some(4000)), Ok(Some(4000))]);
    let status = next().unwrap_err();
    assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::TooLarge), true), "{status}");
    until_charged(&caller, 0);
}

#[test]
fn item_above_message_limit_ends_call() {
    let (_server, _caller, client, gate) = rig(|builder| builder.max_message_bytes(100 * KIB));
    gate.open();
    let item = |bytes: usize| Iterate([Bytes::from(vec![1; bytes])].into_iter());
    let taken = |bytes: usize| {
        let mut items = block_on(client.feed(vec![bytes]))?;
        block_on(items.message()).map(|item| item.map_or(0, |item| item.len()))
    };
    assert_eq!((block_on(client.gather(item(90 * KIB))), taken(90 * KIB)), (Ok(90 * 1024), Ok(90 * KIB)));
    for status in [block_on(client.gather(item(110 * KIB))).unwrap_err(), taken(110 * KIB).unwrap_err()] {
        assert_eq!(kind(&status), (Code::ResourceExhausted, Some(Reason::TooLarge), true), "{status}");
    }
}
