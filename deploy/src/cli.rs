//! Command line of `trunkctl`.
//!
//! To add a subcommand, write a module with the arguments and a `run` function, and add a variant to the command enum and
//! an arm to [`Cli::run`].

#[cfg(feature = "identity")]
use crate::keys;
use crate::{device, doctor, health, nodes, pcap_check, ping, policy, record, top};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Checks hosts; pings nodes and asks for their health; lists running nodes, their calls and their last events; inspects
/// captures of RoCEv2 packets; lists, removes and restores software devices; makes certificates; checks policies.
#[derive(Debug, Parser)]
#[command(name = "trunkctl", version, arg_required_else_help = true, after_help = EXIT_STATUS)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "\
Exit status: 0 done, without faults; 1 a fault was found, the operation failed, or a call is denied; 2 a file
cannot be read or is invalid, or the command line is invalid. `health` has those of probes.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Check capture files (pcap and pcapng)
    #[command(subcommand)]
    Pcap(PcapCommand),
    /// List software devices, remove those that are in use, and restore them
    #[command(subcommand)]
    Device(device::DeviceCommand),
    Nodes(nodes::NodesArguments),
    Top(top::TopArguments),
    Record(record::RecordArguments),
    Ping(ping::PingArguments),
    Health(health::HealthArguments),
    Doctor(doctor::DoctorArguments),
    /// Make, renew and show certificates of nodes
    #[cfg(feature = "identity")]
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Check policies, which say which peers may make which calls
    #[command(subcommand)]
    Policy(PolicyCommand),
}

#[derive(Debug, Subcommand)]
enum PcapCommand {
    Check(pcap_check::CheckArguments),
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Check(policy::CheckArguments),
}

impl Cli {
    /// Runs the chosen subcommand and returns the exit status described in the help.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Pcap(PcapCommand::Check(arguments)) => pcap_check::run(&arguments),
            Command::Device(command) => device::run(&command),
            Command::Nodes(arguments) => nodes::run(&arguments),
            Command::Top(arguments) => top::run(&arguments),
            Command::Record(arguments) => record::run(&arguments),
            Command::Ping(arguments) => ping::run(&arguments),
            Command::Health(arguments) => health::run(&arguments),
            Command::Doctor(arguments) => doctor::run(&arguments),
            #[cfg(feature = "identity")]
            Command::Keys(command) => keys::run(&command),
            Command::Policy(PolicyCommand::Check(arguments)) => policy::run(&arguments),
        }
    }
}

/// Prints the requested help or version, or the error in an invalid command line, and returns the exit status.
#[must_use]
pub fn refuse(error: &clap::Error) -> ExitCode {
    // A write error is ignored, because it cannot be reported.
    let _closed = error.print();
    let is_probe = std::env::args_os().nth(1).is_some_and(|command| command == "health");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        // For a probe, status 2 means that there is no session.
        _ if is_probe => ExitCode::FAILURE,
        _ => ExitCode::from(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn link_local_addresses_of_devices_are_refused_with_remedy() {
        for operation in ["remove", "restore"] {
            let parse = |address| Cli::try_parse_from(["trunkctl", "device", operation, address]);
            for address in ["fe80::1%3", "fe80::1%eth0", "fe80::1"] {
                let error = parse(address).unwrap_err().to_string();
                assert!(error.contains("is link-local") && error.contains("fd00::/8"), "{error}");
            }
            assert!(parse("10.0.0.1%eth0").is_err());
            parse("fd00::1").unwrap();
        }
    }
}
