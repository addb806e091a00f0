//! A whole packet as a plain struct that can be parsed and emitted.

use super::layout::{BTH_LENGTH, Headers};
use super::view::PacketView;
use super::{Aeth, AtomicEth, Bth, Deth, Opcode, Operation, Reth, Syndrome, WireError};
use trunkline_verbs::{IoAddress, PKEY_DEFAULT, Psn, QpNumber, Rkey, SrqNumber};

/// A parsed packet, with the headers that its opcode requires, and the payload without pad. Other headers are `None`.
/// Reserved bits that a sender may have set are kept in the headers' `reserved` fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header, in every packet.
    pub bth: Bth,
    /// XRC extended transport header, in XRC requests. Contains the reserved first byte and the target SRQ.
    pub xrceth: Option<(u8, SrqNumber)>,
    /// Datagram extended transport header, in UD packets.
    pub deth: Option<Deth>,
    /// RDMA extended transport header, in READ requests and in the FIRST or ONLY of a WRITE.
    pub reth: Option<Reth>,
    /// Atomic extended transport header, in atomic requests.
    pub atomic: Option<AtomicEth>,
    /// ACK extended transport header, in responses except READ_RESP_MIDDLE.
    pub aeth: Option<Aeth>,
    /// The value before the operation, in atomic acknowledgements.
    pub atomic_ack: Option<u64>,
    /// Immediate data, in opcodes with `_IMM`.
    pub immediate: Option<u32>,
    /// The key to invalidate, in SENDs with invalidate.
    pub invalidate: Option<Rkey>,
    /// The payload without pad.
    pub payload: &'a [u8],
}

impl Bth {
    /// Creates a header with the values that this device sends, which are the default P_Key, the migrated path, and reserved
    /// bits of 0.
    #[must_use]
    pub const fn new(opcode: Opcode, destination: QpNumber, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            version: 0,
            pkey: PKEY_DEFAULT,
            congestion: 0,
            destination,
            ack_request: false,
            reserved: 0,
            psn,
        }
    }
}

impl<'a> Packet<'a> {
    /// Creates a packet without extension headers, with the pad count for its payload. The caller sets the headers that the
    /// opcode requires.
    #[must_use]
    pub fn new(opcode: Opcode, destination: QpNumber, psn: Psn, payload: &'a [u8]) -> Self {
        Self::plain(Bth { pad: pad_for(payload.len()), ..Bth::new(opcode, destination, psn) }, payload)
    }

    #[inline]
    const fn plain(bth: Bth, payload: &'a [u8]) -> Self {
        Self {
            bth,
            xrceth: None,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
            payload,
        }
    }

    /// Parses a UDP payload without its ICRC. The returned packet satisfies all rules on lengths that do not depend on the
    /// path MTU.
    ///
    /// # Errors
    /// The first rule that the bytes violate.
    pub fn parse(udp_payload_without_icrc: &'a [u8]) -> Result<Self, WireError> {
        Self::of(PacketView::new(udp_payload_without_icrc)?)
    }

    /// Parses a packet that did not arrive over a network. Its payload may be the joined payload of several successive
    /// packets of a message, with the header of the first packet.
    ///
    /// # Errors
    /// The first rule that the bytes violate.
    pub fn parse_joined(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::of(PacketView::joined(bytes)?)
    }

