//! Why a capture file can't be read further.

use std::io;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PcapError {
    /// The file can't be read.
    #[error("the capture can't be read: {0}")]
    Io(#[from] io::Error),
    /// It is neither pcap nor pcapng.
    #[error("neither pcap nor pcapng: it starts with {0:02x?}")]
    NotACapture([u8; 4]),
    /// It is empty.
    #[error("the file is empty; a capture has at least a header")]
    Empty,
    /// It ends inside something: its writer was killed, or it was copied while it grew.
    #[error("the file ends at byte {offset}, inside {inside}")]
    CutOff {
        /// Bytes in the file.
        offset: u64,
        /// What was being read.
        inside: &'static str,
    },
    /// A length is larger than anything we keep in memory.
    #[error("byte {offset}: {what} claims {length} bytes, more than {limit}")]
    TooLong {
        /// Where it starts.
        offset: u64,
        /// What.
        what: &'static str,
        /// Its length.
        length: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// Lengths contradict each other, or a pcapng rule is broken.
    #[error("byte {offset}: {what}")]
    Malformed {
        /// Where it starts.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}
