//! Tests of the readers with constructed files, for each format, each link layer, and malformed files.

use super::*;

/// Returns an IPv4 datagram 10.0.0.1:50000 -> 10.0.0.2:4791 with `options` words of IP options.
fn ipv4(options: u8, flags: u16, payload: &[u8]) -> Vec<u8> {
    let header = 20 + usize::from(options) * 4;
    let total = u16::try_from(header + 8 + payload.len()).unwrap();
    let mut packet = vec![0x45 + options, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0x12, 0x34]);
    packet.extend(flags.to_be_bytes());
    packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.resize(header, 1);
    packet.extend(udp(payload));
    packet
}

fn ipv6(payload: &[u8]) -> Vec<u8> {
    let udp = udp(payload);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(udp.len()).unwrap().to_be_bytes());
    packet.extend([17, 64]);
    packet.extend([0; 15]);
    packet.push(1);
    packet.extend([0; 15]);
    packet.push(2);
    packet.extend(udp);
    packet
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut udp = Vec::new();
    for word in [50_000, 4791, u16::try_from(8 + payload.len()).unwrap(), 0] {
        udp.extend(word.to_be_bytes());
    }
    udp.extend(payload);
    udp
}

fn frame(link: LinkType, bytes: &[u8]) -> Frame<'_> {
    Frame { number: 1, time_ns: 0, link, original_length: 0, bytes }
}

fn payload_of(link: LinkType, prefix: &[u8], packet: &[u8]) -> Result<Vec<u8>, Skip> {
    let bytes = [prefix, packet].concat();
    let whole = Datagram::from_frame(&frame(link, &bytes)).map(|datagram| datagram.payload.to_vec());
    // A cut at any byte is detected, and nothing panics.
    for length in 0..bytes.len() {
        assert!(Datagram::from_frame(&frame(link, &bytes[..length])).is_err());
    }
    whole
}

#[test]
fn ip_packet_is_found_under_every_link_layer() {
    let (v4, v6) = (ipv4(0, 0x4000, b"load"), ipv6(b"load"));
    let mac = [0; 12];
    let tagged = |tags: &[u8]| [&mac[..], tags].concat();
    let sll = [&[0; 14][..], &[8, 0]].concat();
    let sll2 = [&[0x86, 0xdd][..], &[0; 18]].concat();
    let expected = Ok(b"load".to_vec());
    assert_eq!(payload_of(LinkType::ETHERNET, &tagged(&[8, 0]), &v4), expected);
    assert_eq!(payload_of(LinkType::ETHERNET, &tagged(&[0x86, 0xdd]), &v6), expected);
    assert_eq!(payload_of(LinkType::ETHERNET, &tagged(&[0x81, 0, 0, 5, 8, 0]), &v4), expected);
    let twice = tagged(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]);
    assert_eq!(payload_of(LinkType::ETHERNET, &twice, &v4), expected);
    let thrice = tagged(&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7, 8, 0]);
    assert_eq!(payload_of(LinkType::ETHERNET, &thrice, &v4), Err(Skip::NotIp));
    for link in [LinkType::RAW, LinkType::RAW_OLD, LinkType::IPV4] {
        assert_eq!(payload_of(link, &[], &v4), expected);
    }
    assert_eq!(payload_of(LinkType::IPV6, &[], &v6), expected);
    assert_eq!(payload_of(LinkType::LINUX_SLL, &sll, &v4), expected);
    assert_eq!(payload_of(LinkType::LINUX_SLL2, &sll2, &v6), expected);
    assert_eq!(payload_of(LinkType::NULL, &[2, 0, 0, 0], &v4), expected);
    assert_eq!(payload_of(LinkType::LOOP, &[0, 0, 0, 30], &v6), expected);
    assert_eq!(payload_of(LinkType(147), &[], &v4), Err(Skip::UnknownLink));
    assert_eq!(payload_of(LinkType::ETHERNET, &tagged(&[8, 6]), &v4), Err(Skip::NotIp));
}

