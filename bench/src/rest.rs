//! `rest`: processor time, context switches and memory at low rates of calls, and with idle sessions.
//!
//! Nothing is pinned, and all runtimes sleep. A caller is a thread that blocks. Idle sessions belong to nodes in further
//! processes, or to further connections of other systems in the client process.

use crate::child::{Child, await_parent};
use crate::client::Kind;
use crate::echo::EchoClient;
use crate::failure::Failure;
use crate::feed::FeedClient;
use crate::machine::{Machine, Stamp};
use crate::nodes::{LinkFlag, Nodes};
use crate::progress;
use crate::quantities::seconds;
use crate::session::Session;
use crate::systems::Peer;
use crate::usage::{self, Side, Usage};
use crate::whole_file;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use trunkline::stream::{Sender, channel};
use trunkline::{Bytes, Node, Streaming, block_on};
use trunkline_testkit::{fresh_ip, output};

/// Payload bytes in each direction.
const SIZE: usize = 64;
/// Idle nodes of a process, which has some twenty descriptors for each.
const NODES_OF_PROCESS: u16 = 40;
/// Time after which idle sessions are probed together: more than the longest interval.
const SETTLING: Duration = Duration::from_secs(12);
/// Line of a child process whose sessions are up.
const READY: &str = "ready";

/// Rates, sessions and settings.
#[derive(Debug, Clone, Args)]
pub(crate) struct Rest {
    /// Calls per second of one client without idle sessions.
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "0,1,10,100,1000,10000",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    rates: Vec<u32>,
    /// Idle sessions beside a client that makes no calls.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "100,1000",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    sessions: Vec<u16>,
    /// Open a stream without items in each idle session.
    #[arg(long)]
    streams: bool,
    /// Paths of the packets, each measured: `udp`, `shm`.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,udp")]
    link: Vec<LinkFlag>,
    /// Measured time of each point.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// The program with the systems in Rust, where these sources are not: bench/peers, built.
    #[arg(long, value_name = "FILE")]
    peers_program: Option<PathBuf>,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    nodes: Nodes,
}

/// A system under measurement.
enum System {
    Trunkline(LinkFlag),
    Peer(Peer),
}

/// Results of one system at one point.
#[derive(Debug, Serialize)]
struct Row {
    system: String,
    /// Requested calls per second.
    rate: u32,
    idle_sessions: u16,
    #[serde(flatten)]
    usage: Usage,
}

/// Contents of the JSON file.
#[derive(Debug, Serialize)]
struct Results<'a> {
    command: &'static str,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    seconds: f64,
    rows: &'a [Row],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(wanted: &Rest) -> Result<(), Failure> {
    whole_file::check(&wanted.json)?;
    if wanted.link.contains(&LinkFlag::Process) {
        return Err("--link process: client and server need a process each".to_owned().into());
    }
    let (began, machine) = (Instant::now(), Machine::here());
    let mut systems: Vec<_> = wanted.link.iter().copied().map(System::Trunkline).collect();
    let peers = Peer::all(wanted.peers_program.as_deref())?;
    systems.extend(peers.into_iter().filter(Peer::is_over_tcp).map(System::Peer));
    let mut points: Vec<_> = wanted.rates.iter().map(|&rate| (rate, 0)).collect();
    points.extend(wanted.sessions.iter().map(|&sessions| (0, sessions)));
    let bar = progress::bar(wanted.quiet, (systems.len() * points.len()) as u64);
    let mut rows = Vec::new();
    let mut all = points.iter().flat_map(|&point| systems.iter().map(move |system| (system, point)));
    let measured = all.try_for_each(|(system, (rate, idle_sessions))| {
        bar.set_message(system.name());
        let usage = wanted.usage(system, rate, idle_sessions)?;
        rows.push(Row { system: system.name(), rate, idle_sessions, usage });
        bar.inc(1);
        Ok::<_, Failure>(())
    });
    bar.finish_and_clear();
    if !wanted.quiet {
        output::out(&table(&rows))?;
    }
    let error = measured.as_ref().err().map(ToString::to_string);
    let (stamp, seconds) = (Stamp::now(), wanted.seconds);
    let results = Results { command: "rest", stamp, machine, seconds, rows: &rows, error };
    let written = wanted.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &results));
    measured.and(written.map_err(Failure::Unwritten))?;
    progress::end(wanted.quiet, "rest", began, &wanted.json)
}

