//! Memory regions and their keys.

use crate::{Access, IoAddress, Memory, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Names a region in local work requests.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lkey(pub u32);

/// Names a region in the requests of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rkey(pub u32);

/// A place in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RemoteAddress {
    /// Where.
    pub address: IoAddress,
    /// Under which region's key.
    pub rkey: Rkey,
}

/// Registered memory. The keys work until it is destroyed or the last `Arc` is dropped.
pub trait MemoryRegion: Any + Send + Sync + Debug {
    /// Key for local requests.
    fn lkey(&self) -> Lkey;
    /// Key to give to a peer.
    fn rkey(&self) -> Rkey;
    /// The address that work requests and peers use for the byte at `offset`: that of the memory
    /// in this process, unless it was registered at another one.
    fn address(&self, offset: usize) -> IoAddress;
    /// What was registered.
    fn memory(&self) -> &Arc<Memory>;
    /// With which rights.
    fn access(&self) -> Access;
    /// Makes the keys invalid now; work that is under way in the region ends first.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] when it was destroyed before.
    fn destroy(&self) -> Result<(), VerbsError>;
}
