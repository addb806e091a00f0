//! Other systems that perform the same exchanges, for `--peers`. Each system runs in every repetition, between two
//! samples of the cache line.
//!
//! | file | what it runs |
//! |---|---|
//! | `program` | `trunkline-bench-peers`, with tonic, tarpc and iceoryx2 |
//! | `ucx` | `ucx_perftest`, if it is installed |
//! | `libfabric` | `fi_pingpong`, if it is installed |
//! | `perftest` | `ib_send_lat` and `ib_send_bw`, if they are installed and there is a NIC |
//! | `command` | any program, on a core and with a time limit, whose output is read line by line |

mod command;
pub(crate) mod figures;
mod libfabric;
mod perftest;
mod program;
mod ucx;

use crate::floors::Shape;
use crate::meter::load::Load;
use crate::meter::pin::Cores;
use crate::scenario::point::Measure;
use crate::systems::figures::Figures;
use std::path::Path;

pub(crate) use program::{Peer, Peers};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct System {
    /// Name used in tables and in JSON.
    pub(crate) name: String,
    way: Way,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Program(Peer),
    /// `ucx_perftest` with these transports.
    Ucx(&'static str),
    Libfabric,
    Perftest,
}

impl System {
    /// Returns all systems. Builds the program that runs the Rust systems, unless `named` is the path of a built program.
    ///
    /// # Errors
    /// Returns an error if the program cannot be built or run.
    pub(crate) fn all(named: Option<&Path>) -> Result<Vec<Self>, String> {
        let mut all: Vec<_> = Peer::all(named)?
            .into_iter()
            .map(|peer| Self { name: peer.name.clone(), way: Way::Program(peer) })
            .collect();
        let installed = [
            ("ucx_perftest, shared memory", Way::Ucx("posix,self")),
            ("ucx_perftest, TCP", Way::Ucx("tcp,self")),
            ("fi_pingpong, TCP", Way::Libfabric),
            ("perftest, XRC of a NIC", Way::Perftest),
        ];
        all.extend(installed.map(|(name, way)| Self { name: name.to_owned(), way }));
        Ok(all)
    }

    /// Measures the system.
    ///
    /// # Errors
    /// Returns an error if the measurement fails.
    pub(crate) fn measure(&self, measure: Measure, shape: &Shape) -> Result<Figures, String> {
        match &self.way {
            Way::Program(peer) => peer.measure(shape, Load::default()),
            Way::Ucx(transports) => ucx::measure(measure, shape, transports),
            Way::Libfabric => libfabric::measure(measure, shape),
            Way::Perftest => perftest::measure(measure, shape),
        }
    }
}

/// Returns true if the rate of the system with this name counts messages in one direction, without replies.
pub(crate) fn rate_is_one_way(name: &str) -> bool {
    name.contains("perftest")
}

/// Returns the cores of client and server, for programs that are pinned in the same way as Trunkline's nodes.
fn sides(cores: Option<Cores>) -> (Option<usize>, Option<usize>) {
    (cores.map(|cores| cores.client), cores.map(|cores| cores.server))
}

/// Returns a TCP port on the loopback interface that was free at the time of the call.
fn free_port() -> Result<u16, String> {
    let named = |error: std::io::Error| format!("cannot find a free port: {error}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(named)?;
    Ok(listener.local_addr().map_err(named)?.port())
}