    // Always inlined, and returns a `Result` although it cannot fail. A packet is large, so this way it is written once,
    // directly to its destination.
    #[inline(always)]
    #[allow(clippy::unnecessary_wraps, reason = "see above")]
    fn of(view: PacketView<'a>) -> Result<Self, WireError> {
        let PacketView { bth, headers, mut fields, payload } = view;
        // In the order on the wire.
        let xrceth = headers.contains(Headers::XRCETH).then(|| {
            let (reserved, srq) = fields.topped();
            (reserved, SrqNumber::new(srq))
        });
        // Most packets have no other extension header.
        if Headers::XRCETH.contains(headers) {
            return Ok(Self { xrceth, ..Self::plain(bth, payload) });
        }
        Ok(Self {
            bth,
            xrceth,
            deth: headers.contains(Headers::DETH).then(|| {
                let qkey = fields.u32();
                let (reserved, source) = fields.topped();
                Deth { qkey, reserved, source: QpNumber::new(source) }
            }),
            reth: headers.contains(Headers::RETH).then(|| Reth {
                address: IoAddress(fields.u64()),
                rkey: Rkey(fields.u32()),
                length: fields.u32(),
            }),
            atomic: headers.contains(Headers::ATOMIC).then(|| AtomicEth {
                address: IoAddress(fields.u64()),
                rkey: Rkey(fields.u32()),
                swap_or_add: fields.u64(),
                compare: fields.u64(),
            }),
            aeth: headers.contains(Headers::AETH).then(|| {
                let (syndrome, msn) = fields.topped();
                Aeth { syndrome, msn }
            }),
            atomic_ack: headers.contains(Headers::ATOMIC_ACK).then(|| fields.u64()),
            immediate: headers.contains(Headers::IMMEDIATE).then(|| fields.u32()),
            invalidate: headers.contains(Headers::INVALIDATE).then(|| Rkey(fields.u32())),
            payload,
        })
    }

    /// Returns the headers that are set.
    #[must_use]
    pub fn headers(&self) -> Headers {
        let mut headers = Headers::empty();
        headers.set(Headers::XRCETH, self.xrceth.is_some());
        headers.set(Headers::DETH, self.deth.is_some());
        headers.set(Headers::RETH, self.reth.is_some());
        headers.set(Headers::ATOMIC, self.atomic.is_some());
        headers.set(Headers::AETH, self.aeth.is_some());
        headers.set(Headers::ATOMIC_ACK, self.atomic_ack.is_some());
        headers.set(Headers::IMMEDIATE, self.immediate.is_some());
        headers.set(Headers::INVALIDATE, self.invalidate.is_some());
        headers
    }

    /// Returns the number of bytes that [`Self::emit`] appends for headers, payload and pad, without the ICRC.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        BTH_LENGTH + self.headers().length() + self.payload.len() + usize::from(self.bth.pad)
    }

    /// Appends headers, payload and pad. The caller appends the ICRC ([`super::icrc::append`]).
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.reserve(self.emitted_len() + super::ICRC_LENGTH);
        self.emit_headers(out);
        out.extend_from_slice(self.payload);
        emit_pad(self.bth.pad, out);
    }

    /// Appends only the headers, for senders that gather the payload from registered memory. Such senders set `bth.pad` to
    /// [`pad_for`] of the payload's length, and append the payload and [`emit_pad`].
    // Always inlined, because a caller sets few of the headers, and the checks for the others disappear.
    #[inline(always)]
    pub fn emit_headers(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bth.to_bytes());
        if let Some((reserved, srq)) = self.xrceth {
            out.extend_from_slice(&with_top(reserved, srq.get()));
        }
        if let Some(deth) = self.deth {
            out.extend_from_slice(&deth.qkey.to_be_bytes());
            out.extend_from_slice(&with_top(deth.reserved, deth.source.get()));
        }
        if let Some(reth) = self.reth {
            out.extend_from_slice(&reth.address.0.to_be_bytes());
            out.extend_from_slice(&reth.rkey.0.to_be_bytes());
            out.extend_from_slice(&reth.length.to_be_bytes());
        }
        if let Some(atomic) = self.atomic {
            out.extend_from_slice(&atomic.address.0.to_be_bytes());
            out.extend_from_slice(&atomic.rkey.0.to_be_bytes());
            out.extend_from_slice(&atomic.swap_or_add.to_be_bytes());
            out.extend_from_slice(&atomic.compare.to_be_bytes());
        }
        if let Some(aeth) = self.aeth {
            out.extend_from_slice(&with_top(aeth.syndrome, aeth.msn));
        }
        if let Some(original) = self.atomic_ack {
            out.extend_from_slice(&original.to_be_bytes());
        }
        if let Some(immediate) = self.immediate {
            out.extend_from_slice(&immediate.to_be_bytes());
        }
        if let Some(rkey) = self.invalidate {
            out.extend_from_slice(&rkey.0.to_be_bytes());
        }
    }
}

