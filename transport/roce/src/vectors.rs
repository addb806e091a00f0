//! Checks that every captured packet of other implementations parses, is emitted unchanged, and has a valid ICRC.

use crate::pcap::{Datagram, PcapReader};
use crate::wire::cm::CmMessage;
use crate::wire::{Mad, Packet, icrc};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Number of RoCE packets in each file, counted with another tool.
const FILES: [(&str, usize); 17] = [
    ("rc/atomic_cs", 10),
    ("rc/atomic_fa", 10),
    ("rc/rc_pingpong", 50),
    ("rc/rdma_cm", 11),
    ("rc/read_lat", 15),
    ("rc/rping", 41),
    ("rc/srq_pingpong", 16),
    ("rc/ud_pingpong", 6),
    ("rc/write_lat", 30),
    ("xrc/xatomic_cs", 10),
    ("xrc/xatomic_fa", 10),
    ("xrc/xrdma_cm", 8),
    ("xrc/xread_lat", 15),
    ("xrc/xsrq_events", 13),
    ("xrc/xsrq_pingpong", 34),
    ("xrc/xsrq_small", 13),
    ("xrc/xwrite_lat", 30),
];

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/vectors", &format!("{name}.pcap")].iter().collect()
}

/// Calls `see` for each RoCE datagram of a file.
fn each_datagram(name: &str, mut see: impl FnMut(u64, &Datagram<'_>)) -> usize {
    let file = fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut reader = PcapReader::new(&*file).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut count = 0;
    while let Some(frame) = reader.next_frame().unwrap_or_else(|error| panic!("{name}: {error}")) {
        let Ok(datagram) = Datagram::from_frame(&frame) else { continue };
        if datagram.is_on_roce_port() {
            see(frame.number, &datagram);
            count += 1;
        }
    }
    count
}

/// Returns the MADs of a file, in order.
pub(crate) fn mads(name: &str) -> Vec<Mad> {
    let mut mads = Vec::new();
    each_datagram(name, |_, datagram| {
        let (packet, _icrc) = datagram.payload.split_last_chunk::<4>().expect("an ICRC");
        mads.extend(Packet::parse(packet).ok().and_then(|packet| Mad::from_packet(&packet)));
    });
    mads
}

#[test]
fn each_captured_packet_re_emits_equal_with_valid_icrc() {
    for (name, expected) in FILES {
        let count = each_datagram(name, |number, datagram| {
            let (packet, crc) = datagram.payload.split_last_chunk::<4>().expect("an ICRC");
            let parsed =
                Packet::parse(packet).unwrap_or_else(|error| panic!("{name} frame {number}: {error}"));
            let mut emitted = Vec::new();
            parsed.emit(&mut emitted);
            assert_eq!(emitted, packet, "{name} frame {number}: {parsed:?}");
            assert_eq!(emitted.len(), parsed.emitted_len());
            assert!(icrc::check(&datagram.headers, datagram.payload), "{name} frame {number}");
            icrc::append(&datagram.headers, &mut emitted);
            assert!(emitted.ends_with(crc));
            if let Some(mad) = Mad::from_packet(&parsed) {
                let message = CmMessage::parse(&mad);
                assert!(mad.header.is_cm() && !matches!(message, CmMessage::Other(..)), "{message:?}");
                assert_eq!(message.data(), mad.data, "{name} frame {number}: a CM message");
                assert_eq!(mad.to_bytes(), *parsed.payload, "{name} frame {number}: a MAD");
            }
        });
        assert_eq!(count, expected, "RoCE packets in {name}");
    }
}

#[test]
fn identification_of_each_packet_is_found() {
    for (name, expected) in FILES {
        let mut found = 0;
        each_datagram(name, |number, datagram| {
            let solved = icrc::solve_identification(&datagram.headers, datagram.payload);
            assert_eq!(solved, Some(datagram.headers.v4_identification), "{name} frame {number}");
            found += usize::from(solved != Some(0));
        });
        // The kernel increments its identifications from a random start.
        assert!(found >= expected - 1, "{name}: {found} of {expected}");
    }
}

#[test]
fn files_contain_each_of_these_operations() {
    let mut seen = BTreeMap::new();
    for (name, _) in FILES {
        each_datagram(name, |_, datagram| {
            *seen.entry(datagram.payload[0]).or_insert(0_usize) += 1;
        });
    }
    // READ_RESP_MIDDLE and the opcodes with immediate data or invalidation do not occur in the files.
    let rc = [0x00, 0x01, 0x02, 0x04, 0x06, 0x08, 0x0a, 0x0c, 0x0d, 0x0f, 0x10, 0x11, 0x12, 0x13, 0x14];
    let xrc = [0xa0, 0xa1, 0xa2, 0xa4, 0xa6, 0xa8, 0xac, 0xad, 0xaf, 0xb1, 0xb2, 0xb3, 0xb4];
    for opcode in rc.into_iter().chain(xrc).chain([0x64]) {
        assert!(seen.contains_key(&opcode), "{opcode:#04x} is in no file; seen: {seen:x?}");
    }
}
