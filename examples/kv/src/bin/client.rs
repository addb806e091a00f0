//! One request to a key-value server.

use clap::{Parser, Subcommand};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;
use trunkline::{Bytes, DeviceFlags, Node};
use trunkline_example_kv::KvClient;

/// A key-value client.
#[derive(Debug, Parser)]
struct Options {
    /// Where the server listens.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7471")]
    server: SocketAddr,
    /// Own address; it may be the server's.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Give up after so many milliseconds.
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
    /// Print the value of a key; exit status 1 when there is none.
    Get { key: String },
    /// Set the value of a key, from standard input when no value is given.
    Put { key: String, value: Option<String> },
    /// Remove a key; exit status 1 when there was none.
    Delete { key: String },
    /// Print the keys that begin with a prefix.
    List { prefix: Option<String> },
}

type Outcome = Result<bool, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("kv-client: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> Outcome {
    let node = Node::builder()
        .listen(SocketAddr::new(options.address, 0))
        .allow_unauthenticated(options.allow_unauthenticated)
        .device_flags(&options.device)
        .start()?;
    let client =
        KvClient::connect(&node, options.server)?.with_timeout(Duration::from_millis(options.timeout_ms));
    let found = trunkline::block_on(answer(&client, options.request));
    node.shutdown();
    found
}

async fn answer(client: &KvClient, request: Request) -> Outcome {
    match request {
        Request::Get { key } => {
            let Some(value) = client.get(key).await? else { return Ok(false) };
            std::io::stdout().write_all(&value)?;
            Ok(true)
        }
        Request::Put { key, value } => {
            let value = match value {
                Some(text) => Bytes::from(text),
                None => read_input()?,
            };
            client.put(key, value).await?;
            Ok(true)
        }
        Request::Delete { key } => Ok(client.delete(key).await?),
        Request::List { prefix } => {
            for key in client.list(prefix.unwrap_or_default(), 1000).await? {
                println!("{key}");
            }
            Ok(true)
        }
    }
}

fn read_input() -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes.into())
}
