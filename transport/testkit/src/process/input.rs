//! The other end of the line protocol, inside a process started by a test.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Standard input, read by a thread so that a process can check for a command without blocking.
#[derive(Debug)]
pub struct Input(Receiver<String>);

/// The result of reading a line of standard input.
#[derive(Debug, PartialEq, Eq)]
pub enum NextLine {
    /// A line.
    Line(String),
    /// No line is available at the moment.
    NotYet,
    /// The input has ended, so the process should end.
    End,
}

impl Input {
    /// Starts to read standard input. Call it once per process.
    #[must_use]
    pub fn open() -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(receiver)
    }

    /// Returns the next line if one is available.
    #[must_use]
    pub fn next_line(&self) -> NextLine {
        match self.0.try_recv() {
            Ok(line) => NextLine::Line(line),
            Err(TryRecvError::Empty) => NextLine::NotYet,
            Err(TryRecvError::Disconnected) => NextLine::End,
        }
    }

    /// Waits for the next line; `None` at the end of the input.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        self.0.recv().ok()
    }
}

/// Prints a line to standard output and flushes it. Starts a new line first, because the test harness may have printed
/// the name of the running test.
///
/// # Panics
/// Panics if standard output is closed, because the test that reads it has ended.
pub fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "\n{text}").and_then(|()| out.flush());
    written.expect("the test reads what its processes print");
}
