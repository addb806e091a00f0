//! The `rest` subcommand: CPU time, context switches and memory at low call rates and with idle sessions.
//!
//! Threads are not pinned, and all runtimes sleep when idle. Each caller is a blocking thread. Idle sessions belong to
//! nodes in additional processes or, for other systems, to additional connections of the client process.

use crate::calls::client::CallerKind;
use crate::calls::echo::EchoClient;
use crate::calls::feed::FeedClient;
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::meter::child::{Child, await_parent};
use crate::meter::failure::Failure;
use crate::meter::usage::{self, Usage};
use crate::results::table::Table;
use crate::scenario::{Output, Scenario, seconds};
use crate::systems::{Peer, Peers};
use clap::Args;
use serde_json::json;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;
use trunkline::stream::{Sender, channel};
use trunkline::{Bytes, Node, Streaming, block_on};
use trunkline_testkit::{fresh_ip, output};

/// Payload in each direction, in bytes.
const SIZE: usize = 64;
/// Number of idle nodes per process. Each node needs about twenty descriptors.
const NODES_OF_PROCESS: u16 = 40;
/// Maximum number of idle sessions over shared memory. A device has 512 pairs of rings. Further peers would use UDP,
/// which `--link shm` forbids.
const SHARED_SESSIONS: u16 = 500;
/// Time after which all idle sessions have been probed, which exceeds the longest probe interval.
const SETTLING: Duration = Duration::from_secs(12);
/// Line that a child process prints when its sessions are up.
const READY: &str = "ready";

/// Call rates, numbers of sessions, and other settings.
#[derive(Debug, Clone, Args)]
pub(crate) struct Rest {
    /// Call rates of one client without idle sessions, per second.
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_value = "0,1,10,100,1000,10000",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    rates: Vec<u32>,
    /// Numbers of idle sessions of a client that makes no calls. Over shared memory, numbers above 500 are skipped.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "100,1000",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    sessions: Vec<u16>,
    /// Open a stream without items in each idle session.
    #[arg(long)]
    streams: bool,
    /// Paths of the packets, each of which is measured: `udp`, `shm`.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "shm,udp")]
    link: Vec<LinkFlag>,
    /// Measured time of each point.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: f64,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    nodes: Nodes,
}

/// A point measured with Trunkline over one link, or with another system.
struct Point {
    system: String,
    link: LinkFlag,
    peer: Option<Peer>,
    /// Requested call rate, in calls per second.
    rate: u32,
    idle_sessions: u16,
    usage: Option<Usage>,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(wanted: &Rest) -> Result<(), Failure> {
    let scenario = Scenario::begin("rest", &wanted.output, None)?;
    if wanted.link.contains(&LinkFlag::Process) {
        return Err("--link process: client and server need a process each".to_owned().into());
    }
    let ours = wanted.link.iter().map(|&link| (format!("Trunkline, {}", link.name()), link, None));
    let peers = wanted.peers.over_tcp()?;
    let peers = peers.into_iter().map(|peer| (peer.name.clone(), LinkFlag::Auto, Some(peer)));
    let systems: Vec<_> = ours.chain(peers).collect();
    let loads = wanted.rates.iter().map(|&rate| (rate, 0));
    let loads = loads.chain(wanted.sessions.iter().map(|&sessions| (0, sessions)));
    let is_shareable = |link, sessions| link != LinkFlag::Shm || sessions <= SHARED_SESSIONS;
    let points = loads.flat_map(|(rate, idle_sessions)| {
        let systems = systems.iter().filter(move |&&(_, link, _)| is_shareable(link, idle_sessions));
        systems.cloned().map(move |(system, link, peer)| Point {
            system,
            link,
            peer,
            rate,
            idle_sessions,
            usage: None,
        })
    });
    let mut points: Vec<_> = points.collect();
    let measured = scenario.sweep(
        1,
        &mut points,
        |point| point.system.clone(),
        |point| {
            point.usage = Some(wanted.usage(point)?);
            Ok(())
        },
    );
    let mut table = Table::new([
        "calls/s",
        "idle sessions",
        "<system",
        "client CPU, %",
        "server CPU, %",
        "client switches/s",
        "server switches/s",
        "client RSS, MiB",
        "server RSS, MiB",
    ]);
    let mut rows = Vec::new();
    for Point { system, rate, idle_sessions, usage, .. } in points {
        let Some(Usage { calls_per_s, client, server }) = usage else { continue };
        let sides = [&client, &server];
        let cpu = sides.map(|side| format!("{:.2}", side.cpu * 100.0));
        let switches = sides.map(|side| format!("{:.0}", side.switches_per_s));
        #[expect(clippy::cast_precision_loss, reason = "memory stays far below 2^52 bytes")]
        let resident = sides.map(|side| format!("{:.1}", side.resident_bytes as f64 / f64::from(1 << 20)));
        let names = [format!("{calls_per_s:.0}"), idle_sessions.to_string(), system.clone()];
        table.row(names.into_iter().chain(cpu).chain(switches).chain(resident));
        rows.push(json!({
            "system": system,
            "rate": rate,
            "idle_sessions": idle_sessions,
            "calls_per_s": calls_per_s,
            "client": client,
            "server": server,
        }));
    }
    let results = json!({ "seconds": wanted.seconds, "rows": rows });
    scenario.end(measured, table.markdown().trim_end(), &results, &format!("{} rows", rows.len()))
}

impl Rest {
    fn usage(&self, point: &Point) -> Result<Usage, Failure> {
        let time = Duration::from_secs_f64(self.seconds);
        let &Point { link, rate, idle_sessions, .. } = point;
        if let Some(peer) = &point.peer {
            return Ok(peer.usage(SIZE, rate, idle_sessions, time)?);
        }
        let session = Session::start(link, &self.nodes, CallerKind::Thread, None)?;
        let server = session.servers().process().ok_or_else(|| "the server has no process".to_owned())?;
        let address = session.client().server();
        let parts = (0..idle_sessions).step_by(NODES_OF_PROCESS.into());
        let idle = parts.map(|from| {
            let count = (idle_sessions - from).min(NODES_OF_PROCESS);
            IdleNodes { server: address, count, link, streams: self.streams }.start()
        });
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
}

/// Nodes with one session each, in a child process started by [`IdleNodes::start`].
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct IdleNodes {
    server: SocketAddr,
    count: u16,
    #[arg(long, value_enum)]
    link: LinkFlag,
    #[arg(long)]
    streams: bool,
}

/// A node with a session, and both ends of its stream.
type IdleNode = (Node, Option<(Sender<Bytes>, Streaming<Bytes>)>);

impl IdleNodes {
    /// Starts the process, and waits until all sessions are up.
    fn start(self) -> Result<Child, String> {
        let Self { server, count, link, streams } = self;
        let (server, count) = (server.to_string(), count.to_string());
        let arguments = ["idle-nodes", &server, &count, "--link", link.name()];
        let mut child = Child::start(arguments.into_iter().chain(streams.then_some("--streams")))?;
        child.read_line().map_err(|why| format!("idle sessions failed: {why}"))?;
        Ok(child)
    }

    /// Runs in the child process until standard input is closed.
    ///
    /// # Errors
    /// Returns an error if a session does not come up.
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
