//! Simulated hosts within one real process, each with several processes that share the host's addresses.
//!
//! Owns the ports of simulated hosts, and the processes that may bind them. A device that is opened with
//! [`LinkChoice::Simulated`](crate::device::LinkChoice::Simulated) is a member of its process's host.
//! Binding, relaying, the take-over of a device's port and shared TGTs work as on a real host, without files,
//! sockets or threads.
//!
//! | part | what it is |
//! |---|---|
//! | [`SimulatedHost`] | addresses, ports and shared memory |
//! | [`SimulatedProcess`] | a process in which devices are opened; it can be killed, even between two stores |
//! | [`Network`] | the network between the hosts, provided by the simulation |
#![forbid(unsafe_code)]

mod ports;

use crate::host::Life;
use crate::host::memory::simulated::HostMemory;
use crate::link::Datagram;
use ports::Ports;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_machine::Runtime;
use trunkline_verbs::Memory;

/// A network between simulated hosts, which may lose, duplicate, reorder, corrupt and delay datagrams.
pub trait Network: Send + Sync + Debug {
    /// Carries a datagram that a process has sent. The simulation passes it, now or later, to
    /// [`SimulatedHost::deliver`] of the host with the destination address, which may be the sender's host.
    ///
    /// `segment_bytes` is the length of the first datagram of the same message. A router that gets the message before
    /// it is divided drops all its datagrams if the first one is too large for the path.
    fn carry(&self, datagram: Datagram<'_>, segment_bytes: usize);
}

/// A host with addresses that its processes share.
#[derive(Debug)]
pub struct SimulatedHost {
    memory: Arc<HostMemory>,
    ports: Arc<Ports>,
}

impl SimulatedHost {
    /// Creates a host with these addresses. Its random numbers come from the runtime.
    #[must_use]
    pub fn new(runtime: Runtime, network: Arc<dyn Network>, addresses: Vec<IpAddr>) -> Arc<Self> {
        Arc::new(Self { memory: HostMemory::new(runtime), ports: Ports::new(network, addresses) })
    }

    /// Starts a process.
    #[must_use]
    pub fn process(self: &Arc<Self>) -> Arc<SimulatedProcess> {
        Arc::new(SimulatedProcess { host: Arc::clone(self), life: Life::new() })
    }

    /// Delivers a datagram. `is_marked` is true if the network has marked it (ECN). All datagrams are ECN-capable.
    /// Returns false if a socket is not bound at the destination, or if the socket's buffer is full.
    pub fn deliver(&self, datagram: Datagram<'_>, is_marked: bool) -> bool {
        self.ports.deliver(datagram, is_marked)
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        self.ports.addresses()
    }

    pub(crate) fn memory(&self) -> &Arc<HostMemory> {
        &self.memory
    }
}

/// A process of a simulated host, with any number of devices.
#[derive(Debug)]
pub struct SimulatedProcess {
    host: Arc<SimulatedHost>,
    life: Arc<Life>,
}

impl SimulatedProcess {
    /// Returns the process's host.
    #[must_use]
    pub fn host(&self) -> &Arc<SimulatedHost> {
        &self.host
    }

    /// Returns true if the process is alive. The simulation drops the machines and devices of a dead process.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.life.is_alive()
    }

    /// Kills the process. Its ports become free, its datagrams are dropped, and other processes detect its
    /// death.
    pub fn kill(&self) {
        self.life.kill();
    }

    /// Kills the process after `stores` further stores to memory that it shares with other processes. Later
    /// stores are dropped, so a write may be incomplete.
    pub fn kill_after_stores(&self, stores: u64) {
        self.life.kill_after_stores(stores);
    }

    /// Overwrites a word in each area that the process shares with others, like a faulty process. `choose` gets
    /// the number of words in an area, and returns the index and the new value of the word. Returns the number
    /// of areas.
    pub fn scribble(&self, mut choose: impl FnMut(usize) -> (usize, u64)) -> usize {
        let areas = self.areas();
        for area in &areas {
            let (place, value) = choose(area.len() / 8);
            // An index out of bounds has no effect.
            let _outside = area.write(place * 8, &value.to_ne_bytes());
        }
        areas.len()
    }

    /// Returns the areas that the process shares with others, so that a test can write to them.
    #[must_use]
    pub fn areas(&self) -> Vec<Arc<Memory>> {
        self.host.memory.areas_of(&self.life)
    }

    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    pub(crate) fn sockets(&self) -> ports::ProcessSockets {
        ports::ProcessSockets::new(Arc::clone(&self.host.ports), Arc::clone(&self.life))
    }
}
