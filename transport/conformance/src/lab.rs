//! The test bed of one item. It contains two devices and the objects that most checks need.
//!
//! Initiators are on the near side and targets on the far side, by convention.

use crate::check::{Verdict, check};
use crate::{Bench, Port};
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_verbs::{
    Access, CompletionQueue, CompletionStatus, CqInit, Device, Gid, Memory, MemoryRegion, ProtectionDomain,
    QpInit, QpType, QueueCapacities, QueuePair, RemoteAddress, Sge, SharedReceiveQueue, SrqInit, SrqKind,
    XrcDomain, XrcdFlags,
};

/// Size of the registered memory on each side, in bytes.
pub(crate) const MEMORY_BYTES: usize = 256 << 10;

/// Two devices that can reach each other.
#[derive(Debug)]
pub struct Lab {
    pub(crate) near: Side,
    pub(crate) far: Side,
    /// See [`Bench::is_one_device`].
    pub(crate) is_one_device: bool,
    /// See [`Bench::shows_solicited`].
    pub(crate) shows_solicited: bool,
    /// See [`Bench::flushes_late_receives`].
    pub(crate) flushes_late_receives: bool,
    /// See [`Bench::length_violation`].
    pub(crate) length_violation: Vec<CompletionStatus>,
    /// See [`Bench::xrc_violation`].
    pub(crate) xrc_violation: Vec<CompletionStatus>,
}

/// A device with a protection domain, a CQ for its initiators, and registered memory.
#[derive(Debug)]
pub struct Side {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) address: IpAddr,
    pub(crate) gid_index: u16,
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    /// An empty CQ, which is polled during waits so that the device makes progress.
    pub(crate) idle: Arc<dyn CompletionQueue>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) region: Arc<dyn MemoryRegion>,
}

/// Returns all remote access rights.
pub(crate) fn remote_rights() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

impl Lab {
    pub(crate) fn new(bench: &dyn Bench) -> Verdict<Self> {
        Self::with(bench, bench.open_pair()?)
    }

    /// Creates a test bed on the given devices.
    pub(crate) fn with<B: Bench + ?Sized>(bench: &B, [near, far]: [Port; 2]) -> Verdict<Self> {
        Ok(Self {
            near: Side::new(near)?,
            far: Side::new(far)?,
            is_one_device: bench.is_one_device(),
            shows_solicited: bench.shows_solicited(),
            flushes_late_receives: bench.flushes_late_receives(),
            length_violation: bench.length_violation().to_vec(),
            xrc_violation: bench.xrc_violation().to_vec(),
        })
    }

    pub(crate) fn sides(&self) -> [&Side; 2] {
        [&self.near, &self.far]
    }
}

impl Side {
    pub(crate) fn new(port: Port) -> Verdict<Self> {
        let Port { device, address, gid_index } = port;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(CqInit { capacity_cqe: 256, ..CqInit::default() })?;
        let idle = device.create_cq(CqInit { capacity_cqe: 1, ..CqInit::default() })?;
        let memory = Memory::zeroed(MEMORY_BYTES)?;
        let region = pd.register(Arc::clone(&memory), Access::LOCAL_WRITE | remote_rights())?;
        Ok(Self { device, address, gid_index, pd, cq, idle, memory, region })
    }

    pub(crate) fn gid(&self) -> Gid {
        self.address.into()
    }

    pub(crate) fn new_cq(&self) -> Verdict<Arc<dyn CompletionQueue>> {
        Ok(self.device.create_cq(CqInit { capacity_cqe: 128, ..CqInit::default() })?)
    }

    /// Opens a private XRC domain.
    pub(crate) fn new_xrcd(&self) -> Verdict<Arc<dyn XrcDomain>> {
        Ok(self.device.open_xrcd(None, XrcdFlags::CREATE)?)
    }

