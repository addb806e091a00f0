//! Accepted connections whose RTU has not arrived yet. The first packet at their QP also establishes them.
//!
//! Some devices, including the software device, treat that packet as the RTU themselves. NICs report it to the
//! program (`IBV_EVENT_COMM_EST`), which must notify the connection manager. Otherwise a lost RTU would delay the
//! session until the REP is retransmitted. Owned by the endpoints.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use trunkline_verbs::{CmId, QpNumber};

/// Connections that are not established yet, by QP. QP numbers are reused, so an entry is removed with its
/// connection.
#[derive(Debug, Default)]
pub(super) struct AwaitedPackets(BTreeMap<QpNumber, Arc<dyn CmId>>);

impl AwaitedPackets {
    /// Registers `id`, so that the next packet at `qp` establishes its connection.
    pub(super) fn await_packet(&mut self, qp: QpNumber, id: &Arc<dyn CmId>) {
        self.0.insert(qp, Arc::clone(id));
    }

    /// Removes the connection of `id`, once it is established or ended.
    pub(super) fn stop_waiting(&mut self, qp: QpNumber, id: &Arc<dyn CmId>) {
        if self.0.get(&qp).is_some_and(|awaited| awaited.number() == id.number()) {
            self.0.remove(&qp);
        }
    }

    /// Handles the arrival of a packet at a QP.
    pub(super) fn packet_came(&mut self, qp: QpNumber) {
        if let Some(id) = self.0.remove(&qp) {
            id.communication_established();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::time::{Duration, Instant};
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_softrdma::link::Hub;
    use trunkline_verbs::{
        CmChannel, CmEvent, CmEventKind, ConnectParameters, Device, EndpointRequest, EndpointSide, PortSpace,
        QpInit, QpType, XrcdFlags,
    };

    #[expect(clippy::disallowed_methods, reason = "bounds a wait for a real device")]
    fn next(channel: &Arc<dyn CmChannel>) -> CmEvent {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(event) = channel.next_event() {
                return event;
            }
            assert!(Instant::now() < until, "no event");
            std::thread::yield_now();
        }
    }

    /// The active side receives a REP and stays silent, as if its RTU were lost.
    #[test]
    fn first_packet_replaces_lost_rtu() {
        let device = SoftOptions {
            link: LinkChoice::InProcess(Hub::new()),
            addresses: vec![[127, 0, 0, 1].into()],
            ..SoftOptions::default()
        };
        let device: Arc<dyn Device> = SoftDevice::open(device).unwrap();
        let manager = device.connection_manager();
        let (near, far) = (manager.create_channel().unwrap(), manager.create_channel().unwrap());
        let endpoint = |side, qp_type, channel| {
            let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
            manager.create_endpoint(&request, channel).unwrap()
        };
        let side = EndpointSide::Passive { local: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let listener = endpoint(side, QpType::XrcTgt, &far);
        listener.listen(1).unwrap();
        let side = EndpointSide::Active { remote: listener.local_address(), source: None };
        let asking = endpoint(side, QpType::XrcIni, &near);
        let qp_number = Some(QpNumber::new(0x77));
        asking.connect(&ConnectParameters { qp_number, ..ConnectParameters::default() }).unwrap();
        let CmEventKind::ConnectRequest { id, .. } = next(&far).kind else { panic!("no request") };
        let xrcd = device.open_xrcd(None, XrcdFlags::CREATE).unwrap();
        let tgt = device.create_qp(QpInit { xrcd: Some(xrcd), ..QpInit::new(QpType::XrcTgt) }).unwrap();
        id.attach(Arc::clone(&tgt)).unwrap();
        id.accept(&ConnectParameters::default()).unwrap();
        assert!(matches!(next(&near).kind, CmEventKind::ConnectResponse { .. }));

        let mut awaited = AwaitedPackets::default();
        awaited.await_packet(tgt.number(), &id);
        awaited.stop_waiting(tgt.number(), &listener);
        awaited.packet_came(QpNumber::new(0x77));
        assert!(far.next_event().is_none(), "of another connection");
        awaited.packet_came(tgt.number());
        let event = next(&far);
        assert!(matches!(event.kind, CmEventKind::Established) && event.id == id.number(), "{event:?}");
        assert!(awaited.0.is_empty());
    }
}
