//! Bit fields in the 232 bytes of a CM message.
//!
//! Only the message files of this folder use this module, with constant positions that each file lists in one table. A
//! position must never come from the wire.

use crate::wire::mad::MAD_DATA_BYTES;
use trunkline_verbs::Gid;

/// The data of a MAD, which is a CM message.
pub(super) type Data = [u8; MAD_DATA_BYTES];

/// A field of up to 64 bits. Positions count from the most significant bit of byte 0.
#[derive(Clone, Copy)]
pub(super) struct Field {
    bit: usize,
    bits: usize,
}

impl Field {
    /// Creates the field of `bits` bits that starts at the top of byte `byte`.
    pub(super) const fn at(byte: usize, bits: usize) -> Self {
        Self::after(byte, 0, bits)
    }

    /// Creates the field of `bits` bits that starts `skip` bits below the top of byte `byte`.
    pub(super) const fn after(byte: usize, skip: usize, bits: usize) -> Self {
        let bit = byte * 8 + skip;
        assert!(bits > 0 && bits <= 64 && bit + bits <= MAD_DATA_BYTES * 8);
        Self { bit, bits }
    }

    /// Returns the same field shifted by `bytes` bytes.
    pub(super) const fn shifted(self, bytes: usize) -> Self {
        Self::after(bytes, self.bit, self.bits)
    }

    /// Returns the index of the first byte, the index after the last byte, and the number of bits below the field in the
    /// last byte.
    const fn span(self) -> (usize, usize, usize) {
        let end = self.bit + self.bits;
        (self.bit / 8, end.div_ceil(8), end.next_multiple_of(8) - end)
    }

    const fn mask(self) -> u128 {
        (1 << self.bits) - 1
    }

    pub(super) fn u64(self, data: &Data) -> u64 {
        let (first, end, below) = self.span();
        let word = data[first..end].iter().fold(0_u128, |word, byte| word << 8 | u128::from(*byte));
        u64::try_from(word >> below & self.mask()).unwrap_or(u64::MAX)
    }

    pub(super) fn u32(self, data: &Data) -> u32 {
        u32::try_from(self.u64(data)).unwrap_or(u32::MAX)
    }

    pub(super) fn u16(self, data: &Data) -> u16 {
        u16::try_from(self.u64(data)).unwrap_or(u16::MAX)
    }

    pub(super) fn u8(self, data: &Data) -> u8 {
        u8::try_from(self.u64(data)).unwrap_or(u8::MAX)
    }

    pub(super) fn bool(self, data: &Data) -> bool {
        self.u64(data) != 0
    }

    /// Writes the low bits of `value`. Bits that do not fit are dropped.
    pub(super) fn put(self, data: &mut Data, value: impl Into<u64>) {
        let (first, end, below) = self.span();
        let mut keep = !(self.mask() << below);
        let mut word = (u128::from(value.into()) & self.mask()) << below;
        for byte in data[first..end].iter_mut().rev() {
            *byte = *byte & keep.to_be_bytes()[15] | word.to_be_bytes()[15];
            keep >>= 8;
            word >>= 8;
        }
    }
}

/// Copies `N` bytes out of `data`, from byte `at`.
pub(super) fn bytes<const N: usize>(data: &Data, at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&data[at..at + N]);
    out
}

pub(super) fn put_bytes(data: &mut Data, at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

pub(super) fn gid(data: &Data, at: usize) -> Gid {
    Gid(bytes(data, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_touch_their_own_bits_only() {
        for field in [
            Field::at(0, 32),
            Field::at(8, 64),
            Field::after(51, 4, 1),
            Field::after(88, 20, 6),
            Field::after(3, 3, 64),
            Field::at(231, 8),
        ] {
            for background in [0x00, 0xff] {
                let mut data = [background; MAD_DATA_BYTES];
                let value = 0xa5c3_9617_0f2e_4b8d_u64 & u64::try_from(field.mask()).unwrap();
                field.put(&mut data, value);
                assert_eq!(field.u64(&data), value);
                let mask_of_ones = if background == 0 { 0 } else { u64::try_from(field.mask()).unwrap() };
                field.put(&mut data, mask_of_ones);
                assert_eq!(data, [background; MAD_DATA_BYTES]);
            }
        }
    }
}
