//! Puppets of the conformance suite, which are further processes of this program.

use super::host::Host;
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::process::{Child, Stdio};
use trunkline_conformance::{Bench, Port, ProcessBench, serve_puppet};
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_testkit::{same_program, same_test};
use trunkline_verbs::{CompletionStatus, VerbsError};

/// Environment variable that makes this program a puppet at the address in its value.
pub(crate) const PUPPET: &str = "TRUNKLINE_TEST_PUPPET";

/// Environment variable with the runtime directory that the processes of one item share.
const MEETING: &str = "TRUNKLINE_RUNTIME_DIR";
/// Environment variable with the path of puppets' packets.
const LINK: &str = "TRUNKLINE_LINK";
/// Environment variable with the response to packets for an unknown SRQ.
const UNKNOWN_SRQ: &str = "TRUNKLINE_UNKNOWN_SRQ";
/// Environment variable with the faults that puppets inject.
const FAULTS: &str = "TRUNKLINE_FAULTS";

/// The software device with puppets, which share a separate runtime directory. The directory is removed on drop.
pub(crate) struct Soft {
    /// Module and name of the test that serves as the puppet, if the program is a test binary.
    test: Option<[&'static str; 2]>,
    host: Host,
    faults: Option<&'static str>,
    path: PathChoice,
    /// Value of [`UNKNOWN_SRQ`] for the puppets.
    unknown_srq: Option<&'static str>,
}

impl Soft {
    /// Runs a test of the module as the puppet, in further processes of the test binary.
    pub(crate) fn from_test(module: &'static str, name: &'static str) -> Self {
        Self::new(Some([module, name]))
    }

    /// Runs this program as the puppet, with [`PUPPET`] set.
    pub(crate) fn from_program() -> Self {
        Self::new(None)
    }

    fn new(test: Option<[&'static str; 2]>) -> Self {
        Self { test, host: Host::new(), faults: None, path: PathChoice::Udp, unknown_srq: None }
    }

    /// Makes all processes lose packets according to this plan.
    pub(crate) fn with_faults(self, plan: &'static str) -> Self {
        Self { faults: Some(plan), ..self }
    }

    pub(crate) fn by_memory(self) -> Self {
        Self { path: PathChoice::Shm, ..self }
    }

    /// Makes puppets drop packets for an unknown SRQ.
    pub(crate) fn dropping_unknown(self) -> Self {
        Self { unknown_srq: Some("drop"), ..self }
    }

    /// Returns the host that the processes share.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }
}

/// Serves as a puppet at the address in [`PUPPET`].
pub(crate) fn serve() -> io::Result<()> {
    let address = std::env::var(PUPPET).ok().and_then(|text| text.parse().ok());
    let address: IpAddr = address.ok_or_else(|| io::Error::other(format!("{PUPPET} holds no address")))?;
    let options = SoftOptions::from_env().map_err(io::Error::other)?;
    let port = super::suite::open(SoftOptions { addresses: vec![address], ..options });
    serve_puppet(port.map_err(io::Error::other)?, BufReader::new(io::stdin()), io::stdout())
}

impl Bench for Soft {
    fn provider(&self) -> &str {
        "softrdma"
    }

    fn link(&self) -> &str {
        "between processes"
    }

    fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
        Ok([self.open_near()?, self.open_near()?])
    }

    fn xrc_violation(&self) -> &[CompletionStatus] {
        // Such a send has few retries. With packet loss, all of them may be lost.
        const STATUSES: [CompletionStatus; 2] =
            [CompletionStatus::RemoteInvalidRdRequest, CompletionStatus::RetryExceeded];
        if self.faults.is_some() { &STATUSES } else { &STATUSES[..1] }
    }
}

impl ProcessBench for Soft {
    fn open_near(&self) -> Result<Port, VerbsError> {
        super::suite::open(SoftOptions {
            faults: self.faults.map(|plan| plan.parse().expect("a plan of faults")),
            path: self.path,
            ..self.host.options()
        })
    }

    fn far_address(&self) -> IpAddr {
        super::address()
    }

    fn start_puppet(&self, address: IpAddr) -> io::Result<Child> {
        let mut command = match self.test {
            Some([module, name]) => same_test(module, name),
            None => same_program(),
        };
        for (name, value) in [(FAULTS, self.faults), (UNKNOWN_SRQ, self.unknown_srq)] {
            command.envs(value.map(|value| (name, value)));
        }
        command
            .env(LINK, if self.path == PathChoice::Shm { "shm" } else { "udp" })
            .env(PUPPET, address.to_string())
            .env(MEETING, self.host.runtime())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    }
}
