//! Items of streams next to unary calls, many open streams, and a large upload.

use crate::client::Kind;
use crate::echo::EchoLocal;
use crate::failure::Failure;
use crate::feed::{Checked, FeedClient, FeedLocal, Numbered, numbered};
use crate::machine::{Machine, Stamp, memory};
use crate::nodes::{LinkFlag, Nodes};
use crate::pin::{Cores, Pin};
use crate::progress;
use crate::session::Session;
use crate::spread::Spread;
use crate::whole_file;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use trunkline::stream::{Sender, channel};
use trunkline::{Bytes, PollerContext, PollerIndex, Status, Streaming, block_on};
use trunkline_testkit::output;

/// Bytes of an item or of a call's payload.
const ITEM: usize = 64;
/// Calls under way at a time when chunks of the upload are sent.
const CHUNKS_OUTSTANDING: u64 = 4;
/// Calls under way at a time.
const OUTSTANDING: u32 = 32;
/// Number of items measured for each call.
const ITEMS_PER_CALL: u64 = 4;

/// Load of the streams, and the settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Streams {
    /// Items of 64 bytes through each kind of stream, in each repetition.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    items: u64,
    /// Number of repetitions of items and calls, in turn.
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Streams that are open at once, in both directions.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    open: u32,
    /// MiB that are uploaded in chunks, by a stream and by unary calls.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    upload: u64,
    /// KiB of a chunk of the upload.
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    chunk: u64,
    /// Path of the packets; with `process`, memory includes client and server.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Cores of client and server, like `0,1`, or `off`.
    #[arg(long, value_name = "CORES")]
    pin: Option<Pin>,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    nodes: Nodes,
}

/// A kind of stream, or calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Server,
    Client,
    Both,
    Calls,
}

const SHAPES: [Shape; 4] = [Shape::Calls, Shape::Server, Shape::Client, Shape::Both];

/// Rate of one shape.
#[derive(Debug, Serialize)]
struct Rate {
    shape: &'static str,
    /// Items or calls per second.
    per_s: Spread,
    /// Multiple of the rate of calls in the same repetition.
    of_calls: Spread,
}

/// Memory of many open streams.
#[derive(Debug, Serialize)]
struct Open {
    streams: u32,
    /// Time to open all streams, one after the other, and exchange an item on each.
    seconds: f64,
    /// Growth of a side per stream when nothing is under way; of both sides if they share a process.
    client_bytes_each: u64,
    server_bytes_each: u64,
}

/// Rate and memory of a large upload.
#[derive(Debug, Serialize)]
struct Upload {
    bytes: u64,
    chunk_bytes: u64,
    bytes_per_s: f64,
    /// Rate of unary calls with the same chunks, [`CHUNKS_OUTSTANDING`] under way.
    calls_bytes_per_s: f64,
    /// Growth of memory at its peak.
    client_grown_bytes: u64,
    server_grown_bytes: u64,
}

/// Contents of the file.
#[derive(Debug, Serialize)]
struct Results {
    command: &'static str,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    link: &'static str,
    pollers: u16,
    items: u64,
    rates: Vec<Rate>,
    upload: Upload,
    open: Open,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(streams: &Streams) -> Result<(), Failure> {
    whole_file::check(&streams.json)?;
    let began = Instant::now();
    let streams =
        &Streams { link: Session::link(streams.link, &streams.nodes, streams.quiet)?.0, ..streams.clone() };
    let (machine, cores) = (Machine::here(), Pin::cores(streams.pin)?);
    let bar = progress::bar(streams.quiet, u64::from(streams.repetitions) * SHAPES.len() as u64 + 2);
    // The upload comes first, before anything else has grown the processes.
    bar.set_message("upload");
    let upload =
        on_session(streams, cores, |session| upload(session, streams.upload << 20, streams.chunk << 10))?;
    bar.inc(1);
    bar.set_message("open streams");
    let open = on_session(streams, cores, |session| open(session, streams.open))?;
    bar.inc(1);
    let mut rates = SHAPES.map(|_| Vec::new());
    for _ in 0..streams.repetitions {
        on_session(streams, cores, |session| {
            for (shape, rates) in SHAPES.into_iter().zip(&mut rates) {
                bar.set_message(shape.name());
                rates.push(rate(session, shape, streams)?);
                bar.inc(1);
            }
            Ok(())
        })?;
    }
    bar.finish_and_clear();
    let [calls, ..] = &rates;
    let rate = |(shape, rates): (Shape, &Vec<f64>)| {
        let of_calls = rates.iter().zip(calls).map(|(rate, calls)| rate / calls).collect::<Vec<_>>();
        Some(Rate { shape: shape.name(), per_s: Spread::of(rates)?, of_calls: Spread::of(&of_calls)? })
    };
    let results = Results {
        command: "streams",
        stamp: Stamp::now(),
        machine,
        link: streams.link.name(),
        pollers: streams.nodes.pollers,
        items: streams.items,
        rates: SHAPES.into_iter().zip(&rates).filter_map(rate).collect(),
        upload,
        open,
    };
    if !streams.quiet {
        output::out(&table(&results))?;
    }
    let written = streams.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &results));
    written.map_err(Failure::Unwritten)?;
    let what = format!("streams: {} items each, {} repetitions", streams.items, streams.repetitions);
    progress::end(streams.quiet, &what, began, &streams.json)
}

