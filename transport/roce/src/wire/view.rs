//! A checked view over the bytes of a packet: the first of the two steps of parsing.
//!
//! Owns the reading of fields. [`PacketView::new`] checks each length once; from then on reading a
//! field can't fail. Only `packet` calls it. It copies nothing and does not interpret fields.

use super::layout::{self, Headers, MTU_MIN, PayloadRule};
use super::{Aeth, AtomicEth, BTH_LENGTH, Bth, Deth, Opcode, Reth, WireError};
use trunkline_verbs::{IoAddress, Psn, QpNumber, Rkey, SrqNumber};

/// A packet whose length fits its opcode.
pub(super) struct PacketView<'a> {
    bytes: &'a [u8],
    headers: Headers,
    headers_end: usize,
    payload_end: usize,
}

impl<'a> PacketView<'a> {
    /// Checks the version, the opcode and each rule on lengths that does not depend on the path MTU.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        let bth = Bth::parse(bytes)?;
        if bth.version != 0 {
            return Err(WireError::Version(bth.version));
        }
        let opcode = bth.opcode;
        let (headers, rule) = opcode.layout().ok_or(WireError::UnknownOpcode(opcode))?;
        let headers_end = BTH_LENGTH + headers.length();
        let length = bytes.len().checked_sub(headers_end).ok_or(WireError::ShortHeaders {
            opcode,
            needed: headers_end,
            length: bytes.len(),
        })?;
        let payload = length.checked_sub(usize::from(bth.pad)).ok_or(WireError::ShortPad {
            opcode,
            pad: bth.pad,
            length,
        })?;
        check_payload(opcode, rule, length, payload)?;
        Ok(Self { bytes, headers, headers_end, payload_end: headers_end + payload })
    }

    pub(super) fn payload(&self) -> &'a [u8] {
        &self.bytes[self.headers_end..self.payload_end]
    }

    /// The `N` bytes that start `skip` bytes into `header`, if the opcode has that header.
    fn field<const N: usize>(&self, header: Headers, skip: usize) -> Option<[u8; N]> {
        let start = self.headers.offset(header)? + skip;
        self.bytes.get(start..start + N)?.try_into().ok()
    }

    fn u24(&self, header: Headers, skip: usize) -> Option<u32> {
        self.field::<3>(header, skip).map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    fn u32(&self, header: Headers, skip: usize) -> Option<u32> {
        self.field(header, skip).map(u32::from_be_bytes)
    }

    fn u64(&self, header: Headers, skip: usize) -> Option<u64> {
        self.field(header, skip).map(u64::from_be_bytes)
    }

    pub(super) fn xrceth(&self) -> Option<(u8, SrqNumber)> {
        let [reserved] = self.field(Headers::XRCETH, 0)?;
        Some((reserved, SrqNumber::new(self.u24(Headers::XRCETH, 1)?)))
    }

    pub(super) fn deth(&self) -> Option<Deth> {
        let [reserved] = self.field(Headers::DETH, 4)?;
        let source = QpNumber::new(self.u24(Headers::DETH, 5)?);
        Some(Deth { qkey: self.u32(Headers::DETH, 0)?, reserved, source })
    }

    pub(super) fn reth(&self) -> Option<Reth> {
        Some(Reth {
            address: IoAddress(self.u64(Headers::RETH, 0)?),
            rkey: Rkey(self.u32(Headers::RETH, 8)?),
            length: self.u32(Headers::RETH, 12)?,
        })
    }

    pub(super) fn atomic(&self) -> Option<AtomicEth> {
        Some(AtomicEth {
            address: IoAddress(self.u64(Headers::ATOMIC, 0)?),
            rkey: Rkey(self.u32(Headers::ATOMIC, 8)?),
            swap_or_add: self.u64(Headers::ATOMIC, 12)?,
            compare: self.u64(Headers::ATOMIC, 20)?,
        })
    }

    pub(super) fn aeth(&self) -> Option<Aeth> {
        let [syndrome] = self.field(Headers::AETH, 0)?;
        Some(Aeth { syndrome, msn: self.u24(Headers::AETH, 1)? })
    }

    pub(super) fn atomic_ack(&self) -> Option<u64> {
        self.u64(Headers::ATOMIC_ACK, 0)
    }

    pub(super) fn immediate(&self) -> Option<u32> {
        self.u32(Headers::IMMEDIATE, 0)
    }

    pub(super) fn invalidate(&self) -> Option<Rkey> {
        self.u32(Headers::INVALIDATE, 0).map(Rkey)
    }
}

impl Bth {
    /// Reads the header alone, whatever its opcode and version.
    ///
    /// # Errors
    /// [`WireError::ShortBth`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        use layout::bth as at;
        let short = WireError::ShortBth(bytes.len());
        let bth: &[u8; BTH_LENGTH] = bytes.first_chunk().ok_or(short)?;
        let u24 = |start: usize| u32::from_be_bytes([0, bth[start], bth[start + 1], bth[start + 2]]);
        let flags = bth[at::FLAGS];
        Ok(Self {
            opcode: Opcode(bth[at::OPCODE]),
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            version: flags & 0x0f,
            pkey: u16::from_be_bytes([bth[at::PKEY], bth[at::PKEY + 1]]),
            congestion: bth[at::CONGESTION],
            destination: QpNumber::new(u24(at::DESTINATION)),
            ack_request: bth[at::ACK_REQUEST] & 0x80 != 0,
            reserved: bth[at::ACK_REQUEST] & 0x7f,
            psn: Psn::new(u24(at::PSN)),
        })
    }
}

/// Checks the opcode's rule: `length` counts payload and pad, `payload` excludes the pad.
fn check_payload(opcode: Opcode, rule: PayloadRule, length: usize, payload: usize) -> Result<(), WireError> {
    if !length.is_multiple_of(4) {
        return Err(WireError::WrongPad { opcode, length });
    }
    match rule {
        PayloadRule::None if length != 0 => Err(WireError::UnexpectedPayload { opcode, length }),
        PayloadRule::Some if payload == 0 => Err(WireError::EmptyPayload(opcode)),
        // A path MTU is a power of two; the connection checks that it is its own.
        PayloadRule::Full if payload != length || payload < MTU_MIN || !payload.is_power_of_two() => {
            Err(WireError::PartialPayload { opcode, length: payload })
        }
        _ => Ok(()),
    }
}
