//! Patterns whose bytes depend on their position, and the blank memory around them.

use crate::check::Verdict;
use trunkline_verbs::Memory;

/// Value of bytes that must not be written.
const BLANK: u8 = 0xee;
/// Number of bytes that are compared at a time. It is a multiple of 8.
const PIECE: usize = 4096;

/// Fills `into` with the bytes of a pattern from offset `first` on. SplitMix64 makes the bytes depend on the offset.
fn bytes_of(seed: u64, first: usize, into: &mut [u8]) {
    for (index, word) in into.chunks_mut(8).enumerate() {
        let place = (first / 8 + index) as u64;
        let mut value =
            seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(value ^ (value >> 31)).to_le_bytes()[..word.len()]);
    }
}

/// Returns the first `length` bytes of a pattern.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes_of(seed, 0, &mut bytes);
    bytes
}

/// Writes a pattern to memory.
pub(super) fn fill(memory: &Memory, offset: usize, length: usize, seed: u64) -> Verdict {
    pieces(length, |first, size| {
        let mut piece = [0; PIECE];
        bytes_of(seed, first, &mut piece[..size]);
        Ok(memory.write(offset + first, &piece[..size])?)
    })
}

/// Counts the bytes that differ from a pattern.
pub(super) fn wrong(memory: &Memory, offset: usize, length: usize, seed: u64) -> Verdict<u64> {
    let mut count = 0;
    pieces(length, |first, size| {
        let (mut wanted, mut found) = ([0; PIECE], [0; PIECE]);
        bytes_of(seed, first, &mut wanted[..size]);
        memory.read(offset + first, &mut found[..size])?;
        if wanted[..size] != found[..size] {
            count += wanted[..size].iter().zip(&found[..size]).filter(|(a, b)| a != b).count() as u64;
        }
        Ok(())
    })?;
    Ok(count)
}

/// Fills memory with blank bytes.
pub(super) fn blank(memory: &Memory, offset: usize, length: usize) -> Verdict {
    pieces(length, |first, size| Ok(memory.write(offset + first, &[BLANK; PIECE][..size])?))
}

/// Counts the bytes that are not blank.
pub(super) fn touched(memory: &Memory, offset: usize, length: usize) -> Verdict<u64> {
    let mut count = 0;
    pieces(length, |first, size| {
        let mut found = [0; PIECE];
        memory.read(offset + first, &mut found[..size])?;
        count += found[..size].iter().filter(|byte| **byte != BLANK).count() as u64;
        Ok(())
    })?;
    Ok(count)
}

fn pieces(length: usize, mut each: impl FnMut(usize, usize) -> Verdict) -> Verdict {
    (0..length).step_by(PIECE).try_for_each(|first| each(first, PIECE.min(length - first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_counted() {
        let memory = Memory::zeroed(3 * PIECE).unwrap();
        let length = 2 * PIECE + 5;
        blank(&memory, 0, memory.len()).unwrap();
        fill(&memory, 64, length, 7).unwrap();
        assert_eq!(wrong(&memory, 64, length, 7), Ok(0));
        assert_eq!(touched(&memory, 0, 64), Ok(0));
        assert_eq!(touched(&memory, 64 + length, 64), Ok(0));
        let mut last = [0];
        memory.read(64 + length - 1, &mut last).unwrap();
        memory.write(64 + length - 1, &[!last[0]]).unwrap();
        memory.write(63, &[0]).unwrap();
        assert_eq!(wrong(&memory, 64, length, 7), Ok(1));
        assert_eq!(touched(&memory, 0, 64), Ok(1));
        assert!(wrong(&memory, 64, length, 8).unwrap() > 4 * PIECE as u64 / 3);
    }
}
