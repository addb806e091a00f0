//! XRC domains.

use crate::VerbsError;
use std::any::Any;
use std::fmt::Debug;

bitflags::bitflags! {
    /// Flags for opening a domain, equivalent to `O_CREAT` and `O_EXCL` in `oflags` (contract A7).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct XrcdFlags: u32 {
        /// Creates the domain if the file has none.
        const CREATE = 1;
        /// Fails if the file has a domain already.
        const EXCLUSIVE = 1 << 1;
    }
}

/// A handle to an XRC domain.
pub trait XrcDomain: Any + Send + Sync + Debug {
    /// Closes this handle.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while an SRQ or a TGT handle of the domain exists (contract A11).
    fn close(&self) -> Result<(), VerbsError>;
}
