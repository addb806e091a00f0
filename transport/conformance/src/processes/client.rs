//! The controlling side of a puppet process.

use super::puppet::ANSWER;
use crate::check::{Deviation, Verdict, check, equal};
use std::process::Child;
use std::time::Duration;
use trunkline_testkit::Process;

/// Time limit for an answer. A puppet that exceeds it is considered stuck.
const ANSWER_AT_MOST: Duration = Duration::from_secs(60);

/// A process that executes verbs on command. Dropping the value kills the process.
#[derive(Debug)]
pub struct Puppet {
    process: Process,
    name: &'static str,
}

impl Puppet {
    /// Takes over a child whose input and output are pipes, and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if the process does not start as a puppet.
    pub fn adopt(name: &'static str, child: Child) -> Verdict<Self> {
        let mut puppet = Self { process: Process::adopt(name, child).with_bound(ANSWER_AT_MOST), name };
        equal(&format!("the first line of {name}"), puppet.answer()?, Ok("ready".to_owned()))?;
        Ok(puppet)
    }

    /// Sends a command without waiting for its answer.
    pub(super) fn tell(&mut self, command: &str) -> Verdict {
        Ok(self.process.tell(command)?)
    }

    /// Returns the next answer: a text, or the errno of a refused verb.
    pub(super) fn answer(&mut self) -> Verdict<Result<String, i32>> {
        let answer = self.process.after(ANSWER)?;
        let (kind, rest) = answer.split_once(' ').unwrap_or((&answer, ""));
        match kind {
            "ok" => Ok(Ok(rest.to_owned())),
            "errno" => Ok(Err(rest.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))),
            _ => Err(Deviation::Failed(format!("{}: {rest}", self.name))),
        }
    }

    /// Sends a command that must succeed. Returns its result.
    ///
    /// # Errors
    /// Returns an error if the verb is refused, or if the process does not answer.
    pub fn does(&mut self, command: &str) -> Verdict<String> {
        self.tell(command)?;
        let name = self.name;
        self.answer()?
            .map_err(|errno| Deviation::Failed(format!("{name}: {command} was refused with errno {errno}")))
    }

    /// Sends a command that must return a number. Returns the number.
    pub(super) fn number(&mut self, command: &str) -> Verdict<u32> {
        let answer = self.does(command)?;
        answer.parse().map_err(|_| Deviation::Failed(format!("{}: {command}: {answer}", self.name)))
    }

    /// Sends a command that must be refused with `errno`.
    pub(super) fn is_refused(&mut self, command: &str, errno: i32) -> Verdict {
        self.tell(command)?;
        let name = self.name;
        match self.answer()? {
            Err(got) => equal(&format!("{name}: the errno of {command}"), got, errno),
            Ok(_) => Err(Deviation::Failed(format!(
                "{name}: {command} was allowed; it must fail with errno {errno}"
            ))),
        }
    }

    /// Polls a queue for the next completion, which must be the successful receive `wr_id`. Returns the TGT's number.
    pub(super) fn receives(&mut self, queue: &str, wr_id: u64) -> Verdict<u32> {
        let got = self.does(&format!("poll {queue}"))?;
        let words: Vec<&str> = got.split(' ').collect();
        let (name, wr_id) = (self.name, wr_id.to_string());
        check(words.len() == 5 && words[0] == wr_id && words[1] == "Success", || {
            format!("{name}: {got} completed instead of receive {wr_id}")
        })?;
        words[4].parse().map_err(|_| Deviation::Failed(format!("{name}: {got}")))
    }

    /// Returns the process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Kills the process with SIGKILL.
    ///
    /// # Errors
    /// Returns an error if the process has already ended.
    pub fn kill(mut self) -> Verdict {
        Ok(self.process.kill()?)
    }

    /// Makes the process exit with open objects.
    pub(super) fn leave(self) -> Verdict {
        Ok(self.process.finish()?)
    }
}
