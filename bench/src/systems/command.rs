//! Runs a program of another project on a core, for a limited time. The program is killed when this program ends.

use crate::meter::pin;
use std::io::{BufRead as _, BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Time for a server to start listening before its client is started. These programs do not report that they listen.
pub(super) const HEAD_START: Duration = Duration::from_millis(400);
/// Maximum length of a line read from a program, in bytes.
const LINE: u64 = 1 << 16;

/// A running program, which is killed on drop.
pub(super) struct Running {
    name: String,
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Starts a program on a core. Both of its output streams are read line by line.
    ///
    /// # Errors
    /// Returns an error if the program is not installed or does not start.
    pub(super) fn start(command: &mut Command, core: Option<usize>) -> Result<Self, String> {
        let name = Path::new(command.get_program());
        let name = name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process inherits the affinity of the thread that starts it.
        let spawned = thread::scope(|scope| {
            let spawn = || {
                core.map_or(Ok(()), pin::to)?;
                command.spawn().map_err(|error| match error.kind() {
                    ErrorKind::NotFound => format!("{name} is not installed"),
                    _ => format!("cannot start {name}: {error}"),
                })
            };
            scope.spawn(spawn).join().unwrap_or_else(|_| Err(format!("cannot start {name}")))
        });
        let mut child = spawned?;
        let (sender, lines) = mpsc::channel();
        let outputs = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut output = BufReader::new(output);
                let mut line = Vec::new();
                while output.by_ref().take(LINE).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                        break;
                    }
                    line.clear();
                }
            });
        }
        Ok(Self { name, child, lines })
    }

    /// Waits for the first line that `parse` accepts.
    ///
    /// # Errors
    /// Returns an error with the last line if the program exits without such a line, or if it takes longer than `limit`.
    pub(super) fn first<T>(
        &mut self,
        limit: Duration,
        mut parse: impl FnMut(&str) -> Option<T>,
    ) -> Result<T, String> {
        let (until, mut last) = (Instant::now() + limit, String::new());
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(value) = parse(&line) {
                        return Ok(value);
                    }
                    if !line.trim().is_empty() {
                        last = line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("{} has no result after {} s", self.name, limit.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().map_err(|error| error.to_string())?;
                    return Err(format!("{} has no result, {status}: {last}", self.name));
                }
            }
        }
    }

    /// Waits up to `limit` until the program exits, so that it can clean up.
    pub(super) fn end(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        while Instant::now() < until && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Most programs have already exited.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        Running::start(Command::new("sh").args(["-c", script]), None).unwrap()
    }

    #[test]
    fn first_parsed_line_is_result() {
        let mut running = shell("echo 1.5us >&2; sleep 60 & echo none; echo 2; echo 3; wait");
        assert_eq!(running.first(Duration::from_secs(60), |line| line.parse::<u32>().ok()), Ok(2));
    }

    #[test]
    fn program_without_result_is_named_with_its_last_line() {
        let why = shell("echo no device; exit 3").first(Duration::from_secs(60), |_| None::<()>);
        let why = why.unwrap_err();
        assert!(why.contains("sh has no result") && why.contains("no device"), "{why}");
        let why = shell("sleep 60").first(Duration::ZERO, |_| None::<()>).unwrap_err();
        assert!(why.contains("after 0 s"), "{why}");
        let absent = Running::start(&mut Command::new("no-such-program-of-anybody"), None);
        assert!(absent.err().unwrap().contains("is not installed"));
    }
}