impl Bth {
    /// Appends the header's twelve bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    fn to_bytes(self) -> [u8; BTH_LENGTH] {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.migrated) << 6
            | (self.pad & 3) << 4
            | self.version & 0x0f;
        let ack_request = u8::from(self.ack_request) << 7 | self.reserved & 0x7f;
        let [pkey_high, pkey_low] = self.pkey.to_be_bytes();
        let [c, d1, d2, d3] = with_top(self.congestion, self.destination.get());
        let [a, p1, p2, p3] = with_top(ack_request, self.psn.get());
        [self.opcode.0, flags, pkey_high, pkey_low, c, d1, d2, d3, a, p1, p2, p3]
    }
}

/// Returns the number of pad bytes for a payload of `length` bytes (contract rocev2 3.1).
#[must_use]
pub const fn pad_for(length: usize) -> u8 {
    match length % 4 {
        1 => 3,
        2 => 2,
        3 => 1,
        _ => 0,
    }
}

/// Appends `pad` zero bytes, at most 3.
#[inline]
pub fn emit_pad(pad: u8, out: &mut Vec<u8>) {
    for _ in 0..pad & 3 {
        out.push(0);
    }
}

/// Returns a word with `top` as its first byte and a 24-bit number in the other three.
const fn with_top(top: u8, number: u32) -> [u8; 4] {
    let [_, a, b, c] = number.to_be_bytes();
    [top, a, b, c]
}

/// Returns true if a packet, starting with the BTH, is an ACK without the data of a READ or an atomic.
#[must_use]
pub fn is_positive_acknowledge(packet: &[u8]) -> bool {
    let (opcode, syndrome) = (packet.first(), packet.get(BTH_LENGTH));
    opcode.is_some_and(|opcode| Opcode(*opcode).operation() == Operation::ACKNOWLEDGE)
        && syndrome.is_some_and(|syndrome| matches!(Syndrome::new(*syndrome), Syndrome::Ack { .. }))
}

/// Returns true if a packet, starting with the BTH, contains READ response data.
#[must_use]
pub fn is_read_response(packet: &[u8]) -> bool {
    let data = Operation::READ_RESPONSE_FIRST.0..=Operation::READ_RESPONSE_ONLY.0;
    packet.first().is_some_and(|opcode| data.contains(&Opcode(*opcode).operation().0))
}

#[cfg(test)]
mod tests {
    use super::super::{IpUdp, Operation, Service, icrc};
    use super::*;

    fn opcode(operation: Operation) -> Opcode {
        Opcode::new(Service::XRC, operation)
    }

    #[test]
    fn setting_becn_keeps_icrc_valid() {
        let [source, destination] =
            ["10.0.0.1:50000", "10.0.0.2:4791"].map(|text| text.parse().expect("valid"));
        let headers = IpUdp::new(source, destination);
        let mut packet = bytes(opcode(Operation::ACKNOWLEDGE), 0, 0);
        let before = icrc::icrc(&headers, &packet);
        assert!(!Bth::parse(&packet).expect("whole").has_becn());
        Bth::set_becn(&mut packet);
        assert!(Bth::parse(&packet).expect("whole").has_becn());
        assert_eq!(icrc::icrc(&headers, &packet), before);
    }

    /// Returns the bytes of a packet with this opcode and `length` bytes after its headers.
    fn bytes(opcode: Opcode, pad: u8, length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        Bth { pad, ..Bth::new(opcode, QpNumber::new(2), Psn::new(3)) }.emit(&mut out);
        out.resize(BTH_LENGTH + opcode.layout().expect("known").0.length() + length, 0xee);
        out
    }

    #[test]
    fn every_opcode_re_emits_equal() {
        let mut seen = 0;
        for code in 0..=u8::MAX {
            let opcode = Opcode(code);
            let Some((headers, rule)) = opcode.layout() else { continue };
            let length = if rule == super::super::PayloadRule::None { 0 } else { 256 };
            let mut input = bytes(opcode, 0, length);
            for (index, byte) in input.iter_mut().enumerate().skip(2) {
                *byte = u8::try_from(index % 251).expect("below 251") ^ 0xa5;
            }
            let packet = Packet::parse(&input).expect("a packet of the right length");
            assert_eq!(packet.headers(), headers, "{opcode}");
            let mut output = Vec::new();
            packet.emit(&mut output);
            assert_eq!(output, input, "{opcode}");
            assert_eq!(packet.emitted_len(), output.len());
            seen += 1;
        }
        assert_eq!(seen, 61);
    }

