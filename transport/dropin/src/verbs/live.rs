//! The live objects of a context.
//!
//! Each context has one [`Live`]. Functions that create and destroy objects update it, and `ibv_close_device` destroys the
//! remaining objects (contract A14). Their C structures remain allocated, because the program may still hold pointers to
//! them.
#![forbid(unsafe_code)]

use super::events::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use trunkline_verbs::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue, VerbsError, XrcDomain,
};

/// The objects of one context, by kind.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) pds: Table<dyn ProtectionDomain>,
    pub(crate) mrs: Table<dyn MemoryRegion>,
    pub(crate) cqs: Table<dyn CompletionQueue>,
    pub(crate) srqs: Table<dyn SharedReceiveQueue>,
    pub(crate) xrcds: Table<dyn XrcDomain>,
    pub(crate) qps: Table<dyn QueuePair>,
}

impl Live {
    /// Destroys all objects. Each is destroyed before the objects that it uses, because the device refuses any other order
    /// (contract I3).
    pub(crate) fn destroy_all(&self) {
        self.qps.destroy_all(|qp| qp.destroy());
        self.srqs.destroy_all(|srq| srq.destroy());
        self.cqs.destroy_all(|cq| cq.destroy());
        self.mrs.destroy_all(|mr| mr.destroy());
        self.pds.destroy_all(|pd| pd.destroy());
        self.xrcds.destroy_all(|xrcd| xrcd.close());
    }
}

/// Objects by the address of their C structure.
#[derive(Debug)]
pub(crate) struct Table<T: ?Sized>(Mutex<HashMap<usize, Arc<T>>>);

impl<T: ?Sized> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Table<T> {
    pub(crate) fn insert(&self, address: usize, object: &Arc<T>) {
        lock(&self.0).insert(address, Arc::clone(object));
    }

    pub(crate) fn remove(&self, address: usize) {
        lock(&self.0).remove(&address);
    }

    /// Destroys all objects. An object that cannot be destroyed is dropped.
    fn destroy_all(&self, destroy: impl Fn(&T) -> Result<(), VerbsError>) {
        let left = std::mem::take(&mut *lock(&self.0));
        #[expect(clippy::iter_over_hash_type, reason = "the objects of one kind do not depend on each other")]
        for object in left.values() {
            let _refused = destroy(object);
        }
    }
}
