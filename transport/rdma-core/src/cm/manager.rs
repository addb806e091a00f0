//! The table of a device's endpoints, and the creation of endpoints.
//!
//! The lock of the table protects the whole `cm` module, whose documentation states the rules.

use super::channel::{Channel, own_channel};
use super::endpoint::{self, RawId, check_port_space, port_space};
use super::error::{Asked, check};
use super::id::Id;
use super::resolver::Resolver;
use crate::context::Opened;
use crate::qp::Qp;
use rdma_sys::rdma_create_id;
use std::collections::HashMap;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_verbs::{
    CmChannel, CmId, ConnectionManager, EndpointDone, EndpointRequest, EndpointSide, PortSpace, QpType,
    VerbsError,
};

/// The connection manager of a device.
#[derive(Debug)]
pub(crate) struct Manager {
    shared: Arc<CmState>,
    resolver: Resolver,
}

/// State shared by the endpoints and channels of a device.
#[derive(Debug)]
pub(super) struct CmState {
    pub(super) opened: Arc<Opened>,
    table: Mutex<Table>,
}

/// The endpoints by number.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<u64, Entry>,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) raw: RawId,
    /// The endpoint's channel, which is kept until the endpoint is removed.
    pub(super) channel: Arc<Channel>,
    pub(super) qp_type: QpType,
    pub(super) qp: Option<Arc<Qp>>,
    /// True if the endpoint has a separate descriptor, as a listener created by `rdma_create_ep` does.
    pub(super) is_synchronous: bool,
    pub(super) is_listening: bool,
    /// True if the program has set the ACK timeout, which `connect` then leaves unchanged.
    pub(super) has_ack_timeout: bool,
    /// True if a failure on this side has been reported to the program. The peer's reaction is then not reported.
    pub(super) has_failed: bool,
}

impl CmState {
    /// Locks the table.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if an id belongs to this device or is not bound to a device.
    ///
    /// # Safety
    /// The id must not be destroyed or changed elsewhere during the call.
    pub(super) unsafe fn is_ours(&self, raw: RawId) -> bool {
        // SAFETY: this function's contract.
        let verbs = unsafe { (*raw.pointer()).verbs };
        verbs.is_null() || verbs == self.opened.context.raw()
    }

    /// Adds an id to the table and assigns its number. The id's events go to `channel`, or to a separate channel.
    ///
    /// # Safety
    /// The id must not be destroyed. It must not be shared, or the lock must have been held since its creation.
    pub(super) unsafe fn enter(
        &self,
        table: &mut Table,
        raw: RawId,
        channel: Arc<Channel>,
        qp_type: QpType,
        is_synchronous: bool,
    ) -> u64 {
        let number = next_number();
        // SAFETY: this function's contract.
        unsafe { (*raw.pointer()).context = without_provenance_mut(usize::try_from(number).unwrap_or(0)) };
        let entry = Entry {
            raw,
            channel,
            qp_type,
            qp: None,
            is_synchronous,
            is_listening: false,
            has_ack_timeout: false,
            has_failed: false,
        };
        table.entries.insert(number, entry);
        number
    }

    /// Creates an endpoint for an id returned by [`endpoint::create`].
    pub(super) fn adopt(
        self: &Arc<Self>,
        raw: RawId,
        request: &EndpointRequest,
        channel: Arc<Channel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        let mut table = self.table();
        // SAFETY: the caller passes ownership of the new id, so it is not destroyed.
        if !unsafe { self.is_ours(raw) } {
            drop(table);
            // SAFETY: this function owns the new id.
            unsafe { raw.destroy() };
            return Err(VerbsError::AddressNotAvailable(
                "the address, or the route to the peer, is another device's",
            ));
        }
        let is_listener = matches!(request.side, EndpointSide::Passive { .. });
        // SAFETY: this function owns the new id.
        let number =
            unsafe { self.enter(&mut table, raw, Arc::clone(&channel), request.qp_type, is_listener) };
        // A listener keeps its own descriptor, which the channel monitors and reads.
        let placed = if is_listener { channel.listen_at(number, raw) } else { channel.take_in(raw) };
        drop(table);
        // If this fails, dropping the endpoint takes the lock and destroys the id.
        let id = Arc::new(Id::new(number, Arc::clone(self)));
        placed.map(|()| id as Arc<dyn CmId>)
    }
}

/// Returns a number that is unique among the endpoints of the process.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Manager {
    /// Creates the connection manager for an opening of a device.
    pub(crate) fn new(opened: &Arc<Opened>) -> Self {
        let shared = Arc::new(CmState { opened: Arc::clone(opened), table: Mutex::default() });
        Self { resolver: Resolver::new(Arc::clone(&shared)), shared }
    }
}

impl ConnectionManager for Manager {
    fn create_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError> {
        Ok(Arc::new(Channel::new(&self.shared)?))
    }

    fn create_id(
        &self,
        space: PortSpace,
        qp_type: QpType,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        check_port_space(space)?;
        if qp_type != QpType::Rc {
            return Err(if space == PortSpace::Ib {
                VerbsError::NotSupported("making XRC endpoints step by step: use create_endpoint")
            } else {
                VerbsError::Invalid("XRC needs the port space IB (contract J1)")
            });
        }
        let channel = own_channel(&self.shared, channel)?;
        let mut raw = null_mut();
        let mut table = self.shared.table();
        // SAFETY: endpoints hold their channel; the result is local.
        check(Asked::Create, unsafe {
            rdma_create_id(channel.raw(), &raw mut raw, null_mut(), port_space(space))
        })?;
        let raw = RawId::new(raw).ok_or(VerbsError::Gone)?;
        // SAFETY: the id was created above, with the lock held.
        let number = unsafe { self.shared.enter(&mut table, raw, channel, qp_type, false) };
        Ok(Arc::new(Id::new(number, Arc::clone(&self.shared))))
    }

    fn create_endpoint(
        &self,
        request: &EndpointRequest,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        endpoint::validate(request)?;
        let channel = own_channel(&self.shared, channel)?;
        self.shared.adopt(endpoint::create(request)?, request, channel)
    }

    fn begin_endpoint(&self, request: EndpointRequest, channel: &Arc<dyn CmChannel>, done: EndpointDone) {
        let EndpointSide::Active { remote, source } = request.side else {
            // Binding does not wait.
            done(self.create_endpoint(&request, channel));
            return;
        };
        match endpoint::validate(&request).and_then(|()| own_channel(&self.shared, channel)) {
            Ok(channel) => self.resolver.begin(request, (remote, source), channel, done),
            Err(error) => done(Err(error)),
        }
    }
}
