//! The process's end of the line protocol, for a process that a test has started.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Standard input, read by a thread. A process can check for a command without blocking.
#[derive(Debug)]
pub struct Input(Receiver<String>);

/// The result of reading a line of standard input.
#[derive(Debug, PartialEq, Eq)]
pub enum NextLine {
    /// A line.
    Line(String),
    /// No line is available now.
    NotYet,
    /// The input has ended. The process should end too.
    End,
}

impl Input {
    /// Starts reading standard input. Must be called only once per process.
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

    /// Returns the next line without blocking.
    #[must_use]
    pub fn next_line(&self) -> NextLine {
        match self.0.try_recv() {
            Ok(line) => NextLine::Line(line),
            Err(TryRecvError::Empty) => NextLine::NotYet,
            Err(TryRecvError::Disconnected) => NextLine::End,
        }
    }

    /// Waits for the next line. Returns `None` at the end of the input.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        self.0.recv().ok()
    }
}

/// Prints a line to standard output and flushes it. A newline precedes the line, because the test harness may have printed
/// the name of the running test.
///
/// # Panics
/// Panics if standard output is closed, which happens when the test that reads it has ended.
pub fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "\n{text}").and_then(|()| out.flush());
    written.expect("the test reads what its processes print");
}
