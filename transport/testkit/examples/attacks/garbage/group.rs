//! The PD, XRC domain, SRQs, CQ and guarded memory that a set of connections shares on one side.
//!
//! Each side has two groups, so that attacked connections have no access to objects of the bystanders.

use crate::Outcome;
use std::sync::Arc;
use trunkline_softrdma::device::SoftDevice;
use trunkline_testkit::{bytes_of, key};
use trunkline_verbs::{
    Access, CompletionChannel, CompletionQueue, CqInit, Device, Memory, MemoryRegion, ProtectionDomain,
    QpInit, QpType, QueueCapacities, QueuePair, ReceiveRequest, RemoteAddress, Sge, SharedReceiveQueue,
    SrqInit, SrqKind, XrcDomain, XrcdFlags,
};

/// Length of a receive buffer, in bytes.
pub(super) const SLOT: usize = 2048;
/// Number of guard bytes after each receive buffer.
const GAP: usize = 64;
/// Number of receives in each of the two SRQs.
const SLOTS: usize = 128;
/// Length of the memory that peers may only read, in bytes.
pub(super) const READ_ONLY: usize = 4096;
/// Length of each guard, in bytes.
const GUARD: usize = 8192;
/// Bit in `wr_id` that marks a receive.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Memory that peers have no right to change.
#[derive(Debug)]
struct Guard {
    what: &'static str,
    memory: Arc<Memory>,
    key: u64,
    /// The registration of the memory, if it is registered.
    region: Option<Arc<dyn MemoryRegion>>,
}

/// Objects shared by a set of connections.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) cq: Arc<dyn CompletionQueue>,
    pub(super) srq: Arc<dyn SharedReceiveQueue>,
    xrcd: Arc<dyn XrcDomain>,
    rc_srq: Arc<dyn SharedReceiveQueue>,
    slots: Arc<Memory>,
    slots_region: Arc<dyn MemoryRegion>,
    read_only_region: Arc<dyn MemoryRegion>,
    guards: Vec<Guard>,
}

/// Returns the contents of every read-only region.
pub(super) fn read_only_bytes() -> Vec<u8> {
    bytes_of(key(&[0x726f]), READ_ONLY)
}

fn guard(
    what: &'static str,
    pd: Option<&Arc<dyn ProtectionDomain>>,
    access: Access,
    seed: u64,
) -> Outcome<Guard> {
    let memory = Memory::zeroed(GUARD)?;
    memory.write(0, &bytes_of(seed, GUARD))?;
    let region = pd.map(|pd| pd.register(Arc::clone(&memory), access)).transpose()?;
    Ok(Guard { what, memory, key: seed, region })
}

impl Group {
    pub(super) fn new(device: &SoftDevice, channel: &Arc<dyn CompletionChannel>) -> Outcome<Self> {
        let (pd, other_pd) = (device.alloc_pd()?, device.alloc_pd()?);
        let cq = device.create_cq(CqInit {
            capacity_cqe: 8192,
            channel: Some(Arc::clone(channel)),
            ..CqInit::default()
        })?;
        let xrcd = device.open_xrcd(None, XrcdFlags::CREATE)?;
        let max_wr = u32::try_from(SLOTS)?;
        let srq =
            |kind| device.create_srq(SrqInit { pd: Arc::clone(&pd), kind, max_wr, max_sge: 1, context: 0 });
        let xrc = srq(SrqKind::Xrc { xrcd: Arc::clone(&xrcd), cq: Arc::clone(&cq) })?;
        let rc_srq = srq(SrqKind::Basic)?;

        // Guards lie before, between and after the accessible memory.
        let everything =
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut guards = vec![guard("unregistered memory", None, Access::empty(), 1)?];
        let slots = Memory::zeroed(2 * SLOTS * (SLOT + GAP))?;
        guards.push(guard("memory with local rights", Some(&pd), Access::LOCAL_WRITE, 2)?);
        let read_only = Memory::zeroed(READ_ONLY)?;
        guards.push(guard("another PD's memory", Some(&other_pd), everything, 3)?);
        read_only.write(0, &read_only_bytes())?;
        guards.push(Guard {
            what: "read-only memory",
            memory: Arc::clone(&read_only),
            key: key(&[0x726f]),
            region: None,
        });
        for index in 0..2 * SLOTS {
            slots.write(index * (SLOT + GAP) + SLOT, &[0x5a; GAP])?;
        }
        let slots_region = pd.register(Arc::clone(&slots), Access::LOCAL_WRITE)?;
        let read_only_region = pd.register(read_only, Access::REMOTE_READ)?;
        let group = Self { pd, cq, srq: xrc, xrcd, rc_srq, slots, slots_region, read_only_region, guards };
        for index in 0..2 * SLOTS {
            group.post(index)?;
        }
        Ok(group)
    }