impl Rest {
    fn usage(&self, system: &System, rate: u32, idle_sessions: u16) -> Result<Usage, Failure> {
        let time = Duration::from_secs_f64(self.seconds);
        let link = match system {
            System::Trunkline(link) => *link,
            System::Peer(peer) => return Ok(peer.usage(SIZE, rate, idle_sessions, time)?),
        };
        let session = Session::start(link, &self.nodes, Kind::Thread, None)?;
        let server = session.servers().process().ok_or_else(|| "the server has no process".to_owned())?;
        let address = session.client().server();
        let parts = (0..idle_sessions).step_by(NODES_OF_PROCESS.into());
        let idle =
            parts.map(|from| self.idle_nodes(link, address, (idle_sessions - from).min(NODES_OF_PROCESS)));
        let idle = idle.collect::<Result<Vec<_>, _>>();
        let _idle = idle.map_err(|why| session.servers().named(why))?;
        if idle_sessions > 0 {
            thread::sleep(SETTLING);
        }
        let (client, payload) = (session.client().sendable(), Bytes::from(vec![1; SIZE]));
        let measured = usage::measure(server, rate.into(), time, || {
            block_on(client.echo(payload.clone()))
                .map(drop)
                .map_err(|status| format!("a call failed: {status}"))
        });
        measured.map_err(|why| session.servers().named(why))
    }

    fn idle_nodes(&self, link: LinkFlag, server: SocketAddr, count: u16) -> Result<Child, String> {
        IdleNodes { server, count, link, streams: self.streams }.start()
    }
}

/// Nodes with a session each, in a child process that [`IdleNodes::start`] starts.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct IdleNodes {
    server: SocketAddr,
    count: u16,
    #[arg(long, value_enum)]
    link: LinkFlag,
    #[arg(long)]
    streams: bool,
}

/// A node with a session, and the two ends of its stream.
type IdleNode = (Node, Option<(Sender<Bytes>, Streaming<Bytes>)>);

impl IdleNodes {
    /// Starts the process, and returns it once all sessions are up.
    fn start(self) -> Result<Child, String> {
        let Self { server, count, link, streams } = self;
        let (server, count) = (server.to_string(), count.to_string());
        let arguments = ["idle-nodes", &server, &count, "--link", link.name()];
        let mut child = Child::start(arguments.into_iter().chain(streams.then_some("--streams")))?;
        child.read_line().map_err(|why| format!("idle sessions failed: {why}"))?;
        Ok(child)
    }

    /// Runs in the child process until the end of standard input.
    ///
    /// # Errors
    /// Fails with the reason if a session does not come up.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let nodes = (0..self.count).map(|_| self.node()).collect::<Result<Vec<_>, _>>()?;
        output::out(READY)?;
        await_parent();
        nodes.iter().for_each(|(node, _)| node.shutdown());
        Ok(())
    }

    fn node(self) -> Result<IdleNode, String> {
        let node = self.link.builder().listen(SocketAddr::new(fresh_ip().into(), 0)).pollers(1).start();
        let node = node.map_err(|error| error.to_string())?;
        let client = EchoClient::connect(&node, self.server).map_err(|status| status.to_string())?;
        block_on(client.echo(Bytes::new())).map_err(|status| format!("an idle session failed: {status}"))?;
        if !self.streams {
            return Ok((node, None));
        }
        let feed = FeedClient::connect(&node, self.server).map_err(|status| status.to_string())?;
        let (sender, items) = channel(1);
        let answers =
            block_on(feed.chat(items)).map_err(|status| format!("an idle stream failed: {status}"))?;
        Ok((node, Some((sender, answers))))
    }
}

impl System {
    fn name(&self) -> String {
        match self {
            Self::Trunkline(link) => format!("Trunkline, {}", link.name()),
            Self::Peer(peer) => peer.name.clone(),
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = "| calls/s | idle sessions | system | client CPU, % | server CPU, % | client switches/s | server switches/s | client RSS, MiB | server RSS, MiB |\n".to_owned();
    text.push_str("|---:|---:|---|---:|---:|---:|---:|---:|---:|\n");
    for Row { system, idle_sessions, usage: Usage { calls_per_s, client, server }, .. } in rows {
        #[expect(clippy::cast_precision_loss, reason = "memory stays far below 2^52 bytes")]
        let mib = |side: &Side| side.resident_bytes as f64 / f64::from(1 << 20);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {calls_per_s:.0} | {idle_sessions} | {system} | {:.2} | {:.2} | {:.0} | {:.0} | {:.1} | {:.1} |",
            client.cpu * 100.0,
            server.cpu * 100.0,
            client.switches_per_s,
            server.switches_per_s,
            mib(client),
            mib(server),
        );
    }
    text.trim_end().to_owned()
}
