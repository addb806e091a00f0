//! An endpoint.
//!
//! An [`Id`] stands for an entry in the manager's table and for librdmacm's id. Dropping it removes both. The id is used
//! only with the manager's lock held, which prevents its destruction during the use.

use super::address::{self, CAddress};
use super::bring_up::{self, Limits, own_qp};
use super::channel::own_channel;
use super::error::{Asked, check};
use super::manager::{CmState, Entry};
use rdma_sys::{
    ibv_event_type, rdma_accept, rdma_bind_addr, rdma_cm_id, rdma_conn_param, rdma_connect, rdma_disconnect,
    rdma_establish, rdma_listen, rdma_notify, rdma_reject, rdma_reject_ece, rdma_resolve_addr,
    rdma_resolve_route, rdma_set_option,
};
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr::null_mut;
use std::sync::Arc;
use trunkline_verbs::{
    CmChannel, CmId, CmIdNumber, CmOption, ConnectParameters, QpModify, QpState, QueuePair, RejectReason,
    VerbsError,
};

/// Time limit for resolving an address or a route in the kernel, in milliseconds. `rdma_create_ep` uses the same limit.
pub(super) const RESOLVE_MS: c_int = 2000;
/// `RDMA_OPTION_ID` and its options.
const OPTION_ID: c_int = 0;
const OPTION_TOS: c_int = 0;
const OPTION_REUSE_ADDRESS: c_int = 1;
const OPTION_FAMILY_ONLY: c_int = 2;
const OPTION_ACK_TIMEOUT: c_int = 3;

/// An endpoint.
#[derive(Debug)]
pub(super) struct Id {
    number: u64,
    shared: Arc<CmState>,
}

impl Id {
    /// Creates the endpoint for an entry of the table. Dropping it removes the entry and destroys the id.
    pub(super) fn new(number: u64, shared: Arc<CmState>) -> Self {
        Self { number, shared }
    }

    /// Calls `with` with the endpoint's entry while the lock is held.
    fn with<R>(&self, with: impl FnOnce(&mut Entry) -> Result<R, VerbsError>) -> Result<R, VerbsError> {
        let mut table = self.shared.table();
        with(table.entries.get_mut(&self.number).ok_or(VerbsError::Gone)?)
    }

    /// Calls a function of librdmacm that returns 0 for success.
    fn ask(&self, asked: Asked, call: impl FnOnce(*mut rdma_cm_id) -> c_int) -> Result<(), VerbsError> {
        self.with(|entry| check(asked, call(entry.raw.pointer())))
    }

    /// Returns an error if the endpoint's address belongs to another device.
    fn is_at_ours(&self) -> Result<(), VerbsError> {
        self.with(|entry| {
            // SAFETY: the lock is held, so the id is neither destroyed nor used by another thread.
            if unsafe { self.shared.is_ours(entry.raw) } {
                Ok(())
            } else {
                Err(VerbsError::AddressNotAvailable("the address is another device's"))
            }
        })
    }
}

impl CmId for Id {
    fn number(&self) -> CmIdNumber {
        CmIdNumber(self.number)
    }

    fn local_address(&self) -> SocketAddr {
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        // SAFETY: the lock is held, so the id is not destroyed. Each member of the union consists of numbers.
        let local = |entry: &mut Entry| unsafe {
            Ok(address::read(&(*entry.raw.pointer()).route.addr.src_addr_union.src_storage))
        };
        self.with(local).ok().flatten().unwrap_or(nowhere)
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the lock is held, so the id is not destroyed. Each member of the union consists of numbers.
        let peer = |entry: &mut Entry| unsafe {
            Ok(address::read(&(*entry.raw.pointer()).route.addr.dst_addr_union.dst_storage))
        };
        self.with(peer).ok().flatten()
    }

    fn local_user(&self) -> Option<u32> {
        None
    }

    fn attach(&self, qp: Arc<dyn QueuePair>) -> Result<(), VerbsError> {
        let qp = own_qp(qp)?;
        self.with(|entry| {
            if entry.qp.is_some() {
                return Err(VerbsError::Invalid("the endpoint has a QP"));
            }
            if qp.qp_type() != entry.qp_type {
                return Err(VerbsError::Invalid("the QP's type is not the endpoint's"));
            }
            if !Arc::ptr_eq(qp.opened(), &self.shared.opened) {
                return Err(VerbsError::Invalid("the QP belongs to another device"));
            }
            // If the QP is in a later state, the program is responsible for it (contract J11).
            if qp.query()?.state == QpState::Reset {
                bring_up::through(entry.raw, &qp, &[QpState::Init], Limits::default())?;
            }
            entry.qp = Some(qp);
            Ok(())
        })
    }

