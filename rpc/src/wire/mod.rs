//! Formats of the bytes exchanged between nodes, such as frames, metadata and the shapes of types.

pub(crate) mod frame;
pub(crate) mod metadata;
pub(crate) mod method_shapes;
pub(crate) mod name;
pub(crate) mod named;
mod shape_tracer;
pub(crate) mod type_shape;
