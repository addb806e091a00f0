//! A node that serves the benchmark's calls, and makes calls on request of a coordinator.

use super::load::TargetLoad;
use super::service::{Control, ControlServer, Hello, LEASE, Load, Losses, MOST_TARGETS, Measured};
use super::{PORT, own_address, tcp};
use crate::calls::echo::{EchoClient, EchoServer, Mirror};
use crate::meter::failure::Failure;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use trunkline::{Bytes, Code, Node, PollerIndex, Status, block_on};
use trunkline_testkit::output;

/// Interval at which the node checks for signals and for the end of its coordinator's lease.
const LOOK: Duration = Duration::from_millis(100);

/// Address and pollers of the node.
#[derive(Debug, Args)]
pub(crate) struct Host {
    /// Address of the node; by default the address of the interface with the default route.
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Number of pollers, 1 to 32. All of them make calls in turn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pollers: u16,
    /// Listen on an address other than loopback although peers are not authenticated. Anyone who can reach the node can make
    /// it send calls, within limits. For test networks only.
    #[arg(long)]
    allow_unauthenticated: bool,
}

/// State shared by all pollers.
#[derive(Debug, Default)]
struct Board {
    pollers: u16,
    node: OnceLock<Arc<Node>>,
    run: Mutex<Option<Run>>,
}

/// A run that a coordinator has requested.
#[derive(Debug)]
struct Run {
    number: u64,
    load: Load,
    pairs: Vec<Arc<TargetLoad>>,
    has_begun: bool,
    is_over: Arc<AtomicBool>,
    /// Time of the last request from the coordinator.
    heard: Instant,
}

#[derive(Debug, Clone)]
struct Handler(Arc<Board>);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the node does not start.
pub(crate) fn serve(host: &Host) -> Result<(), Failure> {
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_ended))
            .map_err(|error| format!("cannot wait for signals: {error}"))?;
    }
    let far = SocketAddr::from(([192, 0, 2, 1], PORT));
    let address = host.address.map_or_else(|| own_address(far), Ok);
    let address = address
        .map_err(|error| format!("this host's address is not known, name it by --address: {error}"))?;
    let board = Arc::new(Board { pollers: host.pollers, ..Board::default() });
    let handler = Handler(Arc::clone(&board));
    let node = Node::builder()
        .listen(SocketAddr::new(address, host.port))
        .pollers(host.pollers)
        .allow_unauthenticated(host.allow_unauthenticated)
        .serve(EchoServer::new(Mirror))
        .serve(ControlServer::new(handler))
        .start()
        .map_err(|error| error.to_string())?;
    let node = board.node.get_or_init(|| Arc::new(node));
    let listening = tcp::listen(node.local_address(), MOST_TARGETS);
    listening.map_err(|error| {
        format!("cannot listen on TCP {}: {error}; choose another --port", node.local_address())
    })?;
    output::out(&format!("listening {}", node.local_address()))?;
    while !is_ended.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        board.look();
    }
    board.stop("its node was told to end");
    node.shutdown();
    Ok(())
}

impl Board {
    fn run(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops a run if its coordinator has been silent for [`LEASE`].
    fn look(&self) {
        let mut run = self.run();
        if run.as_ref().is_some_and(|run| run.heard.elapsed() > LEASE) {
            run.take().into_iter().for_each(|run| run.stop("its coordinator has gone"));
        }
    }

    fn stop(&self, why: &str) {
        self.run().take().into_iter().for_each(|run| run.stop(why));
    }

    /// Renews the lease of the run with this number, and calls `act` with the run.
    fn with<R>(&self, number: u64, act: impl FnOnce(&mut Run) -> R) -> Result<R, Status> {
        let mut run = self.run();
        let Some(run) = run.as_mut().filter(|run| run.number == number) else {
            let why = "the node has no such run: it ended because its coordinator was silent, or the node was restarted";
            return Err(Status::new(Code::NotFound, why));
        };
        run.heard = Instant::now();
        Ok(act(run))
    }
}

impl Run {
    fn stop(&self, why: &str) {
        self.pairs.iter().for_each(|pair| pair.stop(why));
    }

