//! The metadata of a response, and its transfer to the caller.

use super::{Metadata, MetadataError};
use crate::node::fork_lock::Lock;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Sizes of the metadata in a frame, in bytes. Metadata is placed between the extensions and the encoded part, so that it
/// can be larger than the limit on extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MetadataBytes {
    /// Size of the metadata of a request, or for the start of a response.
    pub(crate) initial: u32,
    /// Size of the metadata for the end of a response.
    pub(crate) trailing: u32,
}

impl MetadataBytes {
    /// Returns the sizes for the metadata of a request.
    pub(crate) fn of_request(initial: u32) -> Self {
        Self { initial, trailing: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the ranges of both parts in a message. They end at the encoded part, which begins at `encoded`.
    pub(crate) fn before(self, encoded: usize) -> [Range<usize>; 2] {
        let [initial, trailing] = self.sizes();
        let middle = encoded.saturating_sub(trailing);
        [middle.saturating_sub(initial)..middle, middle..encoded]
    }

    /// Returns the total size of both parts.
    pub(crate) fn sum(self) -> usize {
        let [initial, trailing] = self.sizes();
        initial.saturating_add(trailing)
    }

    fn sizes(self) -> [usize; 2] {
        [self.initial, self.trailing].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// The metadata for the start and for the end of a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReplyMetadata {
    pub(crate) initial: Metadata,
    pub(crate) trailing: Metadata,
}

impl ReplyMetadata {
    pub(crate) fn is_empty(&self) -> bool {
        self.initial.is_empty() && self.trailing.is_empty()
    }

    /// Returns the sizes of both parts, for the header.
    pub(crate) fn bytes(&self) -> MetadataBytes {
        let [initial, trailing] =
            [&self.initial, &self.trailing].map(|part| u32::try_from(part.size()).unwrap_or(u32::MAX));
        MetadataBytes { initial, trailing }
    }

    /// Parses the metadata of a reply, which ends at offset `encoded`.
    pub(crate) fn parse(bytes: MetadataBytes, message: &[u8], encoded: usize) -> Result<Self, MetadataError> {
        let [initial, trailing] = bytes.before(encoded).map(|range| message.get(range).unwrap_or_default());
        Ok(Self { initial: Metadata::parse(initial)?, trailing: Metadata::parse(trailing)? })
    }

    pub(crate) fn size(&self) -> usize {
        self.initial.size() + self.trailing.size()
    }
}

/// Storage for the metadata of a call's response. Pass it to
/// [`CallOptions::response_metadata`](crate::CallOptions::response_metadata), and read it after the call has ended.
///
/// The storage is cleared when a call with these options starts, and filled when the call has ended, whether the call
/// succeeded or failed. If the call returns a stream, the initial metadata is stored when the stream is returned, and the
/// trailing metadata when the stream has ended. Clones share the storage. Concurrent calls need separate storage.
///
/// ```no_run
/// # use trunkline::{CallOptions, ResponseMetadata, Status};
/// # #[trunkline::service]
/// # pub trait Greeter {
/// #     async fn greet(&self, name: String) -> Result<String, Status>;
/// # }
/// # async fn call(client: GreeterClient) -> Result<(), Status> {
/// let received = ResponseMetadata::new();
/// let options = CallOptions::new().response_metadata(&received);
/// client.with(&options).greet("trunk".into()).await?;
/// println!("{:?}", received.initial().get("served-by"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ResponseMetadata(Arc<Lock<ReplyMetadata>>);

impl ResponseMetadata {
    /// Creates empty storage.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the metadata that the handler set for the start of its response. Empty until the call has ended.
    #[must_use]
    pub fn initial(&self) -> Metadata {
        self.0.lock().initial.clone()
    }

    /// Returns the metadata that the handler set for the end of its response. Empty until the call has ended.
    #[must_use]
    pub fn trailing(&self) -> Metadata {
        self.0.lock().trailing.clone()
    }

    /// Stores the metadata of a call that has ended.
    pub(crate) fn store(&self, metadata: ReplyMetadata) {
        *self.0.lock() = metadata;
    }
}

/// Two values are equal if they share the storage.
impl PartialEq for ResponseMetadata {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ResponseMetadata {}

impl fmt::Debug for ResponseMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().fmt(f)
    }
}
