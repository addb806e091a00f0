//! Listening endpoints.

use super::Control;
use super::connections::PORTS_TRIED;
use super::endpoint::{Role, refusal, transport};
use crate::device::shards::reach::Reach;
use crate::host::ServiceClaim;
use std::net::SocketAddr;
use trunkline_roce::cm::{CmError, Listen, ListenerId};
use trunkline_verbs::{CmIdNumber, QpType, VerbsError, WILDCARD_TAKEN};

impl Control {
    /// Starts listening at an endpoint.
    pub(in crate::device) fn listen(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        backlog: u32,
    ) -> Result<(), VerbsError> {
        let endpoint = self.connections.endpoint(id)?;
        if endpoint.role != Role::Undecided {
            return Err(VerbsError::Invalid("the endpoint listens already, or is an active one"));
        }
        if endpoint.qp_type == QpType::XrcIni {
            return Err(VerbsError::Invalid("an INI's endpoint does not listen"));
        }
        let (local, only) = (endpoint.local, endpoint.is_family_only);
        let (port_space, qp_type) = (endpoint.port_space, endpoint.qp_type);
        let is_claimed = !endpoint.claims.is_empty();
        self.qps.addresses().open_for_listener(shards, local.ip(), only)?;
        if local.ip().is_unspecified() && self.qps.addresses().follows_host() {
            self.following.begin();
        }
        let listen = Listen {
            address: local.ip(),
            is_family_only: only,
            port_space,
            port: local.port(),
            transport: Some(transport(qp_type)),
            backlog: backlog.max(1),
        };
        let (listener, port, claims) = self.listen_for(&listen, is_claimed, only)?;
        self.connections.listens(id, listener);
        let endpoint = self.connections.endpoint(id)?;
        endpoint.claims.extend(claims);
        endpoint.role = Role::Passive;
        endpoint.is_bound = true;
        endpoint.local.set_port(port);
        Ok(())
    }

    /// Listens at an address. Claims the service unless it was claimed when the endpoint was bound.
    fn listen_for(
        &mut self,
        listen: &Listen,
        is_claimed: bool,
        is_family_only: bool,
    ) -> Result<(ListenerId, u16, Vec<ServiceClaim>), VerbsError> {
        for _ in 0..PORTS_TRIED {
            let (listener, port) =
                self.connections.machine().listen(listen).map_err(|error| match error {
                    CmError::AddressInUse if listen.address.is_unspecified() => {
                        VerbsError::AddressInUse(WILDCARD_TAKEN)
                    }
                    other => refusal(other),
                })?;
            if is_claimed {
                return Ok((listener, port, Vec::new()));
            }
            match self.qps.addresses().claim_port(
                listen.port_space,
                SocketAddr::new(listen.address, port),
                is_family_only,
            ) {
                Ok(claims) => return Ok((listener, port, claims)),
                Err(error) => {
                    let _gone = self.connections.machine().unlisten(listener);
                    if listen.port != 0 || !matches!(error, VerbsError::AddressInUse(_)) {
                        return Err(error);
                    }
                }
            }
        }
        Err(VerbsError::AddressNotAvailable("no port is free"))
    }
}
