//! Processes that a test starts and controls. The test writes commands to a process's input, line by line, and waits for
//! lines of its output.
//!
//! The process usually runs the test binary itself ([`same_test`]) or the program under test. There, [`Input`] and
//! [`print_line`] are the other end of the protocol. One thread per output stream reads continuously, so that a process
//! never blocks on a full pipe. Every wait has a time limit.

mod error;
mod input;

pub use error::ProcessError;
pub use input::{Input, NextLine, print_line};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Default time limit of a wait for a line. It allows for a loaded machine.
const BOUND: Duration = Duration::from_secs(120);
/// Pause between checks whether a process has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// Environment variable that is set if a test has its own process.
const ALONE: &str = "TRUNKLINE_TEST_ALONE";

/// Numbers by name, as reported by a process.
pub type Numbers = BTreeMap<String, u64>;

/// A running process. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    /// Lines that were skipped while another line was awaited.
    unread: VecDeque<String>,
    bound: Duration,
}

/// Returns a command that runs one test of this binary in a separate process, without capturing its output. `module` is the
/// test's `module_path!()`.
#[must_use]
pub fn same_test(module: &str, test: &str) -> Command {
    let mut command = same_program();
    command.arg(test_name(module, test)).args(["--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs a test again in a separate process, and fails if the test fails there. Returns true in that process.
///
/// Tests use it to inspect or count resources of the whole process, such as threads, descriptors and heap memory. `module`
/// is the test's `module_path!()`.
///
/// # Panics
/// Panics if the test does not pass in the separate process.
#[must_use]
pub fn runs_alone(module: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = same_test(module, test);
    let output = run(command.env(ALONE, "1"), &[]).expect("the test starts again");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{test} alone: {}\n{stdout}{}", output.status, String::from_utf8_lossy(&output.stderr));
    false
}

/// Returns a command that runs this program again, without arguments.
///
/// # Panics
/// Panics if the path of this program is unknown.
#[must_use]
pub fn same_program() -> Command {
    Command::new(std::env::current_exe().expect("the path of this program"))
}

/// Runs a command with `input` on its standard input, and waits until it ends. Input that the command does not read is
/// dropped.
///
/// # Errors
/// Returns the operating system's error if the command cannot be started or its output cannot be read.
pub fn run(command: &mut Command, input: &[u8]) -> io::Result<Output> {
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        let _rest_not_read = pipe.write_all(input);
    }
    child.wait_with_output()
}

/// Returns the name of a test as used by the test harness, which is its path without the crate.
fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_crate, rest)) => format!("{rest}::{test}"),
        None => test.to_owned(),
    }
}

