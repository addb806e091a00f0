//! Stream items compared with unary calls, many open streams, and a large upload.

use crate::calls::client::CallerKind;
use crate::calls::echo::EchoLocal;
use crate::calls::feed::{Checked, FeedClient, FeedLocal, Numbered, numbered};
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::meter::failure::Failure;
use crate::meter::machine::memory;
use crate::meter::pin::{Cores, Pin};
use crate::meter::spread::{Spread, digits};
use crate::results::table::Table;
use crate::scenario::{Output, Scenario};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use trunkline::stream::{Sender, channel};
use trunkline::{Bytes, PollerContext, PollerIndex, Status, Streaming, block_on};

/// Size of an item or of a call's payload, in bytes.
const ITEM: usize = 64;
/// Number of calls in flight that send the chunks of the upload.
const CHUNKS_OUTSTANDING: u32 = 4;
/// Number of calls in flight.
const OUTSTANDING: u32 = 32;
/// Number of items that are measured per measured call.
const ITEMS_PER_CALL: u64 = 4;

/// Load of the streams, and settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Streams {
    /// Number of 64-byte items sent through each kind of stream in each repetition.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    items: u64,
    /// Number of repetitions of items and calls, in turn.
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Number of streams that are open at once, in both directions.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    open: u32,
    /// Size of the upload in MiB. A stream and unary calls send it in chunks.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    upload: u64,
    /// Size of a chunk of the upload, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    chunk: u64,
    /// Path of the packets. With `process`, memory includes client and server.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Cores of client and server, such as `0,1`, or `off`.
    #[arg(long, value_name = "CORES")]
    pin: Option<Pin>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    nodes: Nodes,
}

/// A kind of stream, or unary calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Server,
    Client,
    Both,
    Calls,
}

const SHAPES: [Shape; 4] = [Shape::Calls, Shape::Server, Shape::Client, Shape::Both];

#[derive(Debug, Serialize)]
struct Rate {
    shape: &'static str,
    /// Items or calls per second.
    per_s: Spread,
    /// Ratio of the rate to the rate of calls in the same repetition.
    of_calls: Spread,
}

#[derive(Debug, Serialize)]
struct Open {
    streams: u32,
    /// Time in which all streams are opened, one after the other, and exchange one item each.
    seconds: f64,
    /// Growth of the client's memory per idle stream, or of both sides' memory if they share a process.
    client_bytes_each: u64,
    server_bytes_each: u64,
}

