//! Honest nodes. An attack sees them as processes with an address and a log.

use crate::{Outcome, Plan};
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use trunkline_testkit::{Claims, Folder, Numbers, Process, same_program};

/// Port on which honest nodes listen. It is known to an attacker.
pub(crate) const PORT: u16 = 7471;

/// Time limit for a node to serve or to fail.
const BOUND: Duration = Duration::from_secs(20);

/// Settings with which a node is started.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    kind: &'static str,
    ip: IpAddr,
    port: u16,
    runtime: PathBuf,
    log: PathBuf,
    arguments: Vec<String>,
    capture: Option<PathBuf>,
    prefix: Vec<String>,
    certificates: Option<PathBuf>,
    program: PathBuf,
}

impl Setup {
    /// Returns settings for a node at a new address. Nodes that use the same folder share a runtime directory, which the
    /// attacker cannot open.
    pub(crate) fn new(folder: &Folder, plan: &Plan) -> Self {
        let ip = plan.address(false);
        Self {
            kind: plan.kind(),
            ip,
            port: PORT,
            runtime: folder.join("runtime"),
            log: folder.join(format!("{ip}.log")),
            arguments: Vec::new(),
            capture: None,
            prefix: Vec::new(),
            certificates: plan.identities.then(|| folder.path().to_owned()),
            program: plan.nodes.clone().unwrap_or_else(|| same_program().get_program().into()),
        }
    }

    /// Returns settings for another node at the same address and another port.
    pub(crate) fn sibling(&self) -> Self {
        let mut sibling = self.clone();
        sibling.port += 1;
        sibling.log.set_extension("sibling.log");
        sibling
    }

    /// Moves the node to the servers' network namespace, if `plan` has one.
    pub(crate) fn far(mut self, plan: &Plan) -> Self {
        if let Some(far) = &plan.far {
            self.ip = plan.address(true);
            self.runtime.set_extension("far");
            self.prefix = vec!["nsenter".to_owned(), format!("--net={}", far.display())];
        }
        self
    }

    pub(crate) fn pollers(mut self, pollers: u16) -> Self {
        self.arguments.extend(["--pollers".to_owned(), pollers.to_string()]);
        self
    }

    /// Makes the node misbehave as `name` states.
    pub(crate) fn hostile(mut self, name: &str) -> Self {
        self.arguments.extend(["--hostile".to_owned(), name.to_owned()]);
        self
    }

    /// Captures the node's packets.
    pub(crate) fn capture(mut self, file: &Path) -> Self {
        self.capture = Some(file.to_owned());
        self
    }

    /// Sets a runtime directory other than the folder's.
    pub(crate) fn runtime(mut self, directory: &Path) -> Self {
        directory.clone_into(&mut self.runtime);
        self
    }

    /// Starts the node through another program, such as `prlimit`. `prefix` contains the program and its arguments.
    pub(crate) fn within(mut self, prefix: &[&str]) -> Self {
        self.prefix = prefix.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Starts the process without waiting for it.
    pub(crate) fn spawn(&self) -> Outcome<Process> {
        std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&self.runtime)?;
        let mut command = match self.prefix.as_slice() {
            [] => Command::new(&self.program),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&self.program);
                command
            }
        };
        command.args(["node", &self.address().to_string(), "--connections", self.kind]);
        command.args(&self.arguments);
        if let Some(folder) = &self.certificates {
            super::certificates::issue(folder)?;
            command.arg("--certificates").arg(folder);
        }
        command.env("TRUNKLINE_RUNTIME_DIR", &self.runtime).stderr(File::create(&self.log)?);
        if let Some(capture) = &self.capture {
            command.env("TRUNKLINE_PCAP", capture);
        }
        Ok(Process::start(format!("the node at {}", self.ip), &mut command)?)
    }

    /// Starts the node and waits until it listens.
    pub(crate) fn start(&self) -> Outcome<Party> {
        let mut process = self.spawn()?;
        process.after("READY")?;
        Ok(Party { process, address: self.address(), log: self.log.clone() })
    }

    /// Starts the node, and waits until it serves or ends.
    pub(crate) fn attempt(&self) -> Outcome<Attempt> {
        let mut process = self.spawn()?;
        let serves = process.find(BOUND, |line| line.starts_with("READY")).is_some();
        let status = if serves { None } else { process.wait(BOUND) };
        let log = std::fs::read_to_string(&self.log)?;
        let last = log.lines().last().unwrap_or_default().to_owned();
        Ok(Attempt { process, serves, status, last })
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

/// The outcome of a start that may have failed.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) process: Process,
    pub(crate) serves: bool,
    /// The exit status, if the node ended within the time limit and never served.
    status: Option<ExitStatus>,
    /// Last line on standard error.
    pub(crate) last: String,
}

