//! The XRC calls of OFED 1.x, which upstream libibverbs never had, over today's objects (contract B).
//!
//! Owns which XRC receive QPs this process is registered with. Programs written to the older interface call it;
//! the drop-in library gives the same to C. It adds nothing to a device: whatever implements [`Device`] will do.
//!
//! | OFED 1.x | here | today |
//! |---|---|---|
//! | `ibv_open_xrc_domain` | [`LegacyXrc::open_xrc_domain`] | [`Device::open_xrcd`] |
//! | `ibv_close_xrc_domain` | [`LegacyXrc::close_xrc_domain`] | [`XrcDomain::close`] |
//! | `ibv_create_xrc_srq` | [`LegacyXrc::create_xrc_srq`] | [`Device::create_srq`] with [`SrqKind::Xrc`] |
//! | `ibv_create_xrc_rcv_qp` | [`LegacyXrc::create_xrc_rcv_qp`] | [`Device::create_qp`], [`QpType::XrcTgt`] |
//! | `ibv_modify_xrc_rcv_qp`, `ibv_query_xrc_rcv_qp` | the same names | on a handle of the TGT |
//! | `ibv_reg_xrc_rcv_qp` | [`LegacyXrc::reg_xrc_rcv_qp`] | [`Device::open_qp`] |
//! | `ibv_unreg_xrc_rcv_qp` | [`LegacyXrc::unreg_xrc_rcv_qp`] | [`QueuePair::destroy`] of the handle |
//! | a QP of type `IBV_QPT_XRC` with `xrc_domain` | - | [`QpType::XrcIni`], without a domain |
//! | `wr.xrc_remote_srq_num` | - | `remote_srq` of a send request |
//!
//! What differs from OFED 1.x (contract B9): only a process that is registered may modify or query; the older
//! kernels let any process that knew number and domain.

mod error;

pub use error::LegacyError;

use crate::{
    CompletionQueue, Device, DeviceCapabilities, ProtectionDomain, QpAttributes, QpInit, QpModify, QpNumber,
    QpType, QueuePair, SharedReceiveQueue, SrqInit, SrqKind, VerbsError, XrcDomain, XrcdFlags,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The older XRC calls on one device, for one process: make one per device and keep it.
///
/// A receive QP is known by its number alone. Dropping this, or the end of the process, unregisters from all.
#[derive(Debug)]
pub struct LegacyXrc {
    device: Arc<dyn Device>,
    /// What this process is registered with.
    registered: Mutex<HashMap<QpNumber, Arc<dyn QueuePair>>>,
}

/// Sizes of an SRQ to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegacySrqInit {
    /// Work requests it must hold.
    pub max_wr: u32,
    /// SGEs per request.
    pub max_sge: u32,
    /// Returned in asynchronous events.
    pub context: u64,
}

const NOT_REGISTERED: VerbsError =
    VerbsError::Invalid("this process is not registered with an XRC receive QP of that number");

