//! XRC on the wire: contract J8 and rocev2 10, checked by raw offsets in a capture, so that our own parsers
//! cannot hide their mistakes.

#[cfg(test)]
mod tests {
    use crate::common::in_process;
    use crate::common::node::{Node, join, post_to};
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;
    use trunkline_roce::pcap::{Datagram, PcapReader};
    use trunkline_roce::wire::icrc;
    use trunkline_softrdma::device::SoftOptions;
    use trunkline_testkit::Folder;
    use trunkline_verbs::{QueuePair, SendData, SendOperation};

    const BTH: usize = 12;
    /// BTH, DETH and the MAD header.
    const CM_DATA: usize = BTH + 8 + 24;
    const MAD_ATTRIBUTE: usize = BTH + 8 + 16;

    fn number(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
    }

    /// Returns every payload in the capture. Each ICRC must be correct.
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

    /// Connects through the CM, and sends one message with immediate data.
    fn talk(near: &Node, far: &Node) -> [Arc<dyn QueuePair>; 2] {
        far.receive(1, 0, 4096);
        let joined = join(near, far);
        let message = SendData::Inline(b"twelve bytes");
        post_to(
            &*joined.ini,
            SendOperation::SendWithImmediate(0xa1b2_c3d4),
            message,
            far.srq.number().unwrap(),
        );
        assert!(near.completion().status.is_success());
        let got = far.completion();
        assert_eq!((got.wr_id, got.byte_length, got.immediate), (1, 12, 0xa1b2_c3d4));
        [joined.ini, joined.tgt]
    }

    #[test]
    fn j8_request_reply_and_packets_have_their_xrc_fields() {
        let folder = Folder::new().unwrap();
        let capture = folder.join("wire.pcap");
        let [near, far] = in_process()
            .map(|options| Node::open(SoftOptions { capture: Some(capture.clone()), ..options }, 4096));
        let [ini, tgt] = talk(&near, &far).map(|qp| qp.number().get());
        let srq = far.srq.number().unwrap().get();
        // Until its device is dropped, a node may still be appending a record, of which a reader would see a
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