    /// Creates an XRC SRQ for 64 receives in the side's own protection domain.
    pub(crate) fn new_srq(
        &self,
        xrcd: &Arc<dyn XrcDomain>,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Verdict<Arc<dyn SharedReceiveQueue>> {
        Ok(self.device.create_srq(self.srq_init(xrcd, cq))?)
    }

    pub(crate) fn srq_init(&self, xrcd: &Arc<dyn XrcDomain>, cq: &Arc<dyn CompletionQueue>) -> SrqInit {
        SrqInit {
            pd: Arc::clone(&self.pd),
            kind: SrqKind::Xrc { xrcd: Arc::clone(xrcd), cq: Arc::clone(cq) },
            max_wr: 64,
            max_sge: 2,
            context: 0x5253,
        }
    }

    /// Creates a basic SRQ for 64 receives.
    pub(crate) fn new_basic_srq(&self) -> Verdict<Arc<dyn SharedReceiveQueue>> {
        let init =
            SrqInit { pd: Arc::clone(&self.pd), kind: SrqKind::Basic, max_wr: 64, max_sge: 2, context: 0 };
        Ok(self.device.create_srq(init)?)
    }

    /// Returns the parameters for creating an INI.
    pub(crate) fn ini_init(&self) -> QpInit {
        QpInit {
            pd: Some(Arc::clone(&self.pd)),
            send_cq: Some(Arc::clone(&self.cq)),
            capacities: QueueCapacities {
                max_send_wr: 64,
                max_send_sge: 2,
                max_inline_data: 64,
                ..QueueCapacities::default()
            },
            ..QpInit::new(QpType::XrcIni)
        }
    }

    pub(crate) fn new_ini(&self) -> Verdict<Arc<dyn QueuePair>> {
        Ok(self.device.create_qp(self.ini_init())?)
    }

    pub(crate) fn new_tgt(&self, xrcd: &Arc<dyn XrcDomain>) -> Verdict<Arc<dyn QueuePair>> {
        Ok(self.device.create_qp(self.tgt_init(xrcd))?)
    }

    /// Returns the parameters for creating a TGT.
    pub(crate) fn tgt_init(&self, xrcd: &Arc<dyn XrcDomain>) -> QpInit {
        QpInit { xrcd: Some(Arc::clone(xrcd)), ..QpInit::new(QpType::XrcTgt) }
    }

    /// Returns the parameters for creating an RC QP.
    pub(crate) fn rc_init(&self) -> QpInit {
        QpInit {
            receive_cq: Some(Arc::clone(&self.cq)),
            capacities: QueueCapacities {
                max_receive_wr: 8,
                max_receive_sge: 1,
                ..self.ini_init().capacities
            },
            qp_type: QpType::Rc,
            ..self.ini_init()
        }
    }

    /// Returns an SGE for a part of the side's memory.
    pub(crate) fn piece(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.memory.address(offset), length, lkey: self.region.lkey() }
    }

    /// Returns the address of an offset in the side's memory, for use by the peer.
    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { address: self.memory.address(offset), rkey: self.region.rkey() }
    }

    /// Writes a pattern that depends on `seed` to the memory.
    pub(crate) fn fill(&self, offset: usize, length: usize, seed: u8) -> Verdict {
        Ok(self.memory.write(offset, &pattern(length, seed))?)
    }

    /// Returns an error unless the memory contains the pattern for `seed`.
    pub(crate) fn holds(&self, what: &str, offset: usize, length: usize, seed: u8) -> Verdict {
        self.contains(what, offset, &pattern(length, seed))
    }

    /// Returns an error unless the memory contains `wanted`.
    pub(crate) fn contains(&self, what: &str, offset: usize, wanted: &[u8]) -> Verdict {
        let mut got = vec![0; wanted.len()];
        self.memory.read(offset, &mut got)?;
        let wrong = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        check(wrong.is_none(), || format!("{what}: byte {wrong:?} of {} is wrong", wanted.len()))
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    // 251 is prime, so the pattern does not repeat at packet boundaries.
    (0..length).map(|index| u8::try_from(index % 251).unwrap_or(0) ^ seed).collect()
}
