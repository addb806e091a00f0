//! XRC on the wire: contract J8 and rocev2 10, checked by raw offsets in a
//! capture, so that our own parsers cannot hide their mistakes.

#[cfg(test)]
mod tests {
    use crate::common::in_process;
    use crate::common::node::{BOUND, Node, post_to};
    use std::fs::File;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Instant;
    use trunkline_roce::pcap::{Datagram, PcapReader};
    use trunkline_roce::wire::icrc;
    use trunkline_softrdma::device::SoftOptions;
    use trunkline_testkit::Folder;
    use trunkline_verbs::{
        CmChannel, CmEvent, CmEventKind, ConnectParameters, ConnectionManager, EndpointRequest, EndpointSide,
        PortSpace, QpType, QueuePair, SendData, SendOperation,
    };

    const BTH: usize = 12;
    /// BTH, DETH and the MAD header.
    const CM_DATA: usize = BTH + 8 + 24;
    const MAD_ATTRIBUTE: usize = BTH + 8 + 16;

    fn number(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
    }

    /// Every payload in the capture; each ICRC must be right.
    fn payloads(path: &Path) -> Vec<Vec<u8>> {
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
        let mut all = Vec::new();
        while let Some(frame) = reader.next_frame().unwrap() {
            let datagram = Datagram::from_frame(&frame).unwrap();
            assert!(datagram.headers.v4_dont_fragment && datagram.headers.v4_identification == 0);
            assert!(icrc::check(&datagram.headers, datagram.payload), "packet {}", frame.number);
            all.push(datagram.payload.to_vec());
        }
        all
    }

    fn cm_message(payloads: &[Vec<u8>], attribute: u32) -> &[u8] {
        let is_it = |payload: &&Vec<u8>| {
            payload[0] == 0x64 && number(&payload[MAD_ATTRIBUTE..MAD_ATTRIBUTE + 2]) == attribute
        };
        let payload = payloads.iter().find(is_it).expect("the CM message is in the capture");
        assert_eq!(payload.len(), 280);
        &payload[CM_DATA..]
    }

    fn next_event(channel: &Arc<dyn CmChannel>) -> CmEvent {
        let end = Instant::now() + BOUND;
        loop {
            if let Some(event) = channel.next_event() {
                return event;
            }
            assert!(Instant::now() < end, "no CM event");
            std::thread::yield_now();
        }
    }

    /// Connects through the CM and sends one message with immediate data.
    fn talk(near: &Node, far: &Node) -> [Arc<dyn QueuePair>; 2] {
        far.receive(1, 0, 4096);
        let [passive, active] = [far, near].map(|node| node.device.create_channel().unwrap());
        let side = EndpointSide::Passive { local: SocketAddr::new(far.address, 0) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
        let listener = far.device.create_endpoint(&request, &passive).unwrap();
        listener.listen(1).unwrap();
        let side = EndpointSide::Active { remote: listener.local_address(), source: None };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
        let ini_id = near.device.create_endpoint(&request, &active).unwrap();
        let (ini, tgt) = (near.qp(QpType::XrcIni), far.qp(QpType::XrcTgt));
        ini_id.attach(Arc::clone(&ini)).unwrap();
        ini_id.connect(&ConnectParameters::default()).unwrap();
        let CmEventKind::ConnectRequest { id: tgt_id, .. } = next_event(&passive).kind else {
            panic!("no connection request");
        };
        tgt_id.attach(Arc::clone(&tgt)).unwrap();
        tgt_id.accept(&ConnectParameters::default()).unwrap();
        let event = next_event(&active);
        assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");
        let message = SendData::Inline(b"twelve bytes");
        post_to(&*ini, SendOperation::SendWithImmediate(0xa1b2_c3d4), message, far.srq.number().unwrap());
        assert!(near.completion().status.is_success());
        let got = far.completion();
        assert_eq!((got.wr_id, got.byte_length, got.immediate), (1, 12, 0xa1b2_c3d4));
        [ini, tgt]
    }

    #[test]
    fn j8_request_reply_and_packets_have_their_xrc_fields() {
        let folder = Folder::new().unwrap();
        let capture = folder.join("wire.pcap");
        let [near, far] = in_process()
            .map(|options| Node::open(SoftOptions { capture: Some(capture.clone()), ..options }, 4096));
        let [ini, tgt] = talk(&near, &far).map(|qp| qp.number().get());
        let srq = far.srq.number().unwrap().get();
        // Until its device is dropped, a node may still be appending a record, which a reader would see in
        // part.
        drop((near, far));
        let payloads = payloads(&capture);

        let req = cm_message(&payloads, 0x10);
        assert_eq!(number(&req[32..35]), ini, "the INI's number is in the QPN field");
        assert_eq!(req[43] >> 1 & 3, 3, "transport service type: see the extended one");
        assert_eq!(req[51] & 7, 1, "extended transport type: XRC");
        // Fields that an INI does not use (contract rocev2 10.2).
        assert_eq!((req[35], req[51] >> 3 & 1), (0, 0), "responder resources, SRQ");
        assert_eq!((req[47] & 7, req[50] & 7), (0, 0), "retry count, RNR retry count");

        let rep = cm_message(&payloads, 0x13);
        assert_eq!(number(&rep[16..19]), tgt, "the TGT's number is in the EECN field");
        assert_eq!(number(&rep[12..15]), 0, "the QPN field is empty");
        assert_eq!(rep[27] >> 4 & 1, 1, "the SRQ bit");
        assert_eq!((rep[25], rep[26] & 1), (0, 0), "initiator depth, flow control");

        // XRC SEND only with immediate: BTH, XRCETH, immediate data, payload, ICRC.
        let send = payloads.iter().find(|payload| payload[0] == 0xa5).expect("the SEND is in the capture");
        assert_eq!(number(&send[5..8]), tgt, "destination QP");
        assert_eq!(number(&send[BTH..BTH + 4]), srq, "XRCETH");
        assert_eq!(number(&send[BTH + 4..BTH + 8]), 0xa1b2_c3d4, "immediate data");
        assert_eq!(&send[BTH + 8..BTH + 20], b"twelve bytes");
        assert_eq!(send.len(), BTH + 8 + 12 + 4);
        // Its acknowledgement: XRC, without XRCETH, to the INI, same PSN.
        let ack = payloads.iter().find(|payload| payload[0] == 0xb1).expect("the ACK is in the capture");
        assert_eq!(number(&ack[5..8]), ini, "destination QP");
        assert_eq!((&ack[9..12], ack.len()), (&send[9..12], BTH + 4 + 4));
    }
}