    /// Checks raw offsets, because a reader and a writer may share a mistake (contract J8, rocev2 10).
    #[test]
    fn srq_number_precedes_immediate_data() {
        let to = QpNumber::new(0x0001_0203);
        let mut packet =
            Packet::new(opcode(Operation::SEND_ONLY_IMM), to, Psn::new(0x000a_0b0c), b"twelve bytes");
        packet.xrceth = Some((0, SrqNumber::new(0x0004_0506)));
        packet.immediate = Some(0xa1b2_c3d4);
        let mut out = Vec::new();
        packet.emit(&mut out);
        assert_eq!((out[0], &out[5..8], &out[9..12]), (0xa5, &[1, 2, 3][..], &[0x0a, 0x0b, 0x0c][..]));
        assert_eq!(out[12..20], [0, 4, 5, 6, 0xa1, 0xb2, 0xc3, 0xd4]);
        assert_eq!(out[20..], *b"twelve bytes");
    }

    #[test]
    fn each_wrong_length_has_its_own_error() {
        let write = opcode(Operation::WRITE_ONLY);
        let full = bytes(write, 0, 0);
        for length in 0..full.len() {
            let error = Packet::parse(&full[..length]).expect_err("cut");
            if length < BTH_LENGTH {
                assert_eq!(error, WireError::ShortBth(length));
            } else {
                assert_eq!(error, WireError::ShortHeaders { opcode: write, needed: 32, length });
            }
            assert!(!error.is_answerable());
        }
        let only = opcode(Operation::SEND_ONLY);
        let short = Packet::parse(&bytes(only, 3, 0)).map(|_| ());
        assert_eq!(short, Err(WireError::ShortPad { opcode: only, pad: 3, length: 0 }));
        let odd = Packet::parse(&bytes(only, 0, 5)).map(|_| ());
        assert_eq!(odd, Err(WireError::WrongPad { opcode: only, length: 5 }));
        let last = opcode(Operation::SEND_LAST);
        assert_eq!(Packet::parse(&bytes(last, 0, 0)).map(|_| ()), Err(WireError::EmptyPayload(last)));
        let first = opcode(Operation::SEND_FIRST);
        for (pad, length) in [(0, 0), (0, 252), (0, 260), (1, 256)] {
            let error = Packet::parse(&bytes(first, pad, length)).expect_err("no path MTU");
            assert!(error.is_answerable(), "{error}");
        }
        let ack = opcode(Operation::ACKNOWLEDGE);
        let loaded = Packet::parse(&bytes(ack, 0, 4)).map(|_| ());
        assert_eq!(loaded, Err(WireError::UnexpectedPayload { opcode: ack, length: 4 }));
    }

    #[test]
    fn unknown_opcodes_and_versions_are_refused() {
        let mut input = bytes(opcode(Operation::SEND_ONLY), 0, 0);
        input[1] |= 1;
        assert_eq!(Packet::parse(&input).map(|_| ()), Err(WireError::Version(1)));
        input[1] &= 0xf0;
        input[0] = 0xb5;
        assert_eq!(Packet::parse(&input).map(|_| ()), Err(WireError::UnknownOpcode(Opcode(0xb5))));
    }

    #[test]
    fn parsed_payload_excludes_pad() {
        let mut input = bytes(opcode(Operation::SEND_ONLY), pad_for(5), 8);
        let packet = Packet::parse(&input).expect("whole");
        assert_eq!(packet.payload.len(), 5);
        // A sender's pad bytes are not kept, and are emitted as zeros.
        let mut output = Vec::new();
        packet.emit(&mut output);
        assert_ne!(output, input);
        let end = input.len();
        input[end - 3..].fill(0);
        assert_eq!(output, input);
    }
}
