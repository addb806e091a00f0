//! The bytes between nodes: frames, metadata, names and hashes.

pub(crate) mod frame;
pub(crate) mod metadata;
pub(crate) mod method_shapes;
pub(crate) mod name;
pub(crate) mod named;
pub(crate) mod schema;
