//! Local memory of a QP's own work requests.
//!
//! Owns nothing: it joins the key table with the QP's protection domain for the requester.

use crate::device::keys::{KeyView, PdNumber};
use trunkline_roce::engine::{LocalFault, LocalMemory};
use trunkline_verbs::Sge;

/// The memory that a QP's lkeys reach.
#[derive(Debug)]
pub(super) struct QpMemory<'a> {
    pub(super) keys: KeyView<'a>,
    pub(super) pd: PdNumber,
}

impl LocalMemory for QpMemory<'_> {
    fn read(&self, piece: Sge, out: &mut Vec<u8>) -> Result<(), LocalFault> {
        self.keys.gather(self.pd, piece, out).map_err(|_| LocalFault)
    }

    fn write(&mut self, piece: Sge, bytes: &[u8]) -> Result<(), LocalFault> {
        self.keys.scatter(self.pd, piece, bytes).map_err(|_| LocalFault)
    }
}
