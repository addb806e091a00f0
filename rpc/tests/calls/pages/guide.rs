//! The examples of `docs/book/src/guide`, with the code around them. The tests run those whose rules no other test checks.

#![allow(unreachable_pub, unnameable_types, reason = "a user's program")]

use crate::common::{LIMIT, Reporter, events, node as udp, until};
use crate::gate::Gate;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use trunkline::{
    AddressWatcher, Balance, CallError, CallOptions, Channel, ClientCall, Code, Connect, Context, Metadata,
    Node, NodeBuilder, Policy, PollerIndex, Resolve, ResolveError, Resolving, ResponseMetadata, ServerCall,
    ServerList, StartError, Stream, Streaming, Target, block_on, stream, timeout,
};

use trunkline::health::{HealthClient, HealthReporter, ServingStatus};
use trunkline::report::PeerKey;
use trunkline::{Bytes, Status};

#[trunkline::service]
pub trait Kv {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status>;
    async fn put(&self, key: String, value: Bytes) -> Result<(), Status>;
}

/// The handler of the examples.
#[derive(Default)]
struct Store(Mutex<HashMap<String, Bytes>>);

impl Kv for Store {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        Ok(self.0.lock()?.get(&key).cloned())
    }

    async fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        self.0.lock()?.insert(key, value);
        Ok(())
    }
}

/// An event of the examples.
#[derive(Debug, Serialize, Deserialize)]
pub struct Event {
    text: String,
}

#[trunkline::service]
pub trait Feed {
    async fn watch(&self, topic: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status>;
    async fn upload(&self, name: String, chunks: Streaming<Bytes>) -> Result<u64, Status>;
    async fn chat(
        &self,
        says: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<String, Status>>, Status>;
}

type Watcher = stream::Sender<Result<Event, Status>>;

/// Watchers, by topic.
#[derive(Default)]
struct Hub(Mutex<HashMap<String, Vec<Watcher>>>);

impl Feed for Hub {
    async fn watch(&self, topic: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status> {
        let (sender, receiver) = stream::channel(16);
        self.0.lock()?.entry(topic).or_default().push(sender); // other code sends events, on any thread
        Ok(receiver)
    }

    async fn upload(&self, _name: String, mut chunks: Streaming<Bytes>) -> Result<u64, Status> {
        let mut bytes = 0;
        while let Some(chunk) = chunks.message().await? {
            bytes += chunk.len() as u64;
        }
        Ok(bytes)
    }

    async fn chat(
        &self,
        says: Streaming<String>,
    ) -> Result<impl Stream<Item = Result<String, Status>>, Status> {
        Ok(says) // every item goes back
    }
}

async fn send_file(feed: &FeedClient, file: &[u8]) -> Result<u64, Status> {
    let (sender, chunks) = stream::channel(4);
    let upload = feed.upload("file".into(), chunks);
    for chunk in file.chunks(256 << 10) {
        // Waits for the server. Fails if the call is over, and then `upload` says why.
        if sender.send(Bytes::copy_from_slice(chunk)).await.is_err() {
            break;
        }
    }
    sender.finish(); // the end of the stream; without it the call fails
    upload.await
}

async fn follow(feed: &FeedClient, topic: &str) -> Result<(), Status> {
    let mut events = feed.watch(topic.into()).await?;
    while let Some(event) = events.message().await? {
        println!("{}", event.text);
    }
    Ok(()) // the server has finished; anything else is an error
}

#[trunkline::service]
trait Uploads {
    async fn store(&self, name: String, chunks: Streaming<Bytes>) -> Result<(), Status>;
}

/// The bytes of uploads, by name.
#[derive(Default)]
struct Files(Mutex<HashMap<String, Vec<u8>>>);

/// An upload whose bytes are removed unless it is complete.
struct Partial<'a> {
    uploads: &'a Mutex<HashMap<String, Vec<u8>>>,
    name: String,
    is_complete: bool,
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.uploads.lock().unwrap().remove(&self.name);
        }
    }
}

