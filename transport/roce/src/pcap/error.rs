//! Errors in reading a capture file.

use std::io;

/// Reason why a capture file cannot be read further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PcapError {
    /// The operating system reported an error.
    #[error("the capture can't be read: {0}")]
    Io(#[from] io::Error),
    /// The file is neither pcap nor pcapng.
    #[error("neither pcap nor pcapng: it starts with {0:02x?}")]
    NotACapture([u8; 4]),
    /// The file is empty.
    #[error("the file is empty; a capture has at least a header")]
    Empty,
    /// The file ends inside a structure, because the writer was killed or the file was copied while it grew.
    #[error("the file ends at byte {offset}, inside {inside}")]
    CutOff {
        /// The file's length in bytes.
        offset: u64,
        /// The structure that was being read.
        inside: &'static str,
    },
    /// A length field exceeds the reader's limit.
    #[error("byte {offset}: {what} claims {length} bytes, more than {limit}")]
    TooLong {
        /// Start of the structure, in bytes from the start of the file.
        offset: u64,
        /// The structure.
        what: &'static str,
        /// Length in bytes, as stated in the file.
        length: u64,
        /// The maximum accepted length, in bytes.
        limit: u64,
    },
    /// Two lengths contradict each other, or the file breaks a rule of its format.
    #[error("byte {offset}: {what}")]
    Malformed {
        /// Start of the structure, in bytes from the start of the file.
        offset: u64,
        /// Description of the fault.
        what: &'static str,
    },
}
