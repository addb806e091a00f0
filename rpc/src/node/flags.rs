//! Command-line flags that select a node's device. Requires the feature `clap`.

use crate::node::NodeBuilder;
use trunkline_transport::{Connections, NicOptions, ProviderChoice};
use trunkline_verbs::PathChoice;

// clap would use the doc comment of a flattened struct as the program's description, so this one is only for rustdoc.
#[cfg_attr(
    doc,
    doc = "Command-line flags that choose a node's device. Flatten them into a program's arguments and pass them to [`NodeBuilder::device_flags`]."
)]
#[cfg_attr(not(doc), allow(missing_docs))]
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DeviceFlags {
    /// RDMA devices to use: auto (a NIC that has the address, otherwise software), require (a NIC only), soft (software
    /// only) [env: TRUNKLINE_PROVIDER] [default: auto].
    #[arg(long, value_name = "PROVIDER", global = true)]
    pub provider: Option<ProviderChoice>,
    /// Name of the NIC, as in the output of ibv_devices [env: TRUNKLINE_DEVICE] [default: the first that has the address].
    #[arg(long, value_name = "NAME", global = true)]
    pub device: Option<String>,
    /// Index of the NIC's GID whose address the node uses [env: TRUNKLINE_GID_INDEX] [default: the index of the address].
    #[arg(long, value_name = "N", global = true)]
    pub gid_index: Option<u16>,
    /// Kind of connections: auto (XRC if the device supports it, otherwise RC), xrc, rc. All nodes need the same kind [env:
    /// TRUNKLINE_CONNECTIONS] [default: auto].
    #[arg(long, value_name = "KIND", global = true)]
    pub connections: Option<Connections>,
    /// Path to other processes on this host, for the software device: auto (shared memory if both processes support it,
    /// otherwise UDP), udp, shm (shared memory only) [env: TRUNKLINE_LINK] [default: auto].
    #[arg(long, value_name = "PATH", global = true)]
    pub link: Option<PathChoice>,
}

impl NodeBuilder {
    /// Applies the flags that were given. Settings without a flag come from the environment when the node starts.
    pub fn device_flags(self, flags: &DeviceFlags) -> Self {
        let mut builder = self.nic(NicOptions { device: flags.device.clone(), gid_index: flags.gid_index });
        if let Some(provider) = flags.provider {
            builder = builder.provider(provider);
        }
        if let Some(connections) = flags.connections {
            builder = builder.connections(connections);
        }
        if let Some(link) = flags.link {
            builder = builder.link(link);
        }
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;
    use clap::{CommandFactory as _, Parser};

    /// Does what the program does.
    ///
    /// In more words.
    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        device: DeviceFlags,
    }

    #[test]
    fn flattened_flags_keep_programs_description() {
        let command = Program::command();
        let text =
            |about: Option<&clap::builder::StyledStr>| about.map(ToString::to_string).unwrap_or_default();
        assert_eq!(text(command.get_about()), "Does what the program does");
        assert!(text(command.get_long_about()).contains("In more words."));
        let help = Program::command().render_long_help().to_string();
        assert!(help.contains("--provider <PROVIDER>") && !help.contains("NodeBuilder"), "{help}");
    }

    #[test]
    fn link_flag_selects_path() {
        let parse = |link| Program::try_parse_from(["program", "--provider", "soft", "--link", link]);
        let flags = parse("shm").unwrap().device;
        // The link cannot be combined with faults, so the node does not start.
        let builder = Node::builder().device_flags(&flags).faults("drop=0.01,seed=7").unwrap();
        let refused = builder.start().unwrap_err().to_string();
        assert!(refused.contains("setting link") && refused.contains("faults"), "{refused}");
        assert_eq!(parse("udp").unwrap().device.link, Some(PathChoice::Udp));
        assert!(parse("tcp").unwrap_err().to_string().contains("`shm`"));
    }
}
