//! Writes capture files that tshark and `trunkctl` read.
//!
//! The format is classic pcap with nanoseconds and Ethernet frames. The device handles datagrams instead of frames, so the
//! writer reconstructs the Ethernet, IP and UDP headers, with MAC addresses derived from the IP addresses, TTL 64 and valid
//! checksums. All fields that an ICRC covers are as on the wire.

use crate::wire::IpUdp;
use std::io::{self, Write};

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const TTL: u8 = 64;
const PROTOCOL_UDP: u8 = 17;
/// Snap length in the file header, which exceeds the longest packet.
const SNAP_LENGTH: u32 = 262_144;

/// Writes datagrams. Each record is one call of the output's `write_all`, so with an unbuffered file, a process that is
/// killed leaves whole records. Several threads need a mutex around the writer.
#[derive(Debug)]
pub struct PcapWriter<W> {
    output: W,
    record: Vec<u8>,
    /// True if a write failed. The file may then end in a partial record, after which further records would be unreadable.
    torn: bool,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn new(mut output: W) -> io::Result<Self> {
        let mut header = Vec::with_capacity(FILE_HEADER);
        header.extend_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
        header.extend_from_slice(&[2, 0, 4, 0]); // version 2.4
        header.extend_from_slice(&[0; 8]); // time zone and accuracy, unused
        header.extend_from_slice(&SNAP_LENGTH.to_le_bytes());
        header.extend_from_slice(&1_u32.to_le_bytes()); // Ethernet
        output.write_all(&header)?;
        Ok(Self { output, record: Vec::new(), torn: false })
    }

    /// Continues an output that already has a file header, such as a file opened for appending.
    pub const fn appending(output: W) -> Self {
        Self { output, record: Vec::new(), torn: false }
    }

    /// Writes one datagram. `payload` is the UDP payload with its ICRC, and `time_ns` is the time in nanoseconds since 1970.
    ///
    /// # Errors
    /// Errors of the output. A record may then be incomplete, so every later call fails. `InvalidInput` if
    /// `payload` is longer than any UDP datagram.
    pub fn write(&mut self, time_ns: u64, headers: &IpUdp, payload: &[u8]) -> io::Result<()> {
        self.write_with_ecn(time_ns, headers, 0, payload)
    }

    /// Like [`Self::write`], with the two ECN bits of the IP header, which no ICRC covers.
    ///
    /// # Errors
    /// Same as [`Self::write`].
    pub fn write_with_ecn(
        &mut self,
        time_ns: u64,
        headers: &IpUdp,
        ecn: u8,
        payload: &[u8],
    ) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "longer than any UDP datagram");
        if self.torn {
            return Err(io::Error::other(
                "an earlier record could not be written completely, so the capture has ended; start a new file",
            ));
        }
        let udp_length = u16::try_from(payload.len() + UDP_HEADER).map_err(too_long)?;
        let record = &mut self.record;
        record.clear();
        record.resize(RECORD_HEADER, 0);
        if let Some((source, destination)) = headers.v4() {
            let total = u16::try_from(payload.len() + UDP_HEADER + IPV4_HEADER).map_err(too_long)?;
            put_ethernet(record, &source.octets(), &destination.octets(), 0x0800);
            put_ipv4(record, headers, ecn, [source.octets(), destination.octets()], total);
            put_udp(record, headers, udp_length, 0); // IPv4 allows a checksum of 0, and rxe sends 0.
        } else {
            let (source, destination) = headers.v6();
            let (source, destination) = (source.octets(), destination.octets());
            put_ethernet(record, &source, &destination, 0x86dd);
            record.extend_from_slice(&[0x60, (ecn & 3) << 4, 0, 0]);
            record.extend_from_slice(&udp_length.to_be_bytes());
            record.extend_from_slice(&[PROTOCOL_UDP, TTL]);
            record.extend_from_slice(&source);
            record.extend_from_slice(&destination);
            let ports = [headers.source.port(), headers.destination.port()];
            let checksum = udp6_checksum(&source, &destination, ports, udp_length, payload);
            put_udp(record, headers, udp_length, checksum);
        }
        record.extend_from_slice(payload);
        put_record_header(record, time_ns);
        let outcome = self.output.write_all(record);
        self.torn = outcome.is_err();
        outcome
    }

    /// Flushes the output. Call this at the end if the output is buffered.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Returns the output.
    pub const fn get_ref(&self) -> &W {
        &self.output
    }

    /// Returns the output without flushing it.
    pub fn into_inner(self) -> W {
        self.output
    }
}

/// Writes an Ethernet header with locally administered MAC addresses. They consist of `02` and the last five bytes of an
/// IPv6 address, or of `02:00` and an IPv4 address.
fn put_ethernet(record: &mut Vec<u8>, source: &[u8], destination: &[u8], ethertype: u16) {
    for address in [destination, source] {
        let mut mac = [0x02, 0, 0, 0, 0, 0];
        let shown = address.len().min(5);
        mac[6 - shown..].copy_from_slice(&address[address.len() - shown..]);
        record.extend_from_slice(&mac);
    }
    record.extend_from_slice(&ethertype.to_be_bytes());
}

