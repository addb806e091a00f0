//! Attachment of QPs to endpoints.
//!
//! Moves QPs through their states with the parameters that both sides of a connection have agreed on.
//! Stateless.

use super::Control;
use super::endpoint::to_init;
use crate::device::MAX_RD_ATOMIC;
use crate::device::shards::reach::Reach;
use crate::device::tables::guid::is_soft;
use trunkline_verbs::{CmIdNumber, PortSpace, QpModify, QpNumber, QpState, VerbsError};

impl Control {
    /// Attaches a QP to an endpoint, and moves it to INIT.
    pub(in crate::device) fn attach(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        qp: QpNumber,
    ) -> Result<(), VerbsError> {
        let qp_type = shards.attributes(qp).ok_or(VerbsError::Gone)?.qp_type;
        let endpoint = self.connections.endpoint(id)?;
        if endpoint.qp.is_some() {
            return Err(VerbsError::Invalid("the endpoint has a QP"));
        }
        if endpoint.port_space == PortSpace::Udp {
            return Err(VerbsError::Invalid("no connection of port space UDP is there for a QP"));
        }
        if endpoint.qp_type != qp_type {
            return Err(VerbsError::Invalid("the QP's type is not the endpoint's"));
        }
        endpoint.qp = Some(qp);
        if self.qps.query(shards, qp)?.state == QpState::Reset {
            self.qps.modify(shards, qp, &to_init())?;
        }
        Ok(())
    }

    /// Detaches an endpoint's QP.
    pub(in crate::device) fn detach(&mut self, shards: &mut Reach<'_>, id: CmIdNumber) {
        self.set_awaits_rtu(shards, id, false);
        if let Ok(endpoint) = self.connections.endpoint(id) {
            endpoint.qp = None;
        }
    }

    /// Returns the change that moves the connection's QP to a state.
    pub(in crate::device) fn qp_changes(
        &mut self,
        id: CmIdNumber,
        state: QpState,
    ) -> Result<QpModify, VerbsError> {
        let endpoint = self.connections.get(id).ok_or(VerbsError::Gone)?;
        if state == QpState::Init {
            return Ok(to_init());
        }
        let peer = endpoint.offered.ok_or(VerbsError::Invalid("the peer has not asked or answered yet"))?;
        let resources = peer.responder_resources.min(MAX_RD_ATOMIC);
        let depth = peer.initiator_depth.min(MAX_RD_ATOMIC);
        let (rtr, rts) = endpoint.transitions(self.qps.addresses().gids_mut(), &peer, resources, depth)?;
        match state {
            QpState::ReadyToReceive => Ok(rtr),
            QpState::ReadyToSend => Ok(rts),
            _ => Err(VerbsError::Invalid("connections know changes to INIT, RTR and RTS only")),
        }
    }

    /// Moves the QP of an endpoint to RTR and RTS with the agreed parameters.
    pub(super) fn bring_up(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        qp: QpNumber,
        max_dest_rd_atomic: u8,
        max_rd_atomic: u8,
    ) -> Result<(), VerbsError> {
        let gone = VerbsError::Gone;
        let endpoint = self.connections.get(id).ok_or(gone)?;
        let peer = endpoint.offered.ok_or(gone)?;
        let (rtr, rts) = endpoint.transitions(
            self.qps.addresses().gids_mut(),
            &peer,
            max_dest_rd_atomic.min(MAX_RD_ATOMIC),
            max_rd_atomic.min(MAX_RD_ATOMIC),
        )?;
        let ports = endpoint.ports;
        self.qps.modify(shards, qp, &rtr)?;
        if let Some(ports) = ports {
            let is_soft = is_soft(peer.ca_guid);
            shards.of_qp(qp.get(), |shard| shard.set_ports(qp.get(), ports, is_soft));
        }
        self.qps.modify(shards, qp, &rts)
    }

    /// Moves the attached QP to ERR (contract rocev2 12.6).
    pub(super) fn fail_attached(&mut self, shards: &mut Reach<'_>, id: CmIdNumber) {
        self.set_awaits_rtu(shards, id, false);
        let Some(qp) = self.connections.get(id).and_then(|endpoint| endpoint.qp) else { return };
        let in_reset = self.qps.query(shards, qp).is_ok_and(|attributes| attributes.state == QpState::Reset);
        if !in_reset {
            let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
            let _gone = self.qps.modify(shards, qp, &error);
        }
    }

    /// Sets whether the first packet received by the endpoint's QP counts as the RTU.
    pub(super) fn set_awaits_rtu(&mut self, shards: &mut Reach<'_>, id: CmIdNumber, awaits: bool) {
        if let Some(qp) = self.connections.carrier(id) {
            shards.of_qp(qp.get(), |shard| shard.await_rtu(qp.get(), awaits));
        }
    }
}