/// Rate and memory of a large upload.
#[derive(Debug, Serialize)]
struct Upload {
    bytes: u64,
    chunk_bytes: u64,
    bytes_per_s: f64,
    /// Rate of unary calls that send the same chunks, with [`CHUNKS_OUTSTANDING`] calls in flight.
    calls_bytes_per_s: f64,
    /// Peak growth of the client's memory.
    client_grown_bytes: u64,
    server_grown_bytes: u64,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(streams: &Streams) -> Result<(), Failure> {
    let scenario = Scenario::begin("streams", &streams.output, None)?;
    let (link, _) = Session::link(streams.link, &streams.nodes, streams.output.quiet)?;
    let streams = &Streams { link, ..streams.clone() };
    let cores = Pin::cores(streams.pin)?;
    // The upload comes first, before other measurements increase the memory of the processes.
    scenario.bar.set_message("upload");
    let upload =
        on_session(streams, cores, |session| upload(session, streams.upload << 20, streams.chunk << 10))?;
    scenario.bar.set_message("open streams");
    let open = on_session(streams, cores, |session| open(session, streams.open))?;
    // Each repetition starts with calls. Each measurement uses new nodes.
    let mut points = SHAPES.map(|shape| (shape, Vec::new()));
    let mut session = None;
    let name = |(shape, _): &(Shape, Vec<f64>)| shape.name().to_owned();
    scenario.sweep(streams.repetitions, &mut points, name, |(shape, rates)| {
        if *shape == Shape::Calls {
            session = None;
        }
        let session = match &mut session {
            Some(session) => session,
            none => none.insert(Session::start(streams.link, &streams.nodes, CallerKind::Poller, cores)?),
        };
        rates.push(rate(session, *shape, streams).map_err(|why| session.servers().named(why))?);
        Ok(())
    })?;
    let [(_, calls), ..] = &points;
    let rate = |(shape, rates): &(Shape, Vec<f64>)| {
        let of_calls = rates.iter().zip(calls).map(|(rate, calls)| rate / calls).collect::<Vec<_>>();
        Some(Rate { shape: shape.name(), per_s: Spread::of(rates)?, of_calls: Spread::of(&of_calls)? })
    };
    let rates: Vec<_> = points.iter().filter_map(rate).collect();
    let results = json!({
        "link": link.name(),
        "pollers": streams.nodes.pollers,
        "items": streams.items,
        "rates": rates,
        "upload": upload,
        "open": open,
    });
    let what = format!("{} items each, {} repetitions", streams.items, streams.repetitions);
    scenario.end(Ok(()), &table(&rates, &upload, &open), &results, &what)
}

#[expect(clippy::cast_precision_loss, reason = "printed with one digit after the point")]
fn table(rates: &[Rate], upload: &Upload, open: &Open) -> String {
    let mut table = Table::new(["<", "per second", "min .. max", "times the calls"]);
    for Rate { shape, per_s, of_calls } in rates {
        let range = format!("{:.0} .. {:.0}", per_s.min, per_s.max);
        table.row([(*shape).to_owned(), format!("{:.0}", per_s.median), range, digits(of_calls.median)]);
    }
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let &Upload {
        bytes,
        chunk_bytes,
        bytes_per_s,
        calls_bytes_per_s,
        client_grown_bytes,
        server_grown_bytes,
    } = upload;
    let &Open { streams, seconds, client_bytes_each, server_bytes_each } = open;
    format!(
        "streams: items of {ITEM} bytes, and calls, {OUTSTANDING} under way\n{}  \
         upload of {:.1} MB in chunks of {chunk_bytes} bytes: {:.1} MB/s, by calls {:.1} MB/s; \
         client {:.1} MB more at its peak, server {:.1} MB\n  \
         {streams} open streams: {seconds:.2} s to open; client {client_bytes_each} bytes each, server {server_bytes_each}",
        table.text(),
        mb(bytes),
        bytes_per_s / 1e6,
        calls_bytes_per_s / 1e6,
        mb(client_grown_bytes),
        mb(server_grown_bytes)
    )
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::Server => "from the server",
            Self::Client => "from the client",
            Self::Both => "both ways",
            Self::Calls => "calls",
        }
    }
}

/// Runs a measurement with new nodes.
fn on_session<R>(
    streams: &Streams,
    cores: Option<Cores>,
    run: impl FnOnce(&Session) -> Result<R, String>,
) -> Result<R, Failure> {
    let session = Session::start(streams.link, &streams.nodes, CallerKind::Poller, cores)?;
    run(&session).map_err(|why| session.servers().named(why))
}

/// Runs a task on the client's first poller.
fn on_poller<F, R>(
    session: &Session,
    task: impl FnOnce(PollerContext) -> F + Send + 'static,
) -> Result<R, String>
where
    F: Future<Output = Result<R, Status>> + 'static,
    R: Send + 'static,
{
    let ended = block_on(session.node().run_on(PollerIndex(0), task)).map_err(|status| status.to_string())?;
    ended.map_err(|status| status.to_string())
}

