//! Reads capture files in pcap or pcapng format.

use super::classic::Classic;
use super::ng::{self, Ng};
use super::source::Source;
use super::{Frame, PcapError};
use std::io::Read;

/// Reads the frames of a capture one after another. It holds one frame at a time, however large the file is. It makes many
/// small reads, so its input should be buffered.
#[derive(Debug)]
pub struct PcapReader<R> {
    source: Source<R>,
    format: Format,
    frames: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Ng(Ng),
}

impl<R: Read> PcapReader<R> {
    /// Reads the file's header. Supports pcap in both byte orders, with microseconds or nanoseconds, and pcapng.
    ///
    /// # Errors
    /// [`PcapError`] if the file is not a capture, or ends within the header.
    pub fn new(input: R) -> Result<Self, PcapError> {
        let mut source = Source::new(input);
        let magic = source.array("the first four bytes")?.ok_or(PcapError::Empty)?;
        let format = if magic == ng::SECTION {
            Format::Ng(Ng::open(&mut source)?)
        } else {
            let recognised = Classic::recognise(magic).ok_or(PcapError::NotACapture(magic))?;
            Format::Classic(Classic::open(recognised, &mut source)?)
        };
        Ok(Self { source, format, frames: 0, buffer: Vec::new() })
    }

    /// Reads the next frame. Returns `None` at the end of the file. After an error the rest of the file cannot be read, and
    /// the reader should be dropped.
    ///
    /// # Errors
    /// [`PcapError`] if the file is cut off or malformed.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, PcapError> {
        let number = self.frames.saturating_add(1);
        let frame = match &mut self.format {
            Format::Classic(classic) => classic.next(&mut self.source, number, &mut self.buffer),
            Format::Ng(ng) => ng.next(&mut self.source, number, &mut self.buffer),
        }?;
        self.frames += u64::from(frame.is_some());
        Ok(frame)
    }
}
