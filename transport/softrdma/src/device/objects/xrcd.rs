//! Handles on XRC domains.
//!
//! Owns one reference to a domain. An SRQ or a TGT handle keeps the domain handle with which it was created in use
//! (contract A11).
#![forbid(unsafe_code)]

use crate::device::core::Core;
use crate::device::tables::domain_table::Domain;
use crate::device::tables::use_count::{Counted, UseCount};
use crate::device::threads::signal::lock;
use std::sync::{Arc, Mutex};
use trunkline_verbs::{VerbsError, XrcDomain};

/// A handle on an XRC domain.
#[derive(Debug)]
pub(in crate::device) struct SoftXrcd {
    core: Arc<Core>,
    /// `None` once closed.
    domain: Mutex<Option<Arc<Domain>>>,
    use_count: UseCount,
}

impl SoftXrcd {
    pub(in crate::device) fn new(core: Arc<Core>, domain: Arc<Domain>) -> Self {
        Self { core, domain: Mutex::new(Some(domain)), use_count: UseCount::default() }
    }

    pub(in crate::device) fn domain(&self) -> Result<Arc<Domain>, VerbsError> {
        lock(&self.domain).clone().ok_or(VerbsError::Gone)
    }

    /// Returns the handle's device.
    pub(in crate::device) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Counted for SoftXrcd {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}

impl XrcDomain for SoftXrcd {
    fn close(&self) -> Result<(), VerbsError> {
        self.use_count.retire("an SRQ or a TGT handle was made with this XRC domain handle")?;
        *lock(&self.domain) = None;
        Ok(())
    }
}