    /// Creates a QP that uses the group's objects.
    pub(super) fn qp(&self, device: &SoftDevice, qp_type: QpType) -> Outcome<Arc<dyn QueuePair>> {
        let mut init = QpInit::new(qp_type);
        if qp_type == QpType::XrcTgt {
            init.xrcd = Some(Arc::clone(&self.xrcd));
        } else {
            init.pd = Some(Arc::clone(&self.pd));
            init.send_cq = Some(Arc::clone(&self.cq));
            init.capacities =
                QueueCapacities { max_send_wr: 16, max_send_sge: 1, ..QueueCapacities::default() };
        }
        if qp_type == QpType::Rc {
            init.receive_cq = Some(Arc::clone(&self.cq));
            init.srq = Some(Arc::clone(&self.rc_srq));
        }
        Ok(device.create_qp(init)?)
    }

    /// Returns the memory that peers may only read.
    pub(super) fn read_only(&self) -> RemoteAddress {
        let region = &self.read_only_region;
        RemoteAddress { address: region.memory().address(0), rkey: region.rkey() }
    }

    /// Returns the addresses and keys of the registered guards. The keys are valid but grant no access to peers.
    pub(super) fn forbidden(&self) -> impl Iterator<Item = RemoteAddress> {
        let regions = self.guards.iter().filter_map(|guard| guard.region.as_ref());
        regions.map(|region| RemoteAddress { address: region.memory().address(0), rkey: region.rkey() })
    }

    /// Posts the receive with number `index`. The first half of the receives goes to the XRC SRQ, the second half to the
    /// other SRQ.
    fn post(&self, index: usize) -> Outcome<()> {
        let address = self.slots.address(index * (SLOT + GAP));
        let scatter = [Sge { address, length: u32::try_from(SLOT)?, lkey: self.slots_region.lkey() }];
        let request = ReceiveRequest { wr_id: RECEIVE | index as u64, scatter: &scatter };
        let srq = if index < SLOTS { &self.srq } else { &self.rc_srq };
        Ok(srq.post_receive(&[request])?)
    }

    /// Returns the received message, and posts its receive again.
    pub(super) fn take(&self, wr_id: u64, length: u32) -> Outcome<Vec<u8>> {
        let index = usize::try_from(wr_id & !RECEIVE)?;
        let mut bytes = vec![0; usize::try_from(length)?.min(SLOT)];
        self.slots.read(index * (SLOT + GAP), &mut bytes)?;
        self.post(index)?;
        Ok(bytes)
    }

    /// Returns the names of the guards whose contents have changed.
    pub(super) fn harmed(&self) -> Outcome<Vec<&'static str>> {
        let mut harmed = Vec::new();
        for guard in &self.guards {
            let mut bytes = vec![0; guard.memory.len()];
            guard.memory.read(0, &mut bytes)?;
            if bytes != bytes_of(guard.key, bytes.len()) {
                harmed.push(guard.what);
            }
        }
        let mut gap = [0; GAP];
        for index in 0..2 * SLOTS {
            self.slots.read(index * (SLOT + GAP) + SLOT, &mut gap)?;
            if gap != [0x5a; GAP] {
                harmed.push("bytes after a receive");
                break;
            }
        }
        Ok(harmed)
    }
}