#[test]
fn each_unusable_ip_packet_has_its_own_reason() {
    assert_eq!(payload_of(LinkType::RAW, &[], &ipv4(3, 0, b"load")), Ok(b"load".to_vec()));
    assert_eq!(payload_of(LinkType::RAW, &[], &ipv4(0, 0x2000, b"load")), Err(Skip::Fragment));
    assert_eq!(payload_of(LinkType::RAW, &[], &ipv4(0, 0x0001, b"load")), Err(Skip::Fragment));
    let mut tcp = ipv4(0, 0, b"load");
    tcp[9] = 6;
    assert_eq!(payload_of(LinkType::RAW, &[], &tcp), Err(Skip::NotUdp));
    let mut fragment = ipv6(b"load");
    fragment[6] = 44;
    assert_eq!(payload_of(LinkType::RAW, &[], &fragment), Err(Skip::Fragment));
    let mut long = ipv4(0, 0, b"load");
    long[25] = 200;
    assert_eq!(payload_of(LinkType::RAW, &[], &long), Err(Skip::Malformed));
    let mut short = ipv4(0, 0, b"load");
    short[0] = 0x44;
    assert_eq!(payload_of(LinkType::RAW, &[], &short), Err(Skip::Malformed));
    // The padding that Ethernet adds after the datagram does not belong to it.
    let mut padded = ipv4(0, 0x4000, b"load");
    padded.extend([0; 20]);
    let found = Datagram::from_frame(&frame(LinkType::RAW, &padded)).expect("UDP");
    assert_eq!(found.payload, b"load");
    assert_eq!(found.headers.v4_identification, 0x1234);
    assert!(found.headers.v4_dont_fragment && found.is_on_roce_port());
}

/// Returns the words' bytes in one byte order.
fn words(big: bool, words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() }).collect()
}

/// Time, link type and bytes of a frame.
type Kept = (u64, LinkType, Vec<u8>);

/// Returns all frames up to the end or the first error, and the error.
fn frames(file: &[u8]) -> (Vec<Kept>, Option<PcapError>) {
    let mut reader = match PcapReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut frames = Vec::new();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => frames.push((frame.time_ns, frame.link, frame.bytes.to_vec())),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

fn version(big: bool) -> [u8; 4] {
    if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] }
}

#[test]
fn classic_files_of_each_order_and_unit_are_read() {
    for (big, magic, nanoseconds) in [
        (false, 0xa1b2_c3d4, 5000),
        (true, 0xa1b2_c3d4, 5000),
        (false, 0xa1b2_3c4d, 5),
        (true, 0xa1b2_3c4d, 5),
    ] {
        let mut file = words(big, &[magic]);
        file.extend(version(big));
        file.extend(words(big, &[0, 0, 65_535, 101]));
        file.extend(words(big, &[2, 5, 4, 60]));
        file.extend(b"load");
        let expected = vec![(2_000_000_000 + nanoseconds, LinkType::RAW, b"load".to_vec())];
        let (found, error) = frames(&file);
        assert_eq!(found, expected);
        assert!(error.is_none());
        for length in 0..file.len() {
            let (found, error) = frames(&file[..length]);
            assert!(found.is_empty());
            assert_eq!(error.is_none(), length == 24, "cut at {length}");
        }
    }
}

fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let body = [body, &vec![0; body.len().next_multiple_of(4) - body.len()][..]].concat();
    let length = u32::try_from(body.len() + 12).unwrap();
    [words(big, &[kind, length]), body, words(big, &[length])].concat()
}

fn section(big: bool) -> Vec<u8> {
    block(big, 0x0a0d_0d0a, &[words(big, &[0x1a2b_3c4d]), words(big, &[0; 3])].concat())
}

