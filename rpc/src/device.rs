//! Which device a node runs on, and how: what [`NodeBuilder`](crate::NodeBuilder) takes for that.

#[cfg(feature = "clap")]
pub use crate::flags::DeviceFlags;
pub use trunkline_transport::{Connections, NicOptions, NoNic, Pinning, ProviderChoice};