fn put_ipv4(record: &mut Vec<u8>, headers: &IpUdp, ecn: u8, addresses: [[u8; 4]; 2], total: u16) {
    let start = record.len();
    let flags: u16 = if headers.v4_dont_fragment { 0x4000 } else { 0 };
    record.extend_from_slice(&[0x45, ecn & 3]);
    record.extend_from_slice(&total.to_be_bytes());
    record.extend_from_slice(&headers.v4_identification.to_be_bytes());
    record.extend_from_slice(&flags.to_be_bytes());
    record.extend_from_slice(&[TTL, PROTOCOL_UDP, 0, 0]);
    record.extend_from_slice(&addresses.concat());
    let checksum = !fold(sum(&record[start..]));
    record[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
}

fn put_udp(record: &mut Vec<u8>, headers: &IpUdp, length: u16, checksum: u16) {
    for word in [headers.source.port(), headers.destination.port(), length, checksum] {
        record.extend_from_slice(&word.to_be_bytes());
    }
}

/// Fills in the record header at the start of `record`, before the frame.
fn put_record_header(record: &mut [u8], time_ns: u64) {
    const NS: u64 = 1_000_000_000;
    let seconds = u32::try_from(time_ns / NS).unwrap_or(u32::MAX);
    let fraction = u32::try_from(time_ns % NS).unwrap_or(0);
    let length = u32::try_from(record.len() - RECORD_HEADER).unwrap_or(SNAP_LENGTH);
    for (index, word) in [seconds, fraction, length, length].into_iter().enumerate() {
        record[index * 4..index * 4 + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Returns the UDP checksum, which IPv6 requires. A computed 0 is sent as all ones.
fn udp6_checksum(
    source: &[u8; 16],
    destination: &[u8; 16],
    ports: [u16; 2],
    length: u16,
    payload: &[u8],
) -> u16 {
    // The length counts twice, in the pseudo header and in the UDP header.
    let words = [ports[0], ports[1], length, length, u16::from(PROTOCOL_UDP)];
    let header: u32 = words.into_iter().map(u32::from).sum();
    let all = header + sum(source) + sum(destination) + sum(payload);
    match !fold(all) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Returns the sum of 16-bit words. 64 KiB of words cannot overflow it.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(high) << 8,
        _ => 0,
    };
    bytes.chunks(2).map(word).sum()
}

/// Adds the carries to the low 16 bits.
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    u16::try_from(twice).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{Datagram, LinkType, PcapReader};
    use super::*;

    const ETHERNET_HEADER: usize = 14;

    /// Stores the bytes of each call.
    #[derive(Default)]
    struct Calls(Vec<Vec<u8>>);

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn headers(source: &str, destination: &str) -> IpUdp {
        let address = |text: &str| text.parse().expect("an address with its port");
        IpUdp::new(address(source), address(destination))
    }

    #[test]
    fn pcap_writer_and_reader_round_trip() {
        let v4 = IpUdp { v4_identification: 0x1234, ..headers("10.0.0.1:50000", "10.0.0.2:4791") };
        let v6 = headers("[fe80::1]:50001", "[2001:db8::2]:4791");
        let mut writer = PcapWriter::new(Calls::default()).expect("memory");
        writer.write(1_700_000_000_123_456_789, &v4, b"first").expect("memory");
        writer.write(5, &v6, b"").expect("memory");
        assert!(writer.write(6, &v4, &vec![0; 65_536]).is_err());
        let calls = writer.into_inner().0;
        assert_eq!(calls.len(), 3, "the header and each record are one call each");
        let file = calls.concat();
        let mut reader = PcapReader::new(&*file).expect("a header");
        let frame = reader.next_frame().expect("whole").expect("a record");
        assert_eq!((frame.number, frame.time_ns), (1, 1_700_000_000_123_456_789));
        assert_eq!(frame.link, LinkType::ETHERNET);
        let datagram = Datagram::from_frame(&frame).expect("UDP");
        assert_eq!(datagram, Datagram { headers: v4, payload: b"first" });
        let frame = reader.next_frame().expect("whole").expect("a record");
        let datagram = Datagram::from_frame(&frame).expect("UDP");
        assert_eq!(datagram, Datagram { headers: v6, payload: b"" });
        assert!(reader.next_frame().expect("whole").is_none());
    }

    #[test]
    fn incomplete_record_ends_writing() {
        let headers = headers("10.0.0.1:50000", "10.0.0.2:4791");
        let mut room = [0_u8; 120];
        let mut writer = PcapWriter::new(&mut room[..]).expect("room for the header");
        writer.write(0, &headers, b"fits").expect("room for one record");
        assert_eq!(writer.write(0, &headers, b"does not fit").unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert_eq!(writer.write(0, &headers, b"").unwrap_err().kind(), io::ErrorKind::Other);
        let mut reader = PcapReader::new(&room[..]).expect("a header");
        assert!(reader.next_frame().is_ok_and(|frame| frame.is_some()));
        assert!(reader.next_frame().is_err(), "the incomplete record is detected");
    }

    #[test]
    fn written_packets_have_valid_checksums_and_ecn_bits() {
        let v4 = headers("10.0.0.1:50000", "10.0.0.2:4791");
        let v6 = headers("[fe80::1]:50001", "[fe80::2]:4791");
        let mut writer = PcapWriter::new(Calls::default()).expect("memory");
        writer.write_with_ecn(0, &v4, 3, b"odd").expect("memory");
        writer.write_with_ecn(0, &v6, 2, b"odd").expect("memory");
        let calls = writer.into_inner().0;
        let ip = &calls[1][RECORD_HEADER + ETHERNET_HEADER..];
        assert_eq!(fold(sum(&ip[..IPV4_HEADER])), 0xffff);
        assert_eq!(ip[..2], [0x45, 3]);
        // The pseudo header consists of the addresses, the length and the protocol. The rest is UDP.
        let ip = &calls[2][RECORD_HEADER + ETHERNET_HEADER..];
        let pseudo = sum(&ip[8..40]) + u32::from(PROTOCOL_UDP) + sum(&ip[4..6]);
        assert_eq!(fold(pseudo + sum(&ip[40..])), 0xffff);
        assert_eq!(ip[..2], [0x60, 0x20]);
    }
}