/// Returns the number of items or calls per second.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn rate(session: &Session, shape: Shape, streams: &Streams) -> Result<f64, String> {
    let (server, items) = (session.client().server(), streams.items);
    let began = Instant::now();
    if shape == Shape::Calls {
        let calls = items / ITEMS_PER_CALL;
        let echo = move |echo: Rc<EchoLocal>, _| async move {
            echo.echo(Bytes::from_static(&[0x5a; ITEM])).await.map(drop)
        };
        call(
            session,
            OUTSTANDING,
            calls,
            move |context| EchoLocal::connect(context, server).map(Rc::new),
            echo,
        )?;
        return Ok(calls as f64 / began.elapsed().as_secs_f64());
    }
    let received = on_poller(session, move |context| async move {
        let feed = FeedLocal::connect(&context, server)?;
        let mut checked = Checked::default();
        match shape {
            Shape::Client => return feed.upload(Numbered::new(items, ITEM)).await,
            Shape::Both => checked.read(feed.chat(Numbered::new(items, ITEM)).await?).await?,
            _ => checked.read(feed.watch(items, ITEM as u64).await?).await?,
        }
        Ok(checked.outcome())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    if received == Checked::expected(items, ITEM) {
        Ok(items as f64 / seconds)
    } else {
        Err(format!("{}: {received:?} is what came of {items} items", shape.name()))
    }
}

/// Makes `calls` numbered calls, with at most `tasks` of them in flight.
fn call<C: Clone + 'static, F: Future<Output = Result<(), Status>>>(
    session: &Session,
    tasks: u32,
    calls: u64,
    connect: impl Fn(&PollerContext) -> Result<C, Status> + Copy + Send + 'static,
    call: impl Fn(C, u64) -> F + Copy + Send + 'static,
) -> Result<(), String> {
    let next = Arc::new(AtomicU64::new(0));
    let task = |_| {
        let next = Arc::clone(&next);
        session.node().run_on(PollerIndex(0), move |context| async move {
            let client = connect(&context)?;
            loop {
                match next.fetch_add(1, Ordering::Relaxed) {
                    number if number < calls => call(client.clone(), number).await?,
                    _ => return Ok::<_, Status>(()),
                }
            }
        })
    };
    for task in (0..tasks).map(task).collect::<Vec<_>>() {
        let ended = block_on(task).and_then(|ended| ended);
        ended.map_err(|status| format!("a call failed: {status}"))?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a number of bytes far below 2^52")]
fn upload(session: &Session, bytes: u64, chunk_bytes: u64) -> Result<Upload, String> {
    let server = session.client().server();
    let control = FeedClient::connect(session.node(), server).map_err(|status| status.to_string())?;
    let of_server = || block_on(control.memory()).map_err(|status| status.to_string());
    let size = usize::try_from(chunk_bytes).map_err(|error| error.to_string())?;
    let chunks = bytes.div_ceil(chunk_bytes);
    let bytes = chunks * chunk_bytes;
    let (client_before, (server_before, _)) = (memory("VmRSS:")?, of_server()?);
    let began = Instant::now();
    let received = on_poller(session, move |context| async move {
        FeedLocal::connect(&context, server)?.upload(Numbered::new(chunks, size)).await
    })?;
    let bytes_per_s = bytes as f64 / began.elapsed().as_secs_f64();
    if received != Checked::expected(chunks, size) {
        return Err(format!("the upload has other contents than were sent: {received:?}"));
    }
    let client_grown_bytes = memory("VmHWM:")?.saturating_sub(client_before);
    let server_grown_bytes = of_server()?.1.saturating_sub(server_before);
    let began = Instant::now();
    let store =
        move |feed: Rc<FeedLocal>, number| async move { feed.store(number, numbered(number, size)).await };
    call(
        session,
        CHUNKS_OUTSTANDING,
        chunks,
        move |context| FeedLocal::connect(context, server).map(Rc::new),
        store,
    )?;
    let calls_bytes_per_s = bytes as f64 / began.elapsed().as_secs_f64();
    Ok(Upload { bytes, chunk_bytes, bytes_per_s, calls_bytes_per_s, client_grown_bytes, server_grown_bytes })
}

/// Opens streams. Each of them exchanges an item when it is opened, and another item when all are open.
fn open(session: &Session, streams: u32) -> Result<Open, String> {
    let client = FeedClient::connect(session.node(), session.client().server());
    let client = client.map_err(|status| status.to_string())?;
    let of_server = || block_on(client.memory()).map_err(|status| status.to_string());
    let (client_before, (server_before, _)) = (memory("VmRSS:")?, of_server()?);
    let began = Instant::now();
    let opened = || -> Result<(Sender<Bytes>, Streaming<Bytes>), Status> {
        let (sender, items) = channel(1);
        let mut answers = block_on(client.chat(items))?;
        exchange(&sender, &mut answers)?;
        Ok((sender, answers))
    };
    let open = (0..streams).map(|_| opened()).collect::<Result<Vec<_>, _>>();
    let mut open = open.map_err(|status| format!("a stream failed: {status}"))?;
    let seconds = began.elapsed().as_secs_f64();
    let grown = |now: u64, before: u64| now.saturating_sub(before) / u64::from(streams);
    let client_bytes_each = grown(memory("VmRSS:")?, client_before);
    let server_bytes_each = grown(of_server()?.0, server_before);
    for (sender, answers) in &mut open {
        exchange(sender, answers).map_err(|status| format!("a stream failed: {status}"))?;
    }
    Ok(Open { streams, seconds, client_bytes_each, server_bytes_each })
}

fn exchange(sender: &Sender<Bytes>, answers: &mut Streaming<Bytes>) -> Result<(), Status> {
    let item = Bytes::from_static(&[0x5a; ITEM]);
    sender.try_send(item.clone()).map_err(|_| Status::internal("a stream has no room for an item"))?;
    match block_on(answers.message())? {
        Some(answer) if answer == item => Ok(()),
        answer => Err(Status::internal(format!("an item came back as {answer:?}"))),
    }
}
