//! Server and client for `deploy/checks/52-causes.sh`, which tests the reported causes of failed connections. Both log to
//! standard error.
//!
//! `serve`, `refuse` and `hold` run until they are killed, as does `call` with `--hold` or `--repeat`.

use clap::{Args, Parser};
use rcgen::{CertificateParams, Issuer, KeyPair, date_time_ymd};
use std::error::Error;
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tracing_subscriber::filter::LevelFilter;
use trunkline::health::HealthClient;
use trunkline::{Channel, Connections, Node, NodeBuilder, Origin, Status, Target, block_on};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::HandMadePeer;
use trunkline_verbs::{CmEventKind, QpType};

/// Port of the servers.
const PORT: u16 = 7000;

#[derive(Debug, Parser)]
#[command(name = "causes")]
enum Options {
    /// Runs a server, and prints `ready`.
    Serve {
        /// Address to listen on.
        address: IpAddr,
        #[command(flatten)]
        identity: Identity,
        /// SRQ depth of the server.
        #[arg(long)]
        depth: Option<u32>,
        /// Connection type.
        #[arg(long)]
        connections: Option<Connections>,
        /// Drain the server while a handler runs that never returns.
        #[arg(long)]
        drains: bool,
    },
    /// Connects, and prints `ready`, or the code and the reason of the status.
    Call {
        /// Address of the server.
        server: String,
        /// Keep the session open.
        #[arg(long)]
        hold: bool,
        /// Keep calling after `ready`, and print `answered` or the code of the status for each call.
        #[arg(long)]
        repeat: bool,
        #[command(flatten)]
        identity: Identity,
    },
    /// Rejects all connections, as a node with protocol version 99 does, and prints `ready`.
    Refuse {
        /// Address to listen on.
        address: IpAddr,
    },
    /// Binds UDP port 4791 at an address without starting a node, and prints `ready`.
    Hold {
        /// Address to bind.
        address: IpAddr,
    },
    /// Issues a certificate that expires soon: PREFIX.pem and PREFIX.key.
    Expiring {
        /// Folder of the certificate authority.
        authority: String,
        /// Name in the certificate.
        name: String,
        /// Path of both files, without .pem and .key.
        prefix: String,
        /// Seconds until the certificate expires.
        seconds: u64,
    },
}

/// Identity of a node, and the roots that the node trusts. Without these options, the node has no identity.
#[derive(Debug, Clone, Args)]
struct Identity {
    /// Path of the certificate and the key, without .pem and .key.
    #[arg(long, requires = "trust")]
    identity: Option<String>,
    /// File of trusted root certificates.
    #[arg(long)]
    trust: Option<String>,
    /// Name that the server must prove.
    #[arg(long)]
    name: Option<String>,
}

impl Identity {
    fn give(&self, builder: NodeBuilder) -> NodeBuilder {
        match (&self.identity, &self.trust) {
            (Some(identity), Some(trust)) => builder
                .identity_files(format!("{identity}.pem"), format!("{identity}.key"))
                .trust_files(trust)
                .exempt_local_user(false),
            _ => builder.allow_unauthenticated(true),
        }
    }
}

/// A service with a method that never returns.
#[trunkline::service]
trait Endless {
    async fn run(&self) -> Result<(), Status>;
}

struct Handler;

impl Endless for Handler {
    async fn run(&self) -> Result<(), Status> {
        println!("running");
        std::future::pending().await
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .with_writer(io::stderr)
        .init();
    match Options::parse() {
        Options::Serve { address, identity, depth, connections, drains } => {
            let mut builder = identity.give(Node::builder().listen((address, PORT)));
            if let Some(depth) = depth {
                builder = builder.srq_depth(depth, depth);
            }
            if let Some(connections) = connections {
                builder = builder.connections(connections);
            }
            let node = builder.grace(Duration::from_secs(600)).serve(EndlessServer::new(Handler)).start()?;
            let node = Arc::new(node);
            if drains { drain(&node) } else { ready() }
        }
        Options::Call { server, hold, repeat, identity } => {
            let node = identity.give(Node::builder()).start()?;
            let target = Target::from(server.as_str());
            let target = match &identity.name {
                Some(name) => target.named(name),
                None => target,
            };
            let channel = node.channel(target);
            match block_on(channel.ready()) {
                Ok(()) if hold => ready(),
                Ok(()) if repeat => call_again(channel),
                Ok(()) => {
                    println!("ready");
                    Ok(())
                }
                Err(status) => {
                    println!("{:?} {:?}", status.code(), status.reason());
                    Ok(())
                }
            }
        }
        Options::Refuse { address } => refuse(address),
        Options::Hold { address } => {
            let _socket = UdpSocket::bind((address, 4791))?;
            ready()
        }
        Options::Expiring { authority, name, prefix, seconds } => {
            expiring(&authority, name, &prefix, Duration::from_secs(seconds))
        }
    }
}

fn expiring(authority: &str, name: String, prefix: &str, after: Duration) -> Result<(), Box<dyn Error>> {
    let key = KeyPair::from_pem(&fs::read_to_string(format!("{authority}/root.key"))?)?;
    let root = Issuer::from_ca_cert_pem(&fs::read_to_string(format!("{authority}/root.pem"))?, key)?;
    let mut params = CertificateParams::new([name])?;
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = (SystemTime::now() + after).into();
    let key = KeyPair::generate()?;
    fs::write(format!("{prefix}.pem"), params.signed_by(&key, &root)?.pem())?;
    Ok(fs::write(format!("{prefix}.key"), key.serialize_pem())?)
}

/// Prints `ready`, and waits until the process is killed.
fn ready() -> ! {
    println!("ready");
    loop {
        thread::park();
    }
}

/// Calls repeatedly until the process is killed.
fn call_again(channel: Channel) -> ! {
    let client = HealthClient::new(channel).with_timeout(Duration::from_millis(500));
    println!("ready");
    loop {
        match block_on(client.check(String::new())) {
            Err(status) if status.origin() == Origin::Local => println!("{:?}", status.code()),
            _ => println!("answered"),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Drains the node. The node stays in its grace period, because a handler never returns.
fn drain(node: &Arc<Node>) -> ! {
    let client = EndlessClient::new(node.channel(node.local_address()));
    thread::spawn(move || block_on(client.run()));
    let drained = Arc::clone(node);
    thread::spawn(move || drained.drain());
    ready()
}

fn refuse(address: IpAddr) -> Result<(), Box<dyn Error>> {
    let device = SoftDevice::open(SoftOptions { addresses: vec![address], ..SoftOptions::default() })?;
    let peer = HandMadePeer::new(device, address)?;
    let _listener = peer.listen(PORT, QpType::XrcTgt, &peer.channel)?;
    println!("ready");
    loop {
        match peer.channel.next_event().map(|event| event.kind) {
            Some(CmEventKind::ConnectRequest { id, .. }) => id.reject(b"TRNK\x63\x02\x63\0")?,
            _ => thread::sleep(Duration::from_millis(10)),
        }
    }
}
