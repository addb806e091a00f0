//! Sends one request to a key-value server, or a load of requests for some time.

mod load;

use clap::{Parser, Subcommand};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use trunkline::{Bytes, DeviceFlags, Node};
use trunkline_example_kv::KvClient;

/// A key-value client.
#[derive(Debug, Parser)]
struct Options {
    /// Server: a host name or an IP address, and a port; with a slash and a UDP port after it if its device has another than
    /// this client's.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7471")]
    server: String,
    /// This client's address; it may be the same as the server's.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Time limit of each call, in milliseconds.
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
    #[command(flatten)]
    Once(Once),
    /// Put and get for a while and check every value; exit status 1 if one was wrong.
    Load {
        /// Duration of the load, in seconds.
        #[arg(long = "for", value_name = "SECONDS", default_value_t = 10)]
        seconds: u64,
        /// Concurrent workers, 1 to 256, each with separate keys.
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
        workers: u64,
        /// Print progress as JSON, one line every half second.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum Once {
    /// Print the value of a key; exit status 1 if it does not exist.
    Get {
        /// Any text, for example `user/17`.
        key: String,
    },
    /// Set the value of a key, from standard input if no value is given.
    Put {
        /// Any text; a value that it has is replaced.
        key: String,
        /// Text; for other bytes, or long values, use standard input.
        value: Option<String>,
    },
    /// Remove a key; exit status 1 if it did not exist.
    Delete {
        /// The key to remove.
        key: String,
    },
    /// Print the keys that begin with a prefix, 1,000 at most.
    List {
        /// Prefix of the keys; without it, all are listed.
        prefix: Option<String>,
    },
}

type Outcome = Result<bool, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // A pipe closed by its reader, such as `head`, is not an error.
        Err(error) if is_closed_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "kv-client: {error}");
            ExitCode::from(2)
        }
    }
}

fn is_closed_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(options: Options) -> Outcome {
    let node = Node::builder()
        .listen(SocketAddr::new(options.address, 0))
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .start()?;
    let client = load::client(&node, &options.server, Duration::from_millis(options.timeout_ms));
    let found = match options.request {
        Request::Load { seconds, workers, json } => {
            let length = Duration::from_secs(seconds);
            Ok(load::run(&node, &client, workers, length, json).is_sound())
        }
        Request::Once(request) => trunkline::block_on(execute(&client, request)),
    };
    node.shutdown();
    found
}

async fn execute(client: &KvClient, request: Once) -> Outcome {
    match request {
        Once::Get { key } => {
            let Some(value) = client.get(key).await? else { return Ok(false) };
            let mut out = io::stdout().lock();
            out.write_all(&value)?;
            out.flush()?;
            Ok(true)
        }
        Once::Put { key, value } => {
            let value = match value {
                Some(text) => Bytes::from(text),
                None => read_input()?,
            };
            client.put(key, value).await?;
            Ok(true)
        }
        Once::Delete { key } => Ok(client.delete(key).await?),
        Once::List { prefix } => {
            for key in client.list(prefix.unwrap_or_default(), 1000).await? {
                writeln!(io::stdout(), "{key}")?;
            }
            Ok(true)
        }
    }
}

fn read_input() -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes.into())
}
