//! The two processes of the exchange, as `run` sees them.

use crate::Outcome;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey};

/// How long an answer may take on a loaded machine.
const BOUND: Duration = Duration::from_secs(60);

/// Named numbers.
pub(super) type Numbers = BTreeMap<String, u64>;

/// One side, ended when dropped.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) address: IpAddr,
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

impl Side {
    pub(super) fn start(address: IpAddr, peer: IpAddr, capture: Option<&Path>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("node").arg(address.to_string()).arg(peer.to_string());
        command.args(capture);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (sender, output) = channel();
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Ok(Self { address, child, input, output })
    }

    /// Waits until it works; answers the QPs that no forged packet may name, and the memory that none has
    /// a right to.
    pub(super) fn ready(&self) -> Outcome<(Vec<u32>, Vec<RemoteAddress>)> {
        let (mut bystanders, mut forbidden) = (Vec::new(), Vec::new());
        loop {
            let line = self.line()?;
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["READY"] => return Ok((bystanders, forbidden)),
                ["BYSTANDER", number] => bystanders.push(number.parse()?),
                ["FORBIDDEN", rkey, address] => {
                    let address = IoAddress(address.parse()?);
                    forbidden.push(RemoteAddress { address, rkey: Rkey(rkey.parse()?) });
                }
                _ => {}
            }
        }
    }

    /// Asks for numbers.
    pub(super) fn ask(&mut self, question: &str) -> Outcome<Numbers> {
        self.tell(question)?;
        let head = question.to_uppercase();
        loop {
            let line = self.line()?;
            let Some(rest) = line.strip_prefix(&head) else { continue };
            let pairs = rest.split_whitespace().filter_map(|pair| pair.split_once('='));
            return pairs.map(|(name, value)| Ok((name.to_owned(), value.parse()?))).collect();
        }
    }

    pub(super) fn tell(&mut self, what: &str) -> Outcome<()> {
        let input = self.input.as_mut().ok_or("the process was told to end")?;
        writeln!(input, "{what}").map_err(|error| self.gone(&error))?;
        Ok(())
    }

    /// Memory that it has in RAM, in KiB.
    pub(super) fn resident_kib(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS; it has ended")?;
        Ok(number.parse()?)
    }

    fn line(&self) -> Outcome<String> {
        self.output.recv_timeout(BOUND).map_err(|error| self.gone(&error))
    }

    fn gone(&self, error: &dyn std::fmt::Display) -> Box<dyn std::error::Error> {
        format!("the process at {} does not answer, it crashed or hangs: {error}", self.address).into()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
