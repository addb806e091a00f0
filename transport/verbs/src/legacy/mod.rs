//! The XRC calls of OFED 1.x, implemented with the current calls (contract B). Upstream libibverbs never contained them.
//!
//! The module holds the table of XRC receive QPs that this process is registered with. Programs written for the older
//! interface call it, and the drop-in library offers the same calls to C. It works with any [`Device`], and must never
//! depend on a particular one.
//!
//! | OFED 1.x | here | current call |
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
//! Unlike in OFED 1.x, only a registered process may modify or query a QP (contract B9). Older kernels allowed this to every
//! process with the QP's number and domain.

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

/// The older XRC calls on one device, for one process. Create one per device and keep it.
///
/// A receive QP is identified by its number alone. Dropping this value, or the end of the process, ends all registrations.
#[derive(Debug)]
pub struct LegacyXrc {
    device: Arc<dyn Device>,
    /// Handles of the receive QPs that this process is registered with, by number.
    registered: Mutex<HashMap<QpNumber, Arc<dyn QueuePair>>>,
}

/// The parameters for creating an SRQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegacySrqInit {
    /// Minimum number of work requests.
    pub max_wr: u32,
    /// Minimum number of SGEs per request.
    pub max_sge: u32,
    /// The caller's value that asynchronous events of the SRQ carry.
    pub context: u64,
}

const NOT_REGISTERED: VerbsError =
    VerbsError::Invalid("this process is not registered with an XRC receive QP of that number");

impl LegacyXrc {
    /// Provides the older calls on a device. A device without XRC refuses these calls.
    #[must_use]
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, registered: Mutex::default() }
    }

    /// Opens the XRC domain of the file's inode, or with `None` a private domain.
    ///
    /// # Errors
    /// Same as [`Device::open_xrcd`]; ENOSYS without XRC.
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
    /// EBUSY while an SRQ of the domain exists, or this process is registered with a receive QP through it.
    pub fn close_xrc_domain(&self, domain: &Arc<dyn XrcDomain>) -> Result<(), LegacyError> {
        self.device()?;
        Ok(domain.close()?)
    }

    /// Creates an XRC SRQ. [`SharedReceiveQueue::number`] replaces `srq->xrc_srq_num`.
    ///
    /// # Errors
    /// Same as [`Device::create_srq`]; ENOSYS without XRC.
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

    /// Creates an XRC receive QP and registers this process with it (contract B3).
    ///
    /// # Errors
    /// Same as [`Device::create_qp`]; ENOSYS without XRC.
    pub fn create_xrc_rcv_qp(&self, domain: &Arc<dyn XrcDomain>) -> Result<QpNumber, LegacyError> {
        let init = QpInit { xrcd: Some(Arc::clone(domain)), ..QpInit::new(QpType::XrcTgt) };
        let handle = self.device()?.create_qp(init)?;
        let number = handle.number();
        self.registered().insert(number, handle);
        Ok(number)
    }

    /// Modifies a receive QP. The QP can receive after it is moved from RESET to INIT and then to RTR (contract B6).
    ///
    /// # Errors
    /// EINVAL when this process is not registered with the QP, the QP belongs to another domain, or the transition is not
    /// allowed, for example because another process was faster (contract B10).
    pub fn modify_xrc_rcv_qp(
        &self,
        domain: &Arc<dyn XrcDomain>,
        number: QpNumber,
        change: &QpModify,
    ) -> Result<(), LegacyError> {
        Ok(self.handle(domain, number)?.modify(change)?)
    }

    /// Returns the state and attributes of a receive QP.
    ///
    /// # Errors
    /// EINVAL when this process is not registered with the QP, or the QP belongs to another domain.
    pub fn query_xrc_rcv_qp(
        &self,
        domain: &Arc<dyn XrcDomain>,
        number: QpNumber,
    ) -> Result<QpAttributes, LegacyError> {
        Ok(self.handle(domain, number)?.query()?)
    }

    /// Registers this process with a receive QP, which then exists at least as long as the registration (contract B4).
    ///
    /// # Errors
    /// EINVAL when the domain has no receive QP of that number, EEXIST when this process is registered
    /// already.
    pub fn reg_xrc_rcv_qp(&self, domain: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<(), LegacyError> {
        let device = self.device()?;
        let mut registered = self.registered();
        // Open the QP first, so that a QP of another domain yields EINVAL, whether this process is registered or not.
        let handle = device.open_qp(domain, number)?;
        match registered.entry(number) {
            Entry::Occupied(_) => Err(LegacyError::Registered),
            Entry::Vacant(place) => {
                place.insert(handle);
                Ok(())
            }
        }
    }

    /// Ends the registration. The QP is destroyed when its last registration in any process ends (contract B5).
    ///
    /// # Errors
    /// EINVAL when this process is not registered with the QP, or the QP belongs to another domain.
    pub fn unreg_xrc_rcv_qp(&self, domain: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<(), LegacyError> {
        let mut registered = self.registered();
        self.checked(&registered, domain, number)?;
        let Some(handle) = registered.remove(&number) else { return Err(NOT_REGISTERED.into()) };
        Ok(handle.destroy()?)
    }

    /// Ends all registrations of this process, as the end of the process does.
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

    /// Returns this process's handle if the QP belongs to `domain`. Domains cannot be compared, so the check briefly opens
    /// the QP again.
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
