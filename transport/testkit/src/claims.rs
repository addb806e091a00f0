//! The result of a fault rig: one line per claim, and the exit status of the program.

use std::error::Error;
use std::process::ExitCode;

/// The claims of one run. Each is printed as `pass RUN-NAME (measured)` or `fail RUN-NAME: measured`.
#[derive(Debug)]
pub struct Claims {
    run: String,
    failed: usize,
}

impl Claims {
    /// Creates the claims of the run with this name.
    #[must_use]
    pub fn new(run: impl Into<String>) -> Self {
        Self { run: run.into(), failed: 0 }
    }

    /// Prints a claim with its measurement.
    pub fn claim(&mut self, holds: bool, name: &str, measured: &str) {
        let run = &self.run;
        if holds {
            println!("pass {run}-{name} ({measured})");
        } else {
            self.failed += 1;
            println!("fail {run}-{name}: {measured}");
        }
    }

    /// Ends the run.
    ///
    /// # Errors
    /// The number of claims that do not hold, if any.
    pub fn end(&self) -> Result<(), String> {
        match self.failed {
            0 => Ok(()),
            failed => Err(format!("{failed} claims do not hold")),
        }
    }
}

/// Returns the exit status of a program. An error is printed to standard error.
#[must_use]
pub fn exit_code(program: &str, outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_claim_fails_the_run() {
        let mut claims = Claims::new("test");
        claims.claim(true, "first", "1 of 1");
        assert_eq!(claims.end(), Ok(()));
        claims.claim(false, "second", "0 of 1");
        claims.claim(true, "third", "1 of 1");
        assert_eq!(claims.end(), Err("1 claims do not hold".to_owned()));
    }
}
