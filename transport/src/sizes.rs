//! Sizes that the parts of a node agree on. Plain numbers: everything may use them.
#![forbid(unsafe_code)]

/// Bytes of the largest message that goes by SEND, beyond its header and extensions.
pub const EAGER_BYTES: usize = 16 * 1024;
/// Room for a message's head, which must fit with its body into the memory for large messages.
pub(crate) const HEAD_ROOM: usize = 64 << 10;
/// Bytes of a receive slot and of a send slot: the largest frame, in whole cache lines.
pub(crate) const SLOT_BYTES: usize = EAGER_BYTES + 64;
/// Bytes of the largest frame that is posted inline, whatever more the device could take.
pub(crate) const INLINE_BYTES: u32 = 256;
/// Most bytes of a message that travel with its announcement. A header and its extensions must, which are a quarter of it.
pub(crate) const MOST_ANNOUNCED: usize = 4096;
/// Bytes of the largest bundle of messages, and of the largest message in one.
pub(crate) const BUNDLE_BYTES: usize = 4096;
pub(crate) const BUNDLED_BYTES: usize = 1024;
/// Bytes of the smallest frame that every node takes.
pub(crate) const LEAST_FRAME: u32 = 2048;
/// Completions that a poller takes at once, and receives that it reposts at once.
pub(crate) const BATCH: usize = 64;
/// Work requests that the send queue of an INI holds.
pub(crate) const SEND_QUEUE_DEPTH: usize = 512;
