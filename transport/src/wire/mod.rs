//! Frames between nodes, the settings that open a session, and sizes used by several parts of a node.
#![forbid(unsafe_code)]

pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod settings;

/// Size of the largest message that uses SEND, in bytes, without its header and extensions.
pub const EAGER_BYTES: usize = 16 * 1024;
/// Space for the head of a large message. Head and body together must fit in the memory for large messages.
pub(crate) const HEAD_ROOM: usize = 64 << 10;
/// Size of a receive slot and of a send slot, in bytes. It is the size of the largest frame, rounded up to whole cache
/// lines.
pub(crate) const SLOT_BYTES: usize = EAGER_BYTES + 64;
/// Size of the largest frame that is posted inline, in bytes, even on devices that accept larger ones.
pub(crate) const INLINE_BYTES: u32 = 256;
/// Maximum number of bytes sent with a message's announcement. It suffices for a header and its extensions, which take
/// at most a quarter of it.
pub(crate) const MOST_ANNOUNCED: usize = 4096;
/// Size of the largest bundle of messages and of the largest message in a bundle, in bytes.
pub(crate) const BUNDLE_BYTES: usize = 4096;
pub(crate) const BUNDLED_BYTES: usize = 1024;
/// Minimum of the frame limit that a node may set, in bytes.
pub(crate) const LEAST_FRAME: u32 = 2048;
/// Number of completions that a poller takes in one poll, and of receives that it reposts in one call.
pub(crate) const BATCH: usize = 64;
/// Send-queue depth of an INI, in work requests.
pub(crate) const SEND_QUEUE_DEPTH: usize = 512;

/// Maximum number of messages in a peer's turn.
pub const TURN_MESSAGES: u32 = 16;
/// Number of messages after which a poller's round ends.
pub const ROUND_MESSAGES: u32 = 32;
