//! Reads a file in bounded pieces and counts bytes, so that errors can name an offset.

use super::PcapError;
use std::io::{self, Read};

/// Maximum length of a frame or block that is held in memory, in bytes.
pub(super) const PIECE_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    offset: u64,
}

impl<R: Read> Source<R> {
    pub(super) const fn new(input: R) -> Self {
        Self { input, offset: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads exactly `N` bytes, or returns `None` at the end of the file.
    pub(super) fn array<const N: usize>(
        &mut self,
        inside: &'static str,
    ) -> Result<Option<[u8; N]>, PcapError> {
        let mut bytes = [0; N];
        let mut filled = 0;
        while filled < N {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(PcapError::CutOff { offset: self.offset, inside }),
                Ok(count) => {
                    filled += count;
                    self.advance(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(bytes))
    }

    /// Reads exactly `length` bytes into `buffer`, replacing its content.
    pub(super) fn piece(
        &mut self,
        length: u64,
        inside: &'static str,
        buffer: &mut Vec<u8>,
    ) -> Result<(), PcapError> {
        let limit = PIECE_MAX as u64;
        buffer.clear();
        if length > limit {
            return Err(PcapError::TooLong { offset: self.offset, what: inside, length, limit });
        }
        let read = self.input.by_ref().take(length).read_to_end(buffer)?;
        self.advance(read);
        if (read as u64) < length {
            return Err(PcapError::CutOff { offset: self.offset, inside });
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, length: u64, inside: &'static str) -> Result<(), PcapError> {
        let skipped = io::copy(&mut self.input.by_ref().take(length), &mut io::sink())?;
        self.offset = self.offset.saturating_add(skipped);
        if skipped < length {
            return Err(PcapError::CutOff { offset: self.offset, inside });
        }
        Ok(())
    }

    const fn advance(&mut self, count: usize) {
        self.offset = self.offset.saturating_add(count as u64);
    }
}

/// Byte order of a file or section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// Returns the 32-bit word at offset `at`, unless `bytes` is shorter.
    pub(super) fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        Some(self.u32(*bytes.get(at..)?.first_chunk()?))
    }

    /// Returns the 16-bit word at offset `at`, unless `bytes` is shorter.
    pub(super) fn u16_at(self, bytes: &[u8], at: usize) -> Option<u16> {
        Some(self.u16(*bytes.get(at..)?.first_chunk()?))
    }
}
