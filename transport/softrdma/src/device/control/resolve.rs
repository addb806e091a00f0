//! Addresses of connection endpoints: creating, binding, resolving.
//!
//! Assigns the device's addresses to endpoints. Stateless.

use super::Control;
use super::connections::PORTS_TRIED;
use super::endpoint::{PendingCmEvent, Role};
use crate::device::shards::reach::Reach;
use crate::device::threads::signal::Signal;
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_verbs::{CmEventKind, CmIdNumber, EndpointRequest, EndpointSide, VerbsError, canonical};

impl Control {
    /// Creates an endpoint. A passive endpoint is bound; an active endpoint is resolved, and its local address is
    /// opened.
    pub(in crate::device) fn create_endpoint(
        &mut self,
        shards: &mut Reach<'_>,
        request: &EndpointRequest,
        channel: Arc<Signal<PendingCmEvent>>,
    ) -> Result<CmIdNumber, VerbsError> {
        self.present()?;
        let mut endpoint = self.connections.new_endpoint(channel, request.port_space, request.qp_type);
        match request.side {
            EndpointSide::Passive { local } => {
                let local = canonical(local);
                if !local.ip().is_unspecified() {
                    self.qps.addresses().check(local.ip())?;
                }
                endpoint.local = local;
                endpoint.is_bound = true;
            }
            EndpointSide::Active { remote, source } => {
                let (remote, source) = (canonical(remote), source.map(|source| source.to_canonical()));
                let routed = self.qps.addresses().route_to(remote, source)?;
                let source = match source {
                    Some(source) => {
                        self.qps.addresses().check(source)?;
                        shards.first().link_mut().open(source)?;
                        source
                    }
                    None => self.qps.addresses().choose_source(shards, remote, routed)?,
                };
                endpoint.local = SocketAddr::new(source, self.connections.client_port());
                endpoint.role = Role::Active { remote };
                endpoint.peer = Some(remote);
                endpoint.has_route = true;
            }
        }
        Ok(self.connections.insert(endpoint))
    }

    /// Binds an endpoint to an address that is free on all devices that share it. Endpoints that reuse addresses can
    /// share an address until one of them listens.
    pub(in crate::device) fn bind(&mut self, id: CmIdNumber, local: SocketAddr) -> Result<(), VerbsError> {
        let local = canonical(local);
        let endpoint = self.connections.endpoint(id)?;
        let (port_space, only) = (endpoint.port_space, endpoint.is_family_only);
        let claims = !endpoint.reuses_address;
        for _ in 0..PORTS_TRIED {
            let bound = self.choose_port(id, local)?;
            let claimed = if claims {
                self.qps.addresses().claim_port(port_space, bound, only)
            } else {
                Ok(Vec::new())
            };
            match claimed {
                Ok(claims) => {
                    let endpoint = self.connections.endpoint(id)?;
                    endpoint.claims = claims;
                    endpoint.local = bound;
                    endpoint.is_bound = true;
                    return Ok(());
                }
                Err(VerbsError::AddressInUse(_)) if local.port() == 0 => {}
                Err(error) => return Err(error),
            }
        }
        Err(VerbsError::AddressNotAvailable("no port is free"))
    }

    /// Chooses the address and port to which an endpoint of this device is bound.
    fn choose_port(&mut self, id: CmIdNumber, local: SocketAddr) -> Result<SocketAddr, VerbsError> {
        let endpoint = self.connections.endpoint(id)?;
        if endpoint.is_bound || endpoint.role != Role::Undecided {
            return Err(VerbsError::Invalid("the endpoint is bound or resolved already"));
        }
        let (port_space, reuse, only) =
            (endpoint.port_space, endpoint.reuses_address, endpoint.is_family_only);
        if !local.ip().is_unspecified() {
            self.qps.addresses().check(local.ip())?;
        }
        let port = match local.port() {
            0 => self.connections.some_free_port(port_space, local.ip(), only)?,
            // Linux refuses ports below 1,024 without CAP_NET_BIND_SERVICE. This device does not need privileges.
            port => {
                self.connections.check_port(port_space, local, only, reuse)?;
                port
            }
        };
        Ok(SocketAddr::new(local.ip(), port))
    }

    /// Resolves a peer's address, and chooses the local address from which to reach it.
    pub(in crate::device) fn resolve_address(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        source: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<(), VerbsError> {
        let (source, remote) = (source.map(canonical), canonical(remote));
        let endpoint = self.connections.endpoint(id)?;
        if endpoint.role != Role::Undecided {
            return Err(VerbsError::Invalid("the endpoint listens or is resolved already"));
        }
        if let Some(source) = source.filter(|_| !endpoint.is_bound) {
            // Peers do not connect to the port of an active endpoint, so the port is not claimed.
            let local = self.choose_port(id, source)?;
            let endpoint = self.connections.endpoint(id)?;
            endpoint.local = local;
            endpoint.is_bound = true;
        }
        let endpoint = self.connections.endpoint(id)?;
        let bound = endpoint.is_bound.then_some(endpoint.local);
        if bound.is_some_and(|bound| bound.is_ipv4() != remote.is_ipv4()) {
            return Err(VerbsError::Invalid("source and destination are of different address families"));
        }
        let from = bound.map(|bound| bound.ip()).filter(|own| !own.is_unspecified());
        let routed = self.qps.addresses().route_to(remote, from)?;
        let port = match bound {
            Some(bound) => bound.port(),
            None => self.connections.client_port(),
        };
        match self.qps.addresses().resolve(shards, bound.map(|bound| bound.ip()), remote, routed) {
            Ok((own, remote)) => {
                let endpoint = self.connections.endpoint(id)?;
                endpoint.local = SocketAddr::new(own, port);
                endpoint.peer = Some(remote);
                endpoint.role = Role::Active { remote };
                endpoint.has_route = false;
                self.connections.push_event(id, CmEventKind::AddressResolved, Vec::new());
            }
            // Report the error only as an event, since the program may try another peer with the same endpoint.
            Err(error) => self.connections.push_event(id, CmEventKind::AddressError(error), Vec::new()),
        }
        Ok(())
    }
}