impl Uploads for Files {
    async fn store(&self, name: String, mut chunks: Streaming<Bytes>) -> Result<(), Status> {
        let mut partial = Partial { uploads: &self.0, name, is_complete: false };
        while let Some(chunk) = chunks.message().await? {
            partial.uploads.lock()?.entry(partial.name.clone()).or_default().extend(chunk);
        }
        partial.is_complete = true; // not reached if the client fails or goes
        Ok(())
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn handlers() -> [KvServer; 3] {
    let store = Arc::new(Store::default());
    let one = KvServer::new(Store::default()); // one handler for all pollers: Send + Sync
    let shared = KvServer::shared(Arc::clone(&store)); // the same; the program keeps a clone
    let per_poller = KvServer::per_poller(|_| Ok::<_, Status>(Store::default())); // one per poller; need not be Send
    [one, shared, per_poller]
}

async fn serve(address: SocketAddr, stop: impl Future<Output = ()>) -> Result<(), StartError> {
    let node = Node::builder()
        .listen(address)
        .tokio(Handle::current())
        .serve(KvServer::new(Store::default()))
        .start_async()
        .await?;
    stop.await;
    node.shutdown_async().await;
    Ok(())
}

#[test]
fn node_serves_in_tokio_program() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let from = udp().start().unwrap();
    let address = trunkline_testkit::fresh_address();
    let stop = Gate::default();
    let stopped = stop.clone();
    let served = runtime.spawn(serve(address, async move { stopped.pass().await }));
    let client = KvClient::new(from.channel(address));
    let wait = CallOptions::new().timeout(LIMIT).connect(Connect::Wait);
    assert_eq!(block_on(client.with(&wait).get("a".into())), Ok(None));
    stop.open();
    runtime.block_on(served).unwrap().unwrap();
    assert_eq!(block_on(client.get("a".into())).unwrap_err().code(), Code::Unavailable);
}

#[trunkline::service]
trait Images {
    async fn size(&self, name: String) -> Result<(u32, u32), Status>;
    #[offload]
    async fn thumbnail(&self, name: String) -> Result<Bytes, Status>;
    #[blocking]
    async fn store(&self, cx: &Context, name: String, image: Bytes) -> Result<(), Status>;
}

async fn overlap(client: &KvClient) -> Result<(Option<Bytes>, Option<Bytes>), Status> {
    let (left, right) = (client.get("left".into()), client.get("right".into()));
    let (left, right) = (left.await?, right.await?);
    Ok((left, right))
}

async fn in_time(client: &KvClient) -> Result<(KvClient, Option<Bytes>), Status> {
    let quick = client.clone().with_timeout(Duration::from_millis(200)); // for all calls of this client
    let options = CallOptions::new().timeout(Duration::from_secs(30)); // for one call, without allocation
    let value = client.with(&options).get("a".into()).await?;
    Ok((quick, value))
}

async fn patiently(client: &KvClient) -> Result<Option<Bytes>, Status> {
    let patient = CallOptions::new().timeout(Duration::from_secs(30)).connect(Connect::Wait);
    let value = client.with(&patient).get("a".into()).await?;
    Ok(value)
}

async fn in_order(client: &KvClient, one: Bytes, two: Bytes) -> Result<(), Status> {
    let client = client.ordered();
    let first = client.put("a".into(), one);
    let second = client.put("a".into(), two); // starts after the first, whenever the futures are polled
    second.await?;
    first.await
}

#[trunkline::service]
trait Front {
    async fn page(&self, path: String) -> Result<Bytes, Status>;
}

struct Gateway {
    kv: KvLocal,
}

impl Front for Gateway {
    async fn page(&self, path: String) -> Result<Bytes, Status> {
        self.kv.get(path.clone()).await?.ok_or_else(|| Status::not_found(path))
    }
}

fn gateway(builder: NodeBuilder, kv: SocketAddr) -> Result<Node, StartError> {
    let front = FrontServer::per_poller(move |poller| KvLocal::connect(poller, kv).map(|kv| Gateway { kv }));
    let node = builder.serve(front).start()?;
    Ok(node)
}

async fn record(audit: &KvClient, key: String, value: Bytes) -> Result<(), Status> {
    Context::detached().scope(async { audit.put(key, value).await }).await
}

/// A log whose writes take until the gate is open.
struct Log(Gate, Reporter<String>);

impl Log {
    fn append(&self, key: String, _: Bytes) -> impl Future<Output = Result<(), Status>> + use<> {
        let (gate, reporter) = (self.0.clone(), self.1.clone());
        async move {
            reporter.tell("started".to_owned());
            gate.pass().await;
            reporter.tell(key);
            Ok(())
        }
    }
}

struct Durable {
    log: Log,
}

impl Kv for Durable {
    async fn get(&self, _: String) -> Result<Option<Bytes>, Status> {
        Ok(None)
    }

