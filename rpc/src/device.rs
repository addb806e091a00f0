//! Options for the device of a node, for [`NodeBuilder`](crate::NodeBuilder).

#[cfg(feature = "clap")]
pub use crate::flags::DeviceFlags;
pub use trunkline_transport::{Connections, NicOptions, NoNic, Pinning, ProviderChoice};
pub use trunkline_verbs::PathChoice;
