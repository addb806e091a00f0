//! Starts both sides as separate processes and ends them together.
//!
//! The server prints its address as one line on standard output. The standard input of both sides is a pipe from this
//! process. When this process ends for any reason, both read end-of-file and stop.

use crate::failure::Failure;
use crate::log;
use crate::signals::{Stop, Why};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a process to exit on request, after which it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Runs both sides with the arguments of this process, and returns the exit status.
pub(crate) fn run(stop: &Stop) -> Result<u8, Failure> {
    let mut server = Half::start("server", &[])?;
    let address = server.listening(stop)?;
    let mut client = Half::start("client", &["--server", &address.to_string()])?;
    let ended = wait_for_either(&mut server, &mut client, stop)?;
    match ended {
        Ended::Client(status) => {
            server.end()?;
            if let Some(signal) = status.signal() {
                log::line(format_args!("demo: the client was ended by signal {signal}"));
            }
            Ok(if status.success() { 0 } else { 1 })
        }
        Ended::Server(status) => {
            log::line(format_args!("demo: the server ended before the client ({status})"));
            // The client detects the failure and reports it.
            client.finish(GRACE)?;
            Ok(1)
        }
        Ended::Asked => {
            client.end()?;
            server.end()?;
            log::line(format_args!("demo: stopped by a signal; both processes have ended"));
            Ok(1)
        }
    }
}

enum Ended {
    Client(ExitStatus),
    Server(ExitStatus),
    Asked,
}

fn wait_for_either(server: &mut Half, client: &mut Half, stop: &Stop) -> Result<Ended, Failure> {
    loop {
        if let Some(status) = client.0.try_wait()? {
            return Ok(Ended::Client(status));
        }
        if let Some(status) = server.0.try_wait()? {
            return Ok(Ended::Server(status));
        }
        if stop.wait(Duration::from_millis(50)) == Some(Why::Signal) {
            return Ok(Ended::Asked);
        }
    }
}

/// A child process, which is killed on drop if it is still running.
struct Half(Child);

impl Half {
    fn start(role: &str, more: &[&str]) -> Result<Self, Failure> {
        let stdout = if role == "server" { Stdio::piped() } else { Stdio::inherit() };
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .args(["--supervised", role])
            .args(more)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .spawn()?;
        Ok(Self(child))
    }

    /// Reads the address of the server. The server prints it when its device is open, so a failure to open the device is
    /// detected here.
    fn listening(&mut self, stop: &Stop) -> Result<SocketAddr, Failure> {
        let mut line = String::new();
        let stdout = self.0.stdout.take().ok_or(Failure::NoServer)?;
        BufReader::new(stdout).read_line(&mut line)?;
        if stop.asked() {
            return Err(Failure::Stopped);
        }
        line.trim()
            .strip_prefix("listening ")
            .and_then(|address| address.parse().ok())
            .ok_or(Failure::NoServer)
    }

    /// Requests the process to stop, and waits until it has exited.
    fn end(&mut self) -> Result<(), Failure> {
        drop(self.0.stdin.take());
        self.finish(GRACE)
    }

    /// Waits until the process has exited, and kills it after `grace`.
    fn finish(&mut self, grace: Duration) -> Result<(), Failure> {
        let give_up = Instant::now() + grace;
        while self.0.try_wait()?.is_none() {
            if Instant::now() > give_up {
                log::line(format_args!("demo: process {} did not end in time and is killed", self.0.id()));
                self.0.kill()?;
                self.0.wait()?;
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        // Errors are ignored. After success, the process has already exited. After a failure, it is killed here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
