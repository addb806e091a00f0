//! Payloads of calls, which are reused, rewritten for each call or allocated for each call.

use clap::ValueEnum;
use serde::Serialize;
use trunkline::Bytes;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Buffer {
    /// The same bytes each time, which are therefore in the cache.
    Reused,
    /// The same memory, written before each call.
    Rewritten,
    /// New memory for each call, allocated and written.
    Own,
}

/// Payloads of one worker, which has one call in flight at a time.
#[derive(Debug)]
pub(crate) struct Payloads {
    buffer: Buffer,
    size: usize,
    last: Bytes,
    written: u8,
}

impl Payloads {
    pub(crate) fn new(buffer: Buffer, size: usize) -> Self {
        Self { buffer, size, last: filled(size, 0), written: 0 }
    }

    pub(crate) fn next(&mut self) -> Bytes {
        match self.buffer {
            Buffer::Reused => {}
            Buffer::Own => {
                self.written = self.written.wrapping_add(1);
                self.last = filled(self.size, self.written);
            }
            Buffer::Rewritten => {
                self.written = self.written.wrapping_add(1);
                // The previous call has ended, so the bytes are usually not shared. If the node still holds them, they
                // are copied.
                let mut bytes = match std::mem::take(&mut self.last).try_into_mut() {
                    Ok(bytes) => bytes,
                    Err(held) => held.as_ref().into(),
                };
                fill(&mut bytes, self.written);
                self.last = bytes.freeze();
            }
        }
        self.last.clone()
    }
}

fn filled(size: usize, written: u8) -> Bytes {
    let mut bytes = vec![0; size];
    fill(&mut bytes, written);
    Bytes::from(bytes)
}

/// Fills the buffer with values that depend on the position and the call, so that a misplaced payload is detected.
fn fill(bytes: &mut [u8], written: u8) {
    for (chunk, place) in bytes.chunks_mut(256).zip(0_u64..) {
        let [low, high, ..] = place.to_le_bytes();
        chunk.fill(low ^ high.rotate_left(3) ^ written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_buffers_are_reused_rewritten_or_fresh_by_setting() {
        let mut reused = Payloads::new(Buffer::Reused, 1000);
        let (one, other) = (reused.next(), reused.next());
        assert_eq!((one.as_ptr(), &one), (other.as_ptr(), &other));

        let mut rewritten = Payloads::new(Buffer::Rewritten, 1000);
        let one = rewritten.next();
        let (before, place) = (one.to_vec(), one.as_ptr());
        drop(one);
        let other = rewritten.next();
        assert_eq!(other.as_ptr(), place);
        assert_ne!(other, before);

        let mut own = Payloads::new(Buffer::Own, 1000);
        let (one, other) = (own.next(), own.next());
        assert_ne!((one.as_ptr(), &one), (other.as_ptr(), &other));
    }

    #[test]
    fn payload_bytes_differ_between_offsets() {
        let bytes = filled(1 << 20, 7);
        assert_ne!(bytes[0], bytes[256]);
        assert_ne!(bytes[0], bytes[1 << 16]);
        assert_eq!(filled(0, 1).len(), 0);
    }
}
