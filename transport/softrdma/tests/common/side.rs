//! A node that connects step by step, as programs with librdmacm do.

use super::node::{Node, next_event};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_softrdma::device::SoftOptions;
use trunkline_verbs::{CmChannel, CmEvent, CmEventKind, CmId, ConnectParameters, Device, PortSpace, QpType};

pub(crate) struct Side {
    pub(crate) node: Node,
    pub(crate) channel: Arc<dyn CmChannel>,
    port_space: PortSpace,
}

impl Side {
    pub(crate) fn new(port_space: PortSpace) -> Self {
        Self::with(port_space, super::udp())
    }

    pub(crate) fn with(port_space: PortSpace, options: SoftOptions) -> Self {
        let node = Node::open(options, 4096);
        let channel = node.cm_channel();
        Self { node, channel, port_space }
    }

    pub(crate) fn id(&self, qp_type: QpType) -> Arc<dyn CmId> {
        self.node.device.connection_manager().create_id(self.port_space, qp_type, &self.channel).unwrap()
    }

    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.node.address, port)
    }

    pub(crate) fn next(&self) -> CmEvent {
        next_event(&*self.channel)
    }

    /// Creates an id that listens on a free port.
    pub(crate) fn listener(&self, qp_type: QpType) -> Arc<dyn CmId> {
        let listener = self.id(qp_type);
        listener.bind(self.at(0)).unwrap();
        assert_ne!(listener.local_address().port(), 0);
        listener.listen(4).unwrap();
        listener
    }

    /// Creates an id with a resolved route to a peer.
    pub(crate) fn resolved(&self, qp_type: QpType, remote: SocketAddr) -> Arc<dyn CmId> {
        let id = self.id(qp_type);
        id.resolve_address(None, remote).unwrap();
        assert!(matches!(self.next().kind, CmEventKind::AddressResolved));
        assert_eq!(id.local_address().ip(), self.node.address);
        assert_eq!(id.peer_address(), Some(remote));
        id.resolve_route().unwrap();
        assert!(matches!(self.next().kind, CmEventKind::RouteResolved));
        id
    }

    pub(crate) fn requested(&self) -> (Arc<dyn CmId>, ConnectParameters) {
        match self.next() {
            CmEvent { kind: CmEventKind::ConnectRequest { id, parameters }, .. } => (id, parameters),
            other => panic!("{other:?}"),
        }
    }
}