    async fn put(&self, key: String, value: Bytes) -> Result<(), Status> {
        let write = self.log.append(key, value); // a future without borrows
        trunkline::spawn(write).await?
    }
}

#[test]
fn ordered_calls_run_concurrently() {
    let (gate, (reporter, reported)) = (Gate::default(), events());
    let (server, node) =
        Node::in_process(KvServer::new(Durable { log: Log(gate.clone(), reporter) })).unwrap();
    let client = KvClient::new(node.channel(server.local_address()));
    let calls = std::thread::spawn(move || block_on(in_order(&client, Bytes::new(), Bytes::new())));
    assert_eq!([reported.next(), reported.next()], ["started", "started"]);
    gate.open();
    assert_eq!(calls.join().unwrap(), Ok(()));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt(u32);

#[trunkline::service]
trait Shop {
    async fn order(&self, item: String) -> Result<Receipt, ShopError>;
}

#[trunkline::service]
trait Bank {
    async fn charge(&self, amount: u32) -> Result<u32, PaymentError>;
}

#[derive(Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("declined")]
struct PaymentError;

#[rustfmt::skip]
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum ShopError {
    #[error("only {0} are left")]
    OutOfStock(u32),
    #[error("payment: {0}")]
    Payment(#[from] CallError<PaymentError>),
    #[error("the warehouse: {0}")]
    Warehouse(#[serde(with = "trunkline::nested_status")] #[from] Status),
}

async fn order(shop: &ShopClient, item: String) {
    match shop.order(item).await {
        Ok(receipt) => println!("{receipt:?}"),
        Err(CallError::Handler(error)) => println!("refused: {error}"), // as the handler returned it
        Err(CallError::Status(status)) if !status.may_have_run() => println!("not run: {status}"),
        Err(CallError::Status(status)) => println!("may have run: {status}"),
    }
}

async fn checkout(shop: ShopClient, token: &str, item: String) -> Result<Receipt, (u16, String)> {
    let mut metadata = Metadata::new();
    metadata.insert("token", token).map_err(|error| (400, error.to_string()))?;
    let options = CallOptions::new().metadata(metadata).timeout(Duration::from_secs(2));
    shop.with(&options).order(item).await.map_err(|error| match error {
        CallError::Handler(ShopError::Warehouse(status)) if status.code() == Code::Unauthenticated => {
            (401, status.to_string())
        }
        CallError::Handler(error) => (409, error.to_string()),
        CallError::Status(status) => match status.code() {
            Code::DeadlineExceeded => (504, status.to_string()),
            _ if !status.may_have_run() => (503, status.to_string()),
            _ => (500, status.to_string()),
        },
    })
}

struct Till {
    bank: BankClient,
}

impl Shop for Till {
    async fn order(&self, _: String) -> Result<Receipt, ShopError> {
        Ok(Receipt(self.bank.charge(7).await?))
    }
}

fn open_shop(builder: NodeBuilder, bank: impl Into<Target>) -> Result<Node, StartError> {
    let till = Till { bank: BankClient::new(builder.channel(bank)) };
    let node = builder.serve(ShopServer::new(till)).start()?;
    Ok(node)
}

fn limited(builder: NodeBuilder, store: Store) -> NodeBuilder {
    // Concurrent calls of the service, and of one method: limit_<method>.
    builder.serve(KvServer::new(store).limit(1000).limit_get(800))
}

fn targets(node: &Node, [first, second]: [SocketAddr; 2], mine: impl Resolve) -> [KvClient; 3] {
    let by_name = KvClient::new(node.channel("kv.example:7000")); // a name
    let by_list = KvClient::new(node.channel([first, second])); // two `SocketAddr`; the first that answers
    let by_resolver = KvClient::new(node.channel(Target::resolver(mine))); // your own `Resolve`
    [by_name, by_list, by_resolver]
}

#[trunkline::service]
pub trait Stock {
    #[idempotent]
    async fn count(&self, item: String) -> Result<u32, Status>;
    async fn take(&self, item: String) -> Result<u32, Status>;
}

fn stock(node: &Node, replicas: impl Into<Target>) -> StockClient {
    StockClient::new(node.channel(replicas).balanced(Policy::PowerOfTwo))
}

fn hedged_stock(node: &Node, replicas: impl Into<Target>, delay: Duration) -> StockClient {
    StockClient::new(node.channel(replicas).balanced(Balance::from(Policy::PowerOfTwo).hedge_after(delay)))
}

fn watched_stock(node: &Node, servers: &ServerList) -> StockClient {
    stock(node, Target::resolver(servers.clone()))
}

/// Runs in a thread or task of the program.
fn watch(configuration: impl Iterator<Item = Vec<SocketAddr>>, servers: &ServerList) {
    for addresses in configuration {
        servers.set(addresses);
    }
}

/// The directory of the example.
#[derive(Debug, Default)]
struct Entries(Mutex<Vec<PeerKey>>);

impl Entries {
    fn servers_of(&self, _: &str) -> Result<Vec<PeerKey>, ResolveError> {
        Ok(self.0.lock().unwrap().clone())
    }
}

#[derive(Debug)] // `Resolve` requires it
struct Replicas {
    directory: Arc<Entries>,
    channels: Mutex<Vec<AddressWatcher>>,
}

impl Resolve for Replicas {
    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async { self.directory.servers_of("stock") }) // on a thread for lookups
    }

    fn watch(&self, watcher: AddressWatcher) {
        self.channels.lock().unwrap().push(watcher);
    }
}

impl Replicas {
    fn changed(&self) {
        let mut channels = self.channels.lock().unwrap();
        channels.retain(|channel| !channel.is_closed());
        channels.iter().for_each(AddressWatcher::notify); // each calls `resolve` again
    }
}

struct Shelf;

impl Stock for Shelf {
    async fn count(&self, _: String) -> Result<u32, Status> {
        Ok(3)
    }

    async fn take(&self, _: String) -> Result<u32, Status> {
        Ok(2)
    }
}

#[test]
fn servers_of_balanced_client_change() -> Outcome {
    let (stock_server, node) = Node::in_process(StockServer::new(Shelf))?;
    let server = stock_server.local_address();
    let servers = ServerList::new("stock", [] as [PeerKey; 0]);
    let client = watched_stock(&node, &servers);
    assert!(block_on(client.count("salt".into())).is_err());
    watch([vec![server]].into_iter(), &servers);
    until("the list is used", || block_on(client.count("salt".into())).ok());
    let directory = Arc::new(Entries::default());
    let replicas = Arc::new(Replicas { directory: Arc::clone(&directory), channels: Mutex::default() });
    let client = stock(&node, Target::resolver(Arc::clone(&replicas)));
    assert!(block_on(client.count("salt".into())).is_err());
    directory.0.lock().unwrap().push(server.into());
    replicas.changed();
    until("the directory is used", || block_on(client.count("salt".into())).ok());
    let client = hedged_stock(&node, Target::resolver(replicas), Duration::from_millis(5));
    block_on(client.count("salt".into()))?;
    Ok(())
}

async fn on_a_poller(node: &Node, server: SocketAddr) -> Result<Option<Bytes>, Status> {
    let task = node.run_on(PollerIndex(0), move |poller| async move {
        let kv = KvLocal::connect(&poller, server)?;
        kv.get("a".into()).await
    });
    let value = task.await??;
    Ok(value)
}

fn end(node: Node) {
    node.drain(); // refuses requests as not run, reason Draining; running handlers finish
    node.shutdown(); // the same, waits for handlers and their calls, then closes the sessions
    drop(node); // a shutdown with a grace period of at most 200 ms
}

fn start_with_health(builder: NodeBuilder) -> Result<Node, StartError> {
    let health = HealthReporter::new();
    let node = builder.serve(KvServer::new(Store::default())).health(&health).start()?;
    health.set("Kv", ServingStatus::NotServing); // and back, as the program decides
    Ok(node)
}

async fn wait_for(health: &HealthClient, service: &str) -> Result<(), Status> {
    let patient = CallOptions::new().connect(Connect::Wait); // also while nothing answers at its address
    let mut watch = health.with(&patient).watch(service.to_owned()).await?;
    while let Some(status) = watch.message().await? {
        if status == ServingStatus::Serving {
            return Ok(());
        }
    }
    Err(Status::unavailable("the node drains"))
}

#[trunkline::service]
pub trait Ticker {
    async fn ticks(&self, cx: &Context) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
}

struct Metronome;

impl Ticker for Metronome {
    async fn ticks(&self, cx: &Context) -> Result<impl Stream<Item = Result<u64, Status>>, Status> {
        let ((sender, ticks), cx) = (stream::channel(1), cx.clone());
        trunkline::spawn(async move {
            let mut tick = 0;
            while sender.send(Ok(tick)).await.is_ok() {
                if timeout(Duration::from_millis(100), cx.draining()).await.is_ok() {
                    break; // the stream ends, and the caller sees its end
                }
                tick += 1;
            }
            sender.finish();
        });
        Ok(ticks)
    }
}

#[test]
fn handler_ends_its_stream_at_drain() -> Outcome {
    let (server, node) = Node::in_process(TickerServer::new(Metronome))?;
    let ticker = TickerClient::new(node.channel(server.local_address()));
    let mut ticks = block_on(ticker.ticks())?;
    assert_eq!(block_on(ticks.message())?, Some(0));
    server.begin_drain();
    while block_on(ticks.message())?.is_some() {}
    Ok(())
}

#[test]
fn stores_value() -> Result<(), Box<dyn std::error::Error>> {
    let (server, node) = Node::in_process(KvServer::new(Store::default()))?;
    let client = KvClient::new(node.channel(server.local_address()));
    block_on(client.put("a".into(), Bytes::from_static(b"1")))?;
    assert_eq!(block_on(client.get("a".into()))?.as_deref(), Some(&b"1"[..]));
    Ok(())
}

async fn copy(kv: &impl KvCalls, from: &str, to: &str) -> Result<(), Status> {
    let value = kv.get(from.to_owned()).await?.ok_or_else(|| Status::not_found(from))?;
    kv.put(to.to_owned(), value).await
}

struct Empty;

impl KvCalls for Empty {
    async fn get(&self, _: String) -> Result<Option<Bytes>, Status> {
        Ok(None)
    }

    async fn put(&self, _: String, _: Bytes) -> Result<(), Status> {
        Ok(())
    }
}

struct SoldOut;

impl ShopCalls for SoldOut {
    async fn order(&self, _: String) -> Result<Receipt, CallError<ShopError>> {
        Err(CallError::Handler(ShopError::OutOfStock(0)))
    }
}

fn without_a_node() -> Outcome {
    let mut metadata = Metadata::new();
    metadata.insert("token", "6f1d")?;
    assert!(block_on(check(&Context::detached_with(metadata))).is_ok());
    assert_eq!(block_on(Store::default().get("a".into()))?, None);
    Ok(())
}

mod facade {
    pub(crate) use trunkline as rpc;
}

mod renamed {
    use super::facade;

    #[facade::rpc::service(crate = facade::rpc)]
    pub trait Greeter {
        async fn greet(&self, name: String) -> Result<String, facade::rpc::Status>;
    }
}

async fn get_as(kv: &KvClient, token: &str) -> Result<Option<Bytes>, Status> {
    let mut metadata = Metadata::new();
    metadata.insert("token", token)?; // text; "checksum-bin" would take bytes, by insert_bin
    let received = ResponseMetadata::new();
    let options = CallOptions::new().metadata(metadata).response_metadata(&received);
    let value = kv.with(&options).get("color".into()).await?;
    println!("served by {:?}", received.initial().get("served-by"));
    Ok(value)
}

async fn check(cx: &Context) -> Result<(), Status> {
    let mut metadata = Metadata::new();
    metadata.insert("served-by", "kv-1")?;
    cx.set_initial_metadata(metadata); // set_trailing_metadata: for the end of the response
    match cx.metadata().get("token") {
        Some("6f1d") => Ok(()),
        _ => Err(Status::unauthenticated("no valid token")),
    }
}

fn with_token(channel: &Channel, token: String) -> Channel {
    channel.with_interceptor(move |call: &mut ClientCall| {
        let (method, started) = (call.method(), Instant::now());
        call.metadata_mut().insert("token", &token)?;
        call.on_end(move |outcome| println!("{method}: {} in {:?}", outcome.is_ok(), started.elapsed()));
        Ok(())
    })
}

fn guarded(kv: Store) -> KvServer {
    KvServer::new(kv).interceptor(|call: &mut ServerCall| match call.metadata().get("token") {
        Some("6f1d") => Ok(()),
        _ => Err(Status::unauthenticated("no valid token")),
    })
}

fn name_of_trace(cx: &Context) -> String {
    cx.trace().map_or_else(|| "none".to_owned(), |trace| format!("{:032x}", trace.trace_id()))
}

fn print_numbers(node: &Node) {
    for row in node.report().served {
        let trunkline::report::MethodReport { service, method, calls, failed, running, latency, .. } = row;
        let p99 = latency.quantile(0.99);
        println!("{service}.{method}: {calls} calls, {failed:?}, {running} running, {p99:?}");
    }
}

/// Answers one request of a Prometheus server.
fn answer_scrape(node: &Node, mut to: impl std::io::Write) -> std::io::Result<()> {
    let body = node.report().prometheus();
    let length = body.len();
    write!(to, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n")?;
    write!(to, "Content-Length: {length}\r\n\r\n{body}")
}

#[test]
fn numbers_are_printed_and_scraped() -> Outcome {
    let (server, node) = Node::in_process(KvServer::new(Store::default()))?;
    block_on(KvClient::new(node.channel(server.local_address())).get("color".into()))?;
    print_numbers(&server);
    let mut answer = Vec::new();
    answer_scrape(&server, &mut answer)?;
    let answer = String::from_utf8(answer)?;
    let line = |line: &str| line.starts_with("trunkline_server_calls_total{") && line.ends_with("/get\"} 1");
    assert!(answer.lines().any(line), "{answer}");
    Ok(())
}
