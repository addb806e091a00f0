//! Collects log lines and prints them, until SIGTERM or Ctrl-C.

use clap::Parser;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline::{Bytes, DeviceFlags, Node, Status};
use trunkline_example_logs::{Logs, LogsServer, Total};

/// A log collector. Prints the address it listens on, then every line after the name of its source.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port to listen on; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7472")]
    listen: SocketAddr,
    /// Listen on an address other than loopback although peers are not authenticated.
    #[arg(long)]
    allow_unauthenticated: bool,
    #[command(flatten)]
    device: DeviceFlags,
}

/// Maximum number of calls whose lines wait to be printed. Lines of further calls are dropped and counted.
const MOST_WAITING: usize = 1024;
/// Maximum number of sources. Lines of further sources are dropped.
const MOST_SOURCES: usize = 1000;

/// A source and its lines.
type Block = (String, Vec<u8>);

#[derive(Debug, Clone)]
struct Collector {
    totals: Arc<Mutex<BTreeMap<String, Total>>>,
    output: SyncSender<Block>,
}

impl Logs for Collector {
    async fn append(&self, source: String, lines: Bytes) {
        let count = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count() as u64;
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        if totals.len() >= MOST_SOURCES && !totals.contains_key(&source) {
            return;
        }
        let total = totals.entry(source.clone()).or_default();
        total.lines += count;
        // A handler must not block, so another thread prints. The received bytes may lend a receive
        // buffer, so they are copied.
        if self.output.try_send((source, lines.to_vec())).is_err() {
            total.dropped += count;
        }
    }

    async fn totals(&self) -> Result<Vec<Total>, Status> {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(totals.iter().map(|(source, total)| Total { source: source.clone(), ..total.clone() }).collect())
    }
}

fn print(blocks: &Receiver<Block>) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    for (source, lines) in blocks {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            writeln!(out, "{source}: {}", String::from_utf8_lossy(line))?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let (output, blocks) = sync_channel(MOST_WAITING);
    let collector = Collector { totals: Arc::default(), output };
    let node = Node::builder()
        .listen(options.listen)
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .serve(LogsServer::new(collector))
        .start()?;
    // Ignored: the output may be closed.
    let _closed = writeln!(std::io::stdout(), "listening {}", node.local_address());
    let printer = std::thread::spawn(move || print(&blocks));
    signals.forever().next();
    // The shutdown drops the handlers, and with them the last sender to the printer.
    node.shutdown();
    match printer.join() {
        // A reader that has closed the pipe, such as `head`, is not an error.
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Ok(printed) => Ok(printed?),
        Err(_) => Err("the printing thread panicked".into()),
    }
}