    fn detach(&self) -> Option<Arc<dyn QueuePair>> {
        let qp = self.with(|entry| Ok(entry.qp.take())).ok().flatten();
        qp.map(|qp| qp as Arc<dyn QueuePair>)
    }

    fn bind(&self, local: SocketAddr) -> Result<(), VerbsError> {
        let local = CAddress::from(local);
        // SAFETY: `ask` holds the lock, so the id is not destroyed; the address is local.
        self.ask(Asked::Bind, |id| unsafe { rdma_bind_addr(id, local.pointer().cast()) })?;
        self.is_at_ours()
    }

    fn resolve_address(&self, source: Option<SocketAddr>, remote: SocketAddr) -> Result<(), VerbsError> {
        let (source, remote) = (source.map(CAddress::from), CAddress::from(remote));
        let from = source.as_ref().map_or(null_mut(), CAddress::pointer);
        // SAFETY: as in `bind`. The id is not synchronous, so the call does not wait.
        self.ask(Asked::Resolve, |id| unsafe {
            rdma_resolve_addr(id, from.cast(), remote.pointer().cast(), RESOLVE_MS)
        })
    }

    fn resolve_route(&self) -> Result<(), VerbsError> {
        self.with(|entry| {
            // SAFETY: the lock is held, so the id is not destroyed.
            if unsafe { (*entry.raw.pointer()).verbs.is_null() } {
                return Err(VerbsError::Invalid("the address is not resolved"));
            }
            // SAFETY: the lock is held, so the id is not destroyed; its device is not null, as checked above.
            check(Asked::Resolve, unsafe { rdma_resolve_route(entry.raw.pointer(), RESOLVE_MS) })
        })?;
        self.is_at_ours()
    }

    fn set_option(&self, option: CmOption) -> Result<(), VerbsError> {
        self.with(|entry| {
            set(entry, option)?;
            entry.has_ack_timeout |= matches!(option, CmOption::AckTimeout(_));
            Ok(())
        })
    }

    fn qp_changes(&self, state: QpState) -> Result<QpModify, VerbsError> {
        self.with(|entry| bring_up::named_changes(entry.raw, state))
    }

    fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        self.with(|entry| {
            // SAFETY: the lock is held, so the id is not destroyed.
            check(Asked::Bind, unsafe { rdma_listen(entry.raw.pointer(), backlog) })?;
            entry.is_listening = true;
            Ok(())
        })
    }

    fn connect(&self, parameters: &ConnectParameters) -> Result<(), VerbsError> {
        self.with(|entry| {
            if !entry.has_ack_timeout
                && let Err(error) = set(entry, CmOption::AckTimeout(parameters.ack_timeout))
            {
                tracing::debug!(%error, "ACK timeout not set; the kernel's default stays");
            }
            let mut conn = parameters_for_c(parameters, entry)?;
            // SAFETY: the lock is held, so the id is not destroyed; the parameters and their private data
            // belong to the caller. The id is not synchronous, so the call does not wait.
            check(Asked::Connect, unsafe { rdma_connect(entry.raw.pointer(), &raw mut conn) })
        })
    }

    fn accept(&self, parameters: &ConnectParameters) -> Result<(), VerbsError> {
        self.with(|entry| {
            let mut conn = parameters_for_c(parameters, entry)?;
            if let Some(qp) = &entry.qp {
                let limits = Limits {
                    resources: Some(parameters.responder_resources),
                    depth: Some(parameters.initiator_depth),
                };
                let states = [QpState::ReadyToReceive, QpState::ReadyToSend];
                bring_up::through(entry.raw, qp, &states, limits)?;
            }
            // SAFETY: as in `connect`.
            let accepted = check(Asked::Connect, unsafe { rdma_accept(entry.raw.pointer(), &raw mut conn) });
            if let (Err(_), Some(qp)) = (&accepted, &entry.qp) {
                bring_up::to_error(qp);
            }
            accepted
        })
    }

    fn establish(&self) -> Result<(), VerbsError> {
        // SAFETY: `ask` holds the lock, so the id is not destroyed.
        self.ask(Asked::Connect, |id| unsafe { rdma_establish(id) })
    }

    fn communication_established(&self) {
        // SAFETY: `ask` holds the lock, so the id is not destroyed.
        let notified =
            self.ask(Asked::Connect, |id| unsafe { rdma_notify(id, ibv_event_type::IBV_EVENT_COMM_EST) });
        if let Err(error) = notified {
            tracing::debug!(%error, "connection not established by an early packet");
        }
    }

    fn reject_for(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), VerbsError> {
        let length = u8::try_from(private_data.len()).map_err(|_| VerbsError::Invalid(TOO_LONG))?;
        let data = private_data.as_ptr().cast::<c_void>();
        self.ask(Asked::Connect, |id| match reason {
            // SAFETY: `ask` holds the lock, so the id is not destroyed; the data is read during the call.
            RejectReason::CONSUMER => unsafe { rdma_reject(id, data, length) },
            // SAFETY: `ask` holds the lock, so the id is not destroyed; the data is read during the call.
            RejectReason::VENDOR_OPTION => unsafe { rdma_reject_ece(id, data, length) },
            // librdmacm provides functions for these two reasons only.
            _ => {
                nix::errno::Errno::EOPNOTSUPP.set();
                -1
            }
        })
    }

    fn disconnect_with(&self, _private_data: &[u8]) -> Result<(), VerbsError> {
        self.with(|entry| {
            // SAFETY: the lock is held, so the id is not destroyed.
            if unsafe { (*entry.raw.pointer()).verbs.is_null() } {
                return Err(VerbsError::Invalid("there is no connection"));
            }
            if let Some(qp) = &entry.qp {
                bring_up::to_error(qp);
            }
            // SAFETY: the lock is held, so the id is not destroyed. It is not synchronous, so the call does
            // not wait.
            check(Asked::Connect, unsafe { rdma_disconnect(entry.raw.pointer()) })
        })
    }

    fn migrate(&self, channel: &Arc<dyn CmChannel>) -> Result<(), VerbsError> {
        let channel = own_channel(&self.shared, channel)?;
        self.with(|entry| {
            if Arc::ptr_eq(&entry.channel, &channel) {
                return Ok(());
            }
            if entry.is_synchronous {
                // The new channel monitors the listener's descriptor, which may have unread requests.
                channel.listen_at(self.number, entry.raw)?;
                entry.channel.forget_listener(entry.raw);
            } else if entry.is_listening {
                // Linux 6.1 drops the pending requests of a listener that is migrated.
                return Err(VerbsError::NotSupported("migrating a listener that create_id made"));
            } else {
                channel.take_in(entry.raw)?;
            }
            entry.channel = channel;
            Ok(())
        })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        let Some(entry) = table.entries.remove(&self.number) else { return };
        if entry.is_synchronous {
            entry.channel.forget_listener(entry.raw);
        }
        drop(table);
        // SAFETY: the table does not list the id any more, and its events were acknowledged under the
        // lock. The entry is dropped after this, and keeps the channel.
        unsafe { entry.raw.destroy() };
    }
}