impl Attempt {
    /// Returns true if the node ended with an error message and not because of a signal.
    pub(crate) fn is_refused_clearly(&self) -> bool {
        self.status.and_then(|status| status.code()).is_some_and(|code| code > 0) && !self.last.is_empty()
    }
}

impl Display for Attempt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.status {
            _ if self.serves => f.write_str("serves"),
            Some(status) => write!(f, "{status}: {}", self.last),
            None => write!(f, "still running: {}", self.last),
        }
    }
}

/// An honest node.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    log: PathBuf,
}

impl Party {
    /// Makes the first call to a server, which opens a session. Returns the duration of the call in microseconds.
    pub(crate) fn first(&mut self, server: SocketAddr) -> Outcome<u64> {
        let numbers = self.process.numbers(&format!("first {server}"))?;
        if numbers["failed"] != 0 {
            return Err(format!("{} could not call {server}", self.address).into());
        }
        Ok(numbers["us"])
    }

    pub(crate) fn load(&mut self, server: SocketAddr) -> Outcome<()> {
        self.process.ask(&format!("load {server}"))?;
        Ok(())
    }

    pub(crate) fn tally(&mut self) -> Outcome<Numbers> {
        Ok(self.process.numbers("tally")?)
    }

    /// Returns the peak memory use of the process, in MiB.
    pub(crate) fn most_mib(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("it has ended")?;
        Ok(line.split_whitespace().next().unwrap_or_default().parse::<u64>()? >> 10)
    }

    /// Returns a line of the node's log that contains all of the texts.
    pub(crate) fn log_line(&self, texts: &[&str]) -> Outcome<Option<String>> {
        let log = std::fs::read_to_string(&self.log)?;
        let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
        Ok(log.lines().find(has_all).map(str::to_owned))
    }

    /// Returns the number of lines in the node's log that contain a text.
    pub(crate) fn logged(&self, text: &str) -> Outcome<usize> {
        Ok(std::fs::read_to_string(&self.log)?.lines().filter(|line| line.contains(text)).count())
    }
}

/// A server, and a client that calls it continuously.
#[derive(Debug)]
pub(crate) struct PartyPair {
    pub(crate) server: Party,
    pub(crate) client: Party,
    pub(crate) capture: PathBuf,
    pub(crate) folder: Folder,
}

impl PartyPair {
    /// Starts the server and the client. Captures the client's packets if `with_capture` is true.
    pub(crate) fn start(plan: &Plan, with_capture: bool) -> Outcome<Self> {
        let folder = Folder::new()?;
        let capture = folder.join("client.pcap");
        let server = Setup::new(&folder, plan).far(plan).pollers(plan.pollers).start()?;
        let setup = Setup::new(&folder, plan);
        let mut client = if with_capture { setup.capture(&capture) } else { setup }.start()?;
        client.first(server.address)?;
        client.load(server.address)?;
        Ok(Self { server, client, capture, folder })
    }

    /// Reports the claim that a new peer can call the server.
    pub(crate) fn serves_newcomer(&self, plan: &Plan, findings: &mut Claims, name: &str) -> Outcome<()> {
        let outcome = Setup::new(&self.folder, plan).start()?.first(self.server.address);
        findings.claim(outcome.is_ok(), name, &format!("{outcome:?}"));
        Ok(())
    }

    /// Returns the number of sessions established between the two nodes, according to the client's log.
    pub(crate) fn sessions(&self) -> Outcome<usize> {
        self.client.logged("session up")
    }
}
