//! Processes that an example starts of itself: told line by line, answering line by line.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

/// How long an answer may take on a loaded machine.
const BOUND: Duration = Duration::from_secs(60);

/// Named numbers.
pub(super) type Numbers = BTreeMap<String, u64>;

/// A process, killed when dropped.
#[derive(Debug)]
pub(super) struct Process {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
}

#[allow(dead_code, reason = "each example uses its part")]
impl Process {
    /// Starts this program again.
    pub(super) fn start(name: &str, arguments: &[String]) -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
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
        Ok(Self { name: name.to_owned(), child, input, output })
    }

    /// The next line that begins with a word; what stands behind it. Lines before it are skipped.
    pub(super) fn after(&self, word: &str) -> Result<String, Box<dyn Error>> {
        loop {
            let line = self.line()?;
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    /// Tells a word and waits for the answer to it: the same in capitals.
    pub(super) fn ask(&mut self, question: &str) -> Result<String, Box<dyn Error>> {
        self.tell(question)?;
        let word = question.split(' ').next().unwrap_or(question).to_uppercase();
        self.after(&word)
    }

    /// Asks for numbers: `name=value` each.
    pub(super) fn numbers(&mut self, question: &str) -> Result<Numbers, Box<dyn Error>> {
        let answer = self.ask(question)?;
        let pairs = answer.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| Ok((name.to_owned(), value.parse()?))).collect()
    }

    pub(super) fn tell(&mut self, what: &str) -> Result<(), Box<dyn Error>> {
        let input = self.input.as_mut().ok_or("the process was told to end")?;
        let told = writeln!(input, "{what}");
        told.map_err(|error| self.gone(&error))
    }

    pub(super) fn line(&self) -> Result<String, Box<dyn Error>> {
        self.output.recv_timeout(BOUND).map_err(|error| self.gone(&error))
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) fn kill(&mut self) -> Result<(), Box<dyn Error>> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Memory that it has in RAM, in KiB: all of it, and what is its own alone.
    pub(super) fn resident_kib(&self) -> Result<[u64; 2], Box<dyn Error>> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let field = |name: &str| -> Result<u64, Box<dyn Error>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            Ok(number.ok_or("no resident memory; it has ended")?.parse()?)
        };
        Ok([field("VmRSS:")?, field("RssAnon:")?])
    }

    fn gone(&self, error: &dyn Display) -> Box<dyn Error> {
        format!("{} does not answer, it crashed or hangs: {error}", self.name).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// What such a process is told, without waiting for it.
#[derive(Debug)]
pub(super) struct Questions(Receiver<String>);

/// The next line, if any.
#[derive(Debug)]
pub(super) enum Question {
    Line(String),
    None,
    /// Standard input has ended: so should the process.
    End,
}

impl Questions {
    /// Reads standard input from now on.
    pub(super) fn read() -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                if line.is_err() || line.is_ok_and(|line| sender.send(line).is_err()) {
                    return;
                }
            }
        });
        Self(receiver)
    }

    pub(super) fn next(&self) -> Question {
        match self.0.try_recv() {
            Ok(line) => Question::Line(line),
            Err(TryRecvError::Empty) => Question::None,
            Err(TryRecvError::Disconnected) => Question::End,
        }
    }
}