    /// Starts the calls of the run, unless they are already started.
    fn begin(&mut self, node: &Arc<Node>, pollers: u16) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let (pairs, is_over, node) = (self.pairs.clone(), Arc::clone(&self.is_over), Arc::clone(node));
        let load = self.load.clone();
        thread::spawn(move || {
            if load.tcp {
                stream(&pairs, &load);
                return is_over.store(true, Ordering::Relaxed);
            }
            let pollers = (0..pollers).map(PollerIndex).cycle();
            let kinds = (0..load.outstanding).map(|_| false).chain(load.small_beside_bulk.then_some(true));
            let of_pairs = kinds.flat_map(|is_small| pairs.iter().map(move |pair| (pair, is_small)));
            let tasks = of_pairs.zip(pollers).map(|((pair, is_small), poller)| {
                let at_work = Arc::clone(pair);
                (pair, node.run_on(poller, async move |context| at_work.work(context, is_small).await))
            });
            for (pair, task) in tasks.collect::<Vec<_>>() {
                if let Err(status) = block_on(task) {
                    pair.stop(&format!("a task has failed: {status}"));
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// Sends to all targets concurrently over TCP, on a separate thread per target.
fn stream(pairs: &[Arc<TargetLoad>], load: &Load) {
    thread::scope(|scope| {
        for pair in pairs {
            let spawned = thread::Builder::new().spawn_scoped(scope, || pair.stream(load));
            spawned
                .err()
                .into_iter()
                .for_each(|error| pair.stop(&format!("no thread for a TCP stream: {error}")));
        }
    });
}

impl Control for Handler {
    async fn hello(&self) -> Result<Hello, Status> {
        Ok(Hello::own())
    }

    async fn prepare(&self, run: u64, load: Load) -> Result<(), Status> {
        load.check()?;
        let parsed = load.targets.iter().map(|target| target.parse().map_err(|_| target));
        let targets = parsed.collect::<Result<Vec<SocketAddr>, _>>();
        let targets = targets.map_err(|target| {
            Status::invalid_argument(format!("invalid address `{target}`: expected IP:PORT"))
        })?;
        let node = self.node()?;
        {
            let mut known = self.0.run();
            if known.as_ref().is_some_and(|other| other.number != run && other.heard.elapsed() <= LEASE) {
                let why = format!(
                    "the node has another run; it is free {LEASE:?} after that one's coordinator has gone"
                );
                return Err(Status::new(Code::ResourceExhausted, why));
            }
            let pairs = targets.iter().map(|target| Arc::new(TargetLoad::new(*target, &load))).collect();
            let next = Run {
                number: run,
                load,
                pairs,
                has_begun: false,
                is_over: Arc::default(),
                heard: Instant::now(),
            };
            known.replace(next).into_iter().for_each(|earlier| earlier.stop("another run has begun"));
        }
        let connected = connect(node, &targets).await;
        if connected.is_err() {
            self.release(run).await?;
        }
        connected
    }

    async fn begin(&self, run: u64) -> Result<(), Status> {
        let node = self.node()?;
        self.0.with(run, |run| run.begin(node, self.0.pollers))
    }

    async fn is_over(&self, run: u64) -> Result<bool, Status> {
        self.0.with(run, |run| run.is_over.load(Ordering::Relaxed))
    }

    async fn release(&self, run: u64) -> Result<(), Status> {
        let given_up = self.0.run().take_if(|known| known.number == run);
        given_up.into_iter().for_each(|run| run.stop("its coordinator has given it up"));
        Ok(())
    }

    async fn losses(&self) -> Result<Losses, Status> {
        Ok(Losses::from(&self.node()?.report()))
    }

    async fn results(&self, run: u64) -> Result<Vec<Measured>, Status> {
        let is_over = self.is_over(run).await?;
        if !is_over {
            return Err(Status::new(Code::FailedPrecondition, "the run is not over"));
        }
        let ended = self.0.run().take_if(|known| known.number == run);
        Ok(ended.map_or_else(Vec::new, |run| run.pairs.iter().map(|pair| pair.measured()).collect()))
    }
}

impl Handler {
    fn node(&self) -> Result<&Arc<Node>, Status> {
        self.0.node.get().ok_or_else(|| Status::new(Code::Unavailable, "the node is about to start"))
    }
}

/// Makes the first call to each target, so that sessions are up before the measurement.
async fn connect(node: &Node, targets: &[SocketAddr]) -> Result<(), Status> {
    let client = |target: &SocketAddr| Ok((*target, EchoClient::connect(node, *target)?));
    let clients = targets.iter().map(client).collect::<Result<Vec<_>, Status>>()?;
    let calls = clients.iter().map(|(target, client)| (target, client.echo(Bytes::new())));
    // Make all calls before waiting for the first.
    for (target, call) in calls.collect::<Vec<_>>() {
        call.await.map_err(|status| {
            Status::new(Code::Unavailable, format!("it cannot reach {target}: {}", status.message()))
        })?;
    }
    Ok(())
}