const TOO_LONG: &str = "the private data is too long";

fn set(entry: &mut Entry, option: CmOption) -> Result<(), VerbsError> {
    let (name, mut bytes, length) = match option {
        CmOption::TypeOfService(value) => (OPTION_TOS, [value, 0, 0, 0], 1),
        CmOption::ReuseAddress(is_on) => (OPTION_REUSE_ADDRESS, c_int::from(is_on).to_ne_bytes(), 4),
        CmOption::AddressFamilyOnly(is_on) => (OPTION_FAMILY_ONLY, c_int::from(is_on).to_ne_bytes(), 4),
        CmOption::AckTimeout(value) => {
            if value > 31 {
                return Err(VerbsError::Invalid("an ACK timeout is at most 31"));
            }
            (OPTION_ACK_TIMEOUT, [value, 0, 0, 0], 1)
        }
        _ => return Err(VerbsError::NotSupported("this option of endpoints")),
    };
    // SAFETY: the caller holds the lock, so the id is not destroyed; the option is read during the call.
    check(Asked::Option, unsafe {
        rdma_set_option(entry.raw.pointer(), OPTION_ID, name, bytes.as_mut_ptr().cast(), length)
    })
}

/// Converts connection parameters to C. The result points to the private data in `parameters`.
fn parameters_for_c(parameters: &ConnectParameters, entry: &Entry) -> Result<rdma_conn_param, VerbsError> {
    let length = u8::try_from(parameters.private_data.len()).map_err(|_| VerbsError::Invalid(TOO_LONG))?;
    let (qp_num, srq) = match (&entry.qp, parameters.qp_number) {
        (Some(qp), _) => (qp.number(), parameters.srq || qp.has_srq()),
        (None, Some(number)) => (number, parameters.srq),
        (None, None) => return Err(VerbsError::Invalid("neither a QP nor a QP number")),
    };
    Ok(rdma_conn_param {
        private_data: parameters.private_data.as_ptr().cast(),
        private_data_len: length,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        flow_control: u8::from(parameters.flow_control),
        retry_count: parameters.retry_count,
        rnr_retry_count: parameters.rnr_retry_count,
        srq: u8::from(srq),
        qp_num: qp_num.get(),
    })
}