impl LegacyXrc {
    /// The older calls on a device. A device without XRC refuses each of them.
    #[must_use]
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, registered: Mutex::default() }
    }

    /// Opens the XRC domain of the file's inode, or with `None` a private one.
    ///
    /// # Errors
    /// As [`Device::open_xrcd`]; ENOSYS without XRC.
    pub fn open_xrc_domain(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<dyn XrcDomain>, LegacyError> {
        Ok(self.device()?.open_xrcd(file, flags)?)
    }

    /// Closes a domain.
    ///
    /// # Errors
    /// EBUSY while an SRQ made in it exists, or this process is registered with a receive QP through it.
    pub fn close_xrc_domain(&self, domain: &Arc<dyn XrcDomain>) -> Result<(), LegacyError> {
        self.device()?;
        Ok(domain.close()?)
    }

    /// Makes an XRC SRQ. What was `srq->xrc_srq_num` is [`SharedReceiveQueue::number`].
    ///
    /// # Errors
    /// As [`Device::create_srq`]; ENOSYS without XRC.
    pub fn create_xrc_srq(
        &self,
        pd: &Arc<dyn ProtectionDomain>,
        domain: &Arc<dyn XrcDomain>,
        cq: &Arc<dyn CompletionQueue>,
        init: LegacySrqInit,
    ) -> Result<Arc<dyn SharedReceiveQueue>, LegacyError> {
        let LegacySrqInit { max_wr, max_sge, context } = init;
        let kind = SrqKind::Xrc { xrcd: Arc::clone(domain), cq: Arc::clone(cq) };
        Ok(self.device()?.create_srq(SrqInit { pd: Arc::clone(pd), kind, max_wr, max_sge, context })?)
    }

    /// Makes an XRC receive QP and registers this process with it (contract B3).
    ///
    /// # Errors
    /// As [`Device::create_qp`]; ENOSYS without XRC.
    pub fn create_xrc_rcv_qp(&self, domain: &Arc<dyn XrcDomain>) -> Result<QpNumber, LegacyError> {
        let init = QpInit { xrcd: Some(Arc::clone(domain)), ..QpInit::new(QpType::XrcTgt) };
        let handle = self.device()?.create_qp(init)?;
        let number = handle.number();
        self.registered().insert(number, handle);
        Ok(number)
    }

    /// Moves a receive QP on: RESET to INIT, INIT to RTR, which is enough to receive (contract B6).
    ///
    /// # Errors
    /// EINVAL when this process is not registered with it, the domain is another, or the step is not allowed:
    /// of two processes that race, the loser's is not (contract B10).
    pub fn modify_xrc_rcv_qp(
        &self,
        domain: &Arc<dyn XrcDomain>,
        number: QpNumber,
        change: &QpModify,
    ) -> Result<(), LegacyError> {
        Ok(self.handle(domain, number)?.modify(change)?)
    }

    /// Attributes of a receive QP.
    ///
    /// # Errors
    /// EINVAL when this process is not registered with it, or the domain is another.
    pub fn query_xrc_rcv_qp(
        &self,
        domain: &Arc<dyn XrcDomain>,
        number: QpNumber,
    ) -> Result<QpAttributes, LegacyError> {
        Ok(self.handle(domain, number)?.query()?)
    }

    /// Registers this process with a receive QP, which then lives at least as long as the registration
    /// (contract B4).
    ///
    /// # Errors
    /// EINVAL when the domain has no receive QP of that number, EEXIST when this process is registered.
    pub fn reg_xrc_rcv_qp(&self, domain: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<(), LegacyError> {
        let device = self.device()?;
        let mut registered = self.registered();
        // Opened first: of a number in another domain the older calls say EINVAL, whoever is registered.
        let handle = device.open_qp(domain, number)?;
        match registered.entry(number) {
            Entry::Occupied(_) => Err(LegacyError::Registered),
            Entry::Vacant(place) => {
                place.insert(handle);
                Ok(())
            }
        }
    }

    /// Ends the registration; the last one of all processes destroys the QP (contract B5).
    ///
    /// # Errors
    /// EINVAL when this process is not registered with it, or the domain is another.
    pub fn unreg_xrc_rcv_qp(&self, domain: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<(), LegacyError> {
        let mut registered = self.registered();
        self.checked(&registered, domain, number)?;
        let Some(handle) = registered.remove(&number) else { return Err(NOT_REGISTERED.into()) };
        Ok(handle.destroy()?)
    }

    /// Ends all registrations of this process, as its end would.
    pub fn unreg_all(&self) {
        self.registered().clear();
    }

    fn device(&self) -> Result<&Arc<dyn Device>, LegacyError> {
        let has_xrc = self.device.attributes().capabilities.contains(DeviceCapabilities::XRC);
        if has_xrc { Ok(&self.device) } else { Err(LegacyError::NoXrc) }
    }

    fn handle(
        &self,
        domain: &Arc<dyn XrcDomain>,
        number: QpNumber,
    ) -> Result<Arc<dyn QueuePair>, LegacyError> {
        self.checked(&self.registered(), domain, number)
    }

    /// This process's handle, if the QP is in that domain. Domains have no names to compare, so it is asked by
    /// opening the QP once more for a moment.
    fn checked(
        &self,
        registered: &HashMap<QpNumber, Arc<dyn QueuePair>>,
        domain: &Arc<dyn XrcDomain>,
        number: QpNumber,
    ) -> Result<Arc<dyn QueuePair>, LegacyError> {
        let device = self.device()?;
        let handle = registered.get(&number).ok_or(NOT_REGISTERED)?;
        device.open_qp(domain, number)?.destroy()?;
        Ok(Arc::clone(handle))
    }

    fn registered(&self) -> MutexGuard<'_, HashMap<QpNumber, Arc<dyn QueuePair>>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
