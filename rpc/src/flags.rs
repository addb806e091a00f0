//! Command-line flags that programs on this library have in common: which device their node uses.
//! With the feature `clap`; used by the programs of `examples`.

use crate::NodeBuilder;
use trunkline_transport::{Connections, NicOptions, ProviderChoice};

/// Which device a node uses; flatten it into the arguments of a program, and hand it to
/// [`NodeBuilder::device_flags`].
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DeviceFlags {
    /// Which RDMA devices: auto (a NIC that has the address, else software), require (a NIC or nothing), soft
    /// [env: TRUNKLINE_PROVIDER] [default: auto].
    #[arg(long, value_name = "PROVIDER", global = true)]
    pub provider: Option<ProviderChoice>,
    /// Name of the NIC, as ibv_devices lists it [env: TRUNKLINE_DEVICE] [default: the first that has the address].
    #[arg(long, value_name = "NAME", global = true)]
    pub device: Option<String>,
    /// Index of the NIC's GID whose address is used [env: TRUNKLINE_GID_INDEX] [default: that of the address].
    #[arg(long, value_name = "N", global = true)]
    pub gid_index: Option<u16>,
    /// What connections are made of: auto (XRC if the device has it, else RC), xrc, rc. All nodes need the same
    /// [env: TRUNKLINE_CONNECTIONS] [default: auto].
    #[arg(long, value_name = "KIND", global = true)]
    pub connections: Option<Connections>,
}

impl NodeBuilder {
    /// What the flags say; the environment for what they do not.
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
