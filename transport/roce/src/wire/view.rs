//! The bytes of a packet, read from front to back, as the first of two parsing steps.
//!
//! [`PacketView::new`] checks each length once, so reading a field afterwards cannot fail. Only `packet` calls this module,
//! which neither copies nor interprets fields.

use super::layout::{self, Headers, MTU_MIN, PayloadRule};
use super::{BTH_LENGTH, Bth, Opcode, WireError};
use trunkline_verbs::{Psn, QpNumber};

/// A packet whose length is valid for its opcode.
pub(super) struct PacketView<'a> {
    pub(super) bth: Bth,
    pub(super) headers: Headers,
    pub(super) fields: Fields<'a>,
    /// Payload without pad.
    pub(super) payload: &'a [u8],
}

impl<'a> PacketView<'a> {
    /// Checks the version, the opcode and all rules on lengths that do not depend on the path MTU.
    #[inline]
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::with(bytes, |rule| rule)
    }

    /// Like [`PacketView::new`], for a packet that may contain the payload of several packets.
    #[inline]
    pub(super) fn joined(bytes: &'a [u8]) -> Result<Self, WireError> {
        // The connection checks that each part of a message is a whole number of path MTUs.
        Self::with(bytes, |rule| if rule == PayloadRule::Full { PayloadRule::Some } else { rule })
    }

    #[inline(always)]
    fn with(bytes: &'a [u8], rule_of: impl Fn(PayloadRule) -> PayloadRule) -> Result<Self, WireError> {
        let bth = Bth::parse(bytes)?;
        if bth.version != 0 {
            return Err(WireError::Version(bth.version));
        }
        let opcode = bth.opcode;
        let (headers, rule) = opcode.layout().ok_or(WireError::UnknownOpcode(opcode))?;
        let headers_end = BTH_LENGTH + headers.length();
        let (fields, padded) = bytes.split_at_checked(headers_end).ok_or(WireError::ShortHeaders {
            opcode,
            needed: headers_end,
            length: bytes.len(),
        })?;
        let length = padded.len();
        let payload = length.checked_sub(usize::from(bth.pad)).ok_or(WireError::ShortPad {
            opcode,
            pad: bth.pad,
            length,
        })?;
        check_payload(opcode, rule_of(rule), length, payload)?;
        Ok(Self { bth, headers, fields: Fields(&fields[BTH_LENGTH..]), payload: &padded[..payload] })
    }
}

/// The unread fields of a packet's extension headers. The length of the headers was checked, so there are enough fields.
pub(super) struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *field
    }

    /// Reads a word with a separate first byte and a 24-bit number.
    pub(super) fn topped(&mut self) -> (u8, u32) {
        let [top, a, b, c] = self.next();
        (top, u32::from_be_bytes([0, a, b, c]))
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.next())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.next())
    }
}

impl Bth {
    /// Reads only the header, for any opcode and version.
    ///
    /// # Errors
    /// [`WireError::ShortBth`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        use layout::bth as at;
        let short = WireError::ShortBth(bytes.len());
        let bth: &[u8; BTH_LENGTH] = bytes.first_chunk().ok_or(short)?;
        // Read four bytes. The first byte precedes the 24-bit number and is masked off.
        let u24 =
            |start: usize| u32::from_be_bytes([bth[start - 1], bth[start], bth[start + 1], bth[start + 2]]);
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

/// Checks the opcode's rule. `length` counts payload and pad, and `payload` excludes the pad.
fn check_payload(opcode: Opcode, rule: PayloadRule, length: usize, payload: usize) -> Result<(), WireError> {
    if !length.is_multiple_of(4) {
        return Err(WireError::WrongPad { opcode, length });
    }
    match rule {
        PayloadRule::None if length != 0 => Err(WireError::UnexpectedPayload { opcode, length }),
        PayloadRule::Some if payload == 0 => Err(WireError::EmptyPayload(opcode)),
        // A path MTU is a power of two. The connection compares it with its own.
        PayloadRule::Full if payload != length || payload < MTU_MIN || !payload.is_power_of_two() => {
            Err(WireError::PartialPayload { opcode, length: payload })
        }
        _ => Ok(()),
    }
}
