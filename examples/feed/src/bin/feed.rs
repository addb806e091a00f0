//! Watches a feed, publishes events, prints totals and uploads files.

use clap::{Parser, Subcommand};
use indicatif::ProgressBar;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use trunkline::stream::{Sender, channel};
use trunkline::{Bytes, DeviceFlags, Node, block_on};
use trunkline_example_feed::{Event, FeedClient, Summary};

/// A client of a feed.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port of the server.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7473")]
    server: SocketAddr,
    /// This client's address; it may be the same as the server's.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Time limit of calls without streams, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
    /// Use an address other than loopback although peers are not authenticated.
    #[arg(long)]
    allow_unauthenticated: bool,
    #[command(flatten)]
    device: DeviceFlags,
    #[command(subcommand)]
    request: Request,
}

#[derive(Debug, Subcommand)]
enum Request {
    /// Print the events whose topic has a prefix, until the server ends.
    Watch {
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Publish each line of standard input as an event.
    Publish { topic: String },
    /// Publish each line of standard input by a one-way call.
    Emit { topic: String },
    /// Print what the server received so far: topic, events, watchers dropped.
    Totals,
    /// Send a file, with a progress bar on standard error.
    Upload { file: PathBuf },
}

/// Length of a chunk in bytes.
const CHUNK: usize = 256 << 10;
/// Number of chunks that are read ahead of the server.
const AHEAD: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let node = Node::builder()
        .listen(SocketAddr::new(options.address, 0))
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .start()?;
    let client = FeedClient::new(node.channel(options.server));
    let limited = client.clone().with_timeout(Duration::from_millis(options.timeout_ms));
    match options.request {
        Request::Watch { prefix } => watch(&client, prefix)?,
        Request::Publish { topic } => publish(&client, &topic)?,
        Request::Emit { topic } => {
            for line in std::io::stdin().lock().lines() {
                block_on(limited.emit(Event { topic: topic.clone(), text: line? }))?;
            }
        }
        Request::Totals => {
            let mut totals = block_on(limited.totals())?.into_iter();
            print(|| {
                Ok(totals.next().map(|total| format!("{} {} {}", total.topic, total.events, total.dropped)))
            })?;
        }
        Request::Upload { file } => upload(&client, &file)?,
    }
    node.shutdown();
    Ok(())
}

fn watch(client: &FeedClient, prefix: String) -> Result<(), Box<dyn Error>> {
    // Dropping the stream ends the call, and the server removes the watcher.
    let mut events = block_on(client.watch(prefix))?;
    writeln!(std::io::stdout(), "watching")?;
    print(|| Ok(block_on(events.message())?.map(|Event { topic, text }| format!("{topic}: {text}"))))
}

/// Prints lines until there are no more, or until a reader such as `head` closes the pipe.
fn print(mut next: impl FnMut() -> Result<Option<String>, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    while let Some(line) = next()? {
        match writeln!(out, "{line}") {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(())
}

fn publish(client: &FeedClient, topic: &str) -> Result<(), Box<dyn Error>> {
    let (sender, events) = channel(AHEAD);
    let published = client.publish(events);
    for line in std::io::stdin().lock().lines() {
        let event = Event { topic: topic.to_owned(), text: line? };
        if block_on(sender.send(event)).is_err() {
            // The call has ended, and its outcome contains the reason.
            break;
        }
    }
    sender.finish();
    println!("published {}", block_on(published)?);
    Ok(())
}

fn upload(client: &FeedClient, path: &Path) -> Result<(), Box<dyn Error>> {
    let file = File::open(path)?;
    let bar = ProgressBar::new(file.metadata()?.len());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (sender, chunks) = channel(AHEAD);
    let reader = std::thread::spawn(move || read(file, sender));
    let mut progress = block_on(client.upload(name, chunks))?;
    let mut received = Summary { bytes: 0, chunks: 0 };
    while let Some(summary) = block_on(progress.message())? {
        bar.set_position(summary.bytes);
        received = summary;
    }
    bar.finish();
    reader.join().map_err(|_| "the reading thread panicked")??;
    println!("sent {} bytes in {} chunks", received.bytes, received.chunks);
    Ok(())
}

/// Sends the chunks of a file until the file ends or the receiver is dropped. An error drops the sender, which ends the
/// call.
fn read(file: File, chunks: Sender<Bytes>) -> std::io::Result<()> {
    loop {
        let mut chunk = Vec::new();
        (&file).take(CHUNK as u64).read_to_end(&mut chunk)?;
        if chunk.is_empty() || block_on(chunks.send(chunk.into())).is_err() {
            chunks.finish();
            return Ok(());
        }
    }
}
