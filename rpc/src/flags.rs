//! Command-line flags that choose a node's device. Needs the feature `clap`.

use crate::node::NodeBuilder;
use trunkline_transport::{Connections, NicOptions, ProviderChoice};

/// Command-line flags that choose a node's device. Flatten them into a program's arguments and pass them to
/// [`NodeBuilder::device_flags`].
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DeviceFlags {
    /// RDMA devices to use: auto (a NIC that has the address, otherwise software), require (a NIC or none), soft
    /// [env: TRUNKLINE_PROVIDER] [default: auto].
    #[arg(long, value_name = "PROVIDER", global = true)]
    pub provider: Option<ProviderChoice>,
    /// Name of the NIC, as in the output of ibv_devices [env: TRUNKLINE_DEVICE] [default: the first that has the address].
    #[arg(long, value_name = "NAME", global = true)]
    pub device: Option<String>,
    /// Index of the NIC's GID whose address the node uses [env: TRUNKLINE_GID_INDEX] [default: the index of the address].
    #[arg(long, value_name = "N", global = true)]
    pub gid_index: Option<u16>,
    /// Kind of connections: auto (XRC if the device supports it, otherwise RC), xrc, rc. All nodes need the same
    /// [env: TRUNKLINE_CONNECTIONS] [default: auto].
    #[arg(long, value_name = "KIND", global = true)]
    pub connections: Option<Connections>,
}

impl NodeBuilder {
    /// Applies the flags that were given. The environment decides the others when the node starts.
    pub fn device_flags(self, flags: &DeviceFlags) -> Self {
        let mut builder = self.nic(NicOptions { device: flags.device.clone(), gid_index: flags.gid_index });
        if let Some(provider) = flags.provider {
            builder = builder.provider(provider);
        }
        if let Some(connections) = flags.connections {
            builder = builder.connections(connections);
        }
        builder
    }
}
