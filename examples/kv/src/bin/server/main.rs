//! Serves a key-value map until SIGTERM or Ctrl-C.

mod scrapes;

use clap::Parser;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline::health::HealthReporter;
use trunkline::{Bytes, DeviceFlags, Node, Status};
use trunkline_example_kv::{Kv, KvServer};

/// A key-value server. Prints the address it listens on, and where to scrape it.
#[derive(Debug, Parser)]
struct Options {
    /// Address and port to listen on; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7471")]
    listen: SocketAddr,
    /// Poller threads, 1 to 32.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pollers: u16,
    /// Listen on an address other than loopback although peers are not authenticated.
    #[arg(long)]
    allow_unauthenticated: bool,
    /// Seconds that calls which run may take to finish at the end.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,
    /// Loopback address and port where a Prometheus server scrapes the node; port 0 picks a free one.
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    device: DeviceFlags,
}

/// Maximum size of a value, in bytes.
const MOST_BYTES: usize = 16 << 20;

/// Handler shared by all pollers.
#[derive(Debug, Clone, Default)]
struct Store(Arc<Mutex<BTreeMap<String, Bytes>>>);

impl Store {
    fn map(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kv for Store {
    async fn get(&self, key: String) -> Result<Option<Bytes>, Status> {
        Ok(self.map().get(&key).cloned())
    }

    async fn put(&self, key: String, value: Bytes) -> Result<bool, Status> {
        if value.len() > MOST_BYTES {
            return Err(Status::invalid_argument(format!("a value has at most {MOST_BYTES} bytes")));
        }
        // A received value may be a slice of one of the node's receive buffers, so a copy is stored.
        Ok(self.map().insert(key, Bytes::copy_from_slice(&value)).is_some())
    }

    async fn delete(&self, key: String) -> Result<bool, Status> {
        Ok(self.map().remove(&key).is_some())
    }

    async fn list(&self, prefix: String, limit: u32) -> Result<Vec<String>, Status> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let map = self.map();
        let from = map.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        Ok(from.map(|(key, _)| key.clone()).take(limit).collect())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let scrapes = match options.metrics {
        Some(address) if !address.ip().is_loopback() => {
            return Err(format!("invalid --metrics {address}: expected a loopback address").into());
        }
        address => address.map(TcpListener::bind).transpose()?,
    };
    let node = Node::builder()
        .listen(options.listen)
        .pollers(options.pollers)
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .grace(Duration::from_secs(options.grace))
        .serve(KvServer::new(Store::default()))
        // `trunkctl health` queries this service.
        .health(&HealthReporter::new())
        .start()?;
    let node = Arc::new(node);
    let mut out = std::io::stdout();
    // The error is ignored, because the output may be closed.
    let _closed = writeln!(out, "listening {}", node.local_address());
    if let Some(scrapes) = scrapes {
        let _closed = writeln!(out, "metrics http://{}/metrics", scrapes.local_addr()?);
        let observed = Arc::clone(&node);
        // The thread is not joined. It ends with the process.
        std::thread::spawn(move || scrapes::serve(&scrapes, &observed));
    }
    signals.forever().next();
    // Running calls have time to finish, and new calls are refused.
    node.shutdown();
    Ok(())
}