impl Process {
    /// Starts a process whose standard input and output are connected to this test. Error messages contain `name`.
    ///
    /// # Errors
    /// Returns the operating system's error if the process cannot be started.
    pub fn start(name: impl Into<String>, command: &mut Command) -> Result<Self, ProcessError> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let name = name.into();
        match started {
            Ok(child) => Ok(Self::adopt(name, child)),
            Err(cause) => Err(ProcessError::Start { name, cause }),
        }
    }

    /// Starts a process without input. The lines of its standard output and standard error are read together, and printed
    /// on this test's standard error.
    ///
    /// # Errors
    /// Returns the operating system's error if the process cannot be started.
    pub fn start_program(name: impl Into<String>, command: &mut Command) -> Result<Self, ProcessError> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let name = name.into();
        match started {
            Ok(child) => Ok(Self::adopt(name, child)),
            Err(cause) => Err(ProcessError::Start { name, cause }),
        }
    }

    /// Takes over a child process and those of its streams that are pipes. The child's standard error is also printed on
    /// this test's standard error.
    pub fn adopt(name: impl Into<String>, mut child: Child) -> Self {
        let (sender, output) = channel();
        if let Some(stream) = child.stdout.take() {
            let is_shown = child.stderr.is_some();
            read(stream, sender.clone(), is_shown);
        }
        if let Some(stream) = child.stderr.take() {
            read(stream, sender, true);
        }
        let input = child.stdin.take();
        Self { name: name.into(), child, input, output, unread: VecDeque::new(), bound: BOUND }
    }

    /// Sets the time limit of each wait.
    #[must_use]
    pub const fn with_bound(mut self, bound: Duration) -> Self {
        self.bound = bound;
        self
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to the process's input.
    ///
    /// # Errors
    /// Returns an error if the input was closed or the process has ended.
    pub fn tell(&mut self, line: &str) -> Result<(), ProcessError> {
        let Some(input) = &mut self.input else {
            return Err(ProcessError::InputClosed { name: self.name.clone() });
        };
        // Write the line and its newline in one call, so that the reader does not see a partial line.
        let written = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
        written.map_err(|cause| ProcessError::Input { name: self.name.clone(), cause })
    }

    /// Closes the process's input, which ends most test processes.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Returns the next line of the output.
    ///
    /// # Errors
    /// Returns an error if the process ended or did not print a line within the time limit.
    pub fn line(&mut self) -> Result<String, ProcessError> {
        self.line_until(Instant::now() + self.bound, "a line")
    }

    fn line_until(&mut self, end: Instant, wanted: &str) -> Result<String, ProcessError> {
        if let Some(line) = self.unread.pop_front() {
            return Ok(line);
        }
        let left = end.saturating_duration_since(Instant::now());
        self.output.recv_timeout(left).map_err(|why| ProcessError::Silent {
            name: self.name.clone(),
            wanted: wanted.to_owned(),
            has_ended: why == RecvTimeoutError::Disconnected,
        })
    }

    /// Returns the remainder of the next line that begins with `start`, without surrounding whitespace. Earlier lines are
    /// dropped.
    ///
    /// # Errors
    /// Returns an error if the process ended without such a line, or did not print one within the time limit.
    pub fn after(&mut self, start: &str) -> Result<String, ProcessError> {
        let end = Instant::now() + self.bound;
        loop {
            let line = self.line_until(end, start)?;
            if let Some(rest) = line.strip_prefix(start) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    /// Returns the next line that `is_wanted` accepts, if it arrives within the duration. Earlier lines are dropped.
    pub fn find(&mut self, within: Duration, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        let end = Instant::now() + within;
        loop {
            let line = self.line_until(end, "").ok()?;
            if is_wanted(&line) {
                return Some(line);
            }
        }
    }

    /// Like [`after`](Self::after), but keeps the earlier lines.
    ///
    /// # Errors
    /// Same as [`after`](Self::after).
    pub fn pick(&mut self, start: &str) -> Result<String, ProcessError> {
        let end = Instant::now() + self.bound;
        let mut others = std::mem::take(&mut self.unread);
        let found = loop {
            if let Some(rest) = take(&mut others, start) {
                break Ok(rest);
            }
            match self.line_until(end, start) {
                Ok(line) => others.push_back(line),
                Err(error) => break Err(error),
            }
        };
        self.unread = others;
        found
    }

    /// Writes a command and waits for its answer. The answer is a line that begins with the first word of the command, in
    /// capitals.
    ///
    /// # Errors
    /// Returns an error if the process does not answer.
    pub fn ask(&mut self, command: &str) -> Result<String, ProcessError> {
        self.tell(command)?;
        let word = command.split(' ').next().unwrap_or(command).to_uppercase();
        self.after(&word)
    }

    /// Like [`ask`](Self::ask), for an answer that contains numbers as `name=value`.
    ///
    /// # Errors
    /// Returns an error if the process does not answer, or if a value is not a number.
    pub fn numbers(&mut self, command: &str) -> Result<Numbers, ProcessError> {
        let answer = self.ask(command)?;
        let pairs = answer.split_whitespace().filter_map(|pair| pair.split_once('='));
        let numbers: Option<Numbers> =
            pairs.map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect();
        numbers.ok_or_else(|| ProcessError::NotNumbers { name: self.name.clone(), answer: answer.clone() })
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// Panics if the process has ended and its status was taken.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("a process id");
        kill(Pid::from_raw(id), signal).expect("a child of this process takes signals");
    }

    /// Stops the process with SIGSTOP, and waits until it has stopped. Its threads may continue to run for a moment after
    /// the signal.
    ///
    /// # Panics
    /// Panics if the process does not stop within the time limit.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let end = Instant::now() + self.bound;
        // The state in /proc/PID/status is "T (stopped)", see proc(5).
        while !self.status().lines().any(|line| line.starts_with("State:\tT")) {
            assert!(Instant::now() < end, "{} does not stop", self.name);
            std::thread::sleep(PAUSE);
        }
    }

    /// Continues the process after [`Process::stop`].
    ///
    /// # Panics
    /// Panics if the process has ended and its status was taken.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default()
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn kill(&mut self) -> Result<(), ProcessError> {
        let gone = self.child.kill().and_then(|()| self.child.wait());
        gone.map(drop).map_err(|cause| ProcessError::Wait { name: self.name.clone(), cause })
    }

    /// Waits until the process ends, and returns its exit status. Returns `None` if it does not end within the duration.
    /// Its input remains open.
    ///
    /// # Panics
    /// Panics if the operating system cannot wait for the child.
    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + within;
        loop {
            let status = self.child.try_wait().expect("a child can be waited for");
            if status.is_some() || Instant::now() >= end {
                return status;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Closes the process's input, and waits until the process ends.
    ///
    /// # Errors
    /// Returns an error if the process is still running after the time limit, or ended with a failure.
    pub fn finish(mut self) -> Result<(), ProcessError> {
        self.close_input();
        match self.wait(self.bound) {
            Some(status) if status.success() => Ok(()),
            status => Err(ProcessError::Ended { name: self.name.clone(), status }),
        }
    }

    /// Returns the total and the private resident memory of the process, both in KiB.
    ///
    /// # Errors
    /// Returns an error if the process has ended.
    pub fn resident_kib(&self) -> Result<[u64; 2], ProcessError> {
        let status = self.status();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let both = field("VmRSS:").zip(field("RssAnon:"));
        let (all, own) = both.ok_or_else(|| ProcessError::Ended { name: self.name.clone(), status: None })?;
        Ok([all, own])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

fn take(lines: &mut VecDeque<String>, start: &str) -> Option<String> {
    let place = lines.iter().position(|line| line.starts_with(start))?;
    let line = lines.remove(place)?;
    line.strip_prefix(start).map(|rest| rest.trim().to_owned())
}

/// Reads lines in a thread, which ends at the end of the stream.
fn read(stream: impl Read + Send + 'static, lines: Sender<String>, is_shown: bool) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if is_shown {
                eprintln!("| {line}");
            }
            // Continue to read if the receiver was dropped, because the process must not block on its output.
            let _ = lines.send(line);
        }
    });
}

#[cfg(test)]
mod tests;