#[expect(clippy::cast_precision_loss, reason = "printed with one digit after the point")]
fn table(results: &Results) -> String {
    let mut text = format!("streams: items of {ITEM} bytes, and calls, {OUTSTANDING} under way\n");
    for Rate { shape, per_s, of_calls } in &results.rates {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  {shape:<16} {:>10.0} per second ({:.0} to {:.0}), {:.2} times the calls",
            per_s.median, per_s.min, per_s.max, of_calls.median
        );
    }
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let Upload { bytes, chunk_bytes, bytes_per_s, calls_bytes_per_s, client_grown_bytes, server_grown_bytes } =
        results.upload;
    let _ = writeln!(
        text,
        "  upload of {:.1} MB in chunks of {chunk_bytes} bytes: {:.1} MB/s, by calls {:.1} MB/s; client {:.1} MB more at its peak, server {:.1} MB",
        mb(bytes),
        bytes_per_s / 1e6,
        calls_bytes_per_s / 1e6,
        mb(client_grown_bytes),
        mb(server_grown_bytes)
    );
    let Open { streams, seconds, client_bytes_each, server_bytes_each } = results.open;
    let _ = write!(
        text,
        "  {streams} open streams: {seconds:.2} s to open; client {client_bytes_each} bytes each, server {server_bytes_each}"
    );
    text
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

/// Runs a measurement between new nodes.
fn on_session<R>(
    streams: &Streams,
    cores: Option<Cores>,
    run: impl FnOnce(&Session) -> Result<R, String>,
) -> Result<R, Failure> {
    let session = Session::start(streams.link, &streams.nodes, Kind::Poller, cores)?;
    run(&session).map_err(|why| session.servers().named(why))
}

/// Runs a task on the first poller of the client.
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

/// Returns the items or calls per second.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn rate(session: &Session, shape: Shape, streams: &Streams) -> Result<f64, String> {
    let (server, items) = (session.client().server(), streams.items);
    let began = Instant::now();
    if shape == Shape::Calls {
        let calls = items / ITEMS_PER_CALL;
        call(session, calls)?;
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

/// Makes calls, [`OUTSTANDING`] at a time.
fn call(session: &Session, calls: u64) -> Result<(), String> {
    let (server, next) = (session.client().server(), Arc::new(AtomicU64::new(0)));
    let task = |_| {
        let next = Arc::clone(&next);
        session.node().run_on(PollerIndex(0), move |context| async move {
            let echo = EchoLocal::connect(&context, server)?;
            while next.fetch_add(1, Ordering::Relaxed) < calls {
                echo.echo(Bytes::from_static(&[0x5a; ITEM])).await?;
            }
            Ok::<_, Status>(())
        })
    };
    for task in (0..OUTSTANDING).map(task).collect::<Vec<_>>() {
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
    call_with_chunks(session, chunks, size)?;
    let calls_bytes_per_s = bytes as f64 / began.elapsed().as_secs_f64();
    Ok(Upload { bytes, chunk_bytes, bytes_per_s, calls_bytes_per_s, client_grown_bytes, server_grown_bytes })
}

/// Sends the chunks of an upload by unary calls.
fn call_with_chunks(session: &Session, chunks: u64, size: usize) -> Result<(), String> {
    let (server, next) = (session.client().server(), Arc::new(AtomicU64::new(0)));
    let task = |_| {
        let next = Arc::clone(&next);
        session.node().run_on(PollerIndex(0), move |context| async move {
            let feed = FeedLocal::connect(&context, server)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= chunks {
                    return Ok::<_, Status>(());
                }
                feed.store(number, numbered(number, size)).await?;
            }
        })
    };
    for task in (0..CHUNKS_OUTSTANDING).map(task).collect::<Vec<_>>() {
        let ended = block_on(task).and_then(|ended| ended);
        ended.map_err(|status| format!("a call failed: {status}"))?;
    }
    Ok(())
}

/// Opens streams. Each exchanges an item at the start, and another when all are open.
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
