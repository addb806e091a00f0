//! Memory regions and their keys.

use crate::{Access, IoAddress, Memory, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// The key that names a region in local work requests.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lkey(pub u32);

/// The key that names a region in a peer's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rkey(pub u32);

/// An address in a peer's registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RemoteAddress {
    /// The address.
    pub address: IoAddress,
    /// The key of the region that contains the address.
    pub rkey: Rkey,
}

/// Registered memory. The keys are valid until the region is destroyed or the last `Arc` is dropped.
pub trait MemoryRegion: Any + Send + Sync + Debug {
    /// Returns the key for local work requests.
    fn lkey(&self) -> Lkey;
    /// Returns the key for a peer's requests.
    fn rkey(&self) -> Rkey;
    /// Returns the address of the byte at `offset` in the region, for work requests and peers. This is the
    /// address in this process, unless the memory was registered at another address.
    fn address(&self, offset: usize) -> IoAddress;
    /// Returns the memory that contains the region.
    fn memory(&self) -> &Arc<Memory>;
    /// Returns the access rights of the registration.
    fn access(&self) -> Access;
    /// Invalidates the keys, after waiting for accesses in progress.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the region is already destroyed.
    fn destroy(&self) -> Result<(), VerbsError>;
}