fn interface(big: bool, link: u16, options: &[u8]) -> Vec<u8> {
    let link = if big { link.to_be_bytes() } else { link.to_le_bytes() };
    block(big, 1, &[&link[..], &[0, 0], &words(big, &[0]), options].concat())
}

#[test]
fn pcapng_files_of_both_orders_are_read() {
    for big in [false, true] {
        let nine: [u8; 2] = if big { [0, 9] } else { [9, 0] };
        let one: [u8; 2] = if big { [0, 1] } else { [1, 0] };
        let nanoseconds = [&nine[..], &one, &[9, 0, 0, 0]].concat();
        let mut file = section(big);
        file.extend(interface(big, 1, &[]));
        file.extend(interface(big, 101, &nanoseconds));
        file.extend(block(big, 4, b"names that we skip over"));
        let enhanced = |interface, ticks, bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).unwrap();
            block(big, 6, &[&words(big, &[interface, 0, ticks, length, length])[..], bytes].concat())
        };
        file.extend(enhanced(0, 7, b"first"));
        file.extend(enhanced(1, 7, b"second"));
        file.extend(block(big, 3, &[&words(big, &[5])[..], b"third"].concat()));
        let whole = file.len();
        file.extend(section(!big)); // a new byte order; interfaces count from 0 again
        file.extend(interface(!big, 113, &[]));
        let (found, error) = frames(&file);
        assert!(error.is_none(), "{error:?}");
        let expected = vec![
            (7000, LinkType::ETHERNET, b"first".to_vec()),
            (7, LinkType::RAW, b"second".to_vec()),
            (0, LinkType::ETHERNET, b"third".to_vec()),
        ];
        assert_eq!(found, expected);
        file.extend(enhanced(0, 7, b"other order"));
        assert!(frames(&file).1.is_some());
        for length in 0..whole {
            assert!(frames(&file[..length]).0.len() < 3);
        }
        let lost = [section(big), enhanced(0, 7, b"without interface")].concat();
        assert!(matches!(frames(&lost), (none, Some(PcapError::Malformed { .. })) if none.is_empty()));
    }
}

#[test]
fn malformed_capture_files_are_refused() {
    let mut huge = words(false, &[0xa1b2_c3d4]);
    huge.extend(version(false));
    huge.extend(words(false, &[0, 0, 65_535, 1, 0, 0, u32::MAX, u32::MAX]));
    assert!(matches!(frames(&huge).1, Some(PcapError::TooLong { .. })));
    assert!(matches!(frames(b"").1, Some(PcapError::Empty)));
    assert!(matches!(frames(b"GIF89a").1, Some(PcapError::NotACapture(_))));
    let mut wrong = section(false);
    wrong.extend(words(false, &[4, 3]));
    assert!(matches!(frames(&wrong).1, Some(PcapError::Malformed { .. })));
    let mut contradiction = section(false);
    contradiction.extend(words(false, &[4, 12, 16]));
    assert!(matches!(frames(&contradiction).1, Some(PcapError::Malformed { .. })));
}

#[test]
fn roce_between_other_ports_is_recognised() {
    use crate::wire::{IpUdp, icrc};
    let address = |text: &str| text.parse().expect("an address with its port");
    let headers = IpUdp::new(address("127.0.0.2:50000"), address("127.0.0.3:50001"));
    let mut good = vec![0xb1, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0x1f, 0, 0, 1];
    icrc::append(&headers, &mut good);
    let mut bad = good.clone();
    bad[12] ^= 1;
    let mut filter = RoceFilter::default();
    assert!(!filter.takes(&Datagram { headers, payload: &bad }), "nothing identifies it as RoCE yet");
    assert!(filter.takes(&Datagram { headers, payload: &good }));
    assert!(filter.takes(&Datagram { headers, payload: &bad }), "its endpoints are known now");
    let other = IpUdp::new(address("127.0.0.2:53"), address("127.0.0.3:50001"));
    assert!(!filter.takes(&Datagram { headers: other, payload: &bad }));
}
