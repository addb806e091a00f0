//! The results of a fault rig, as one line per claim or as one JSON object, and the program's exit status.

use serde_json::{Value, json};
use std::error::Error;
use std::process::ExitCode;

/// The claims of one run. Prints each claim as `pass RUN-NAME (measured)` or `fail RUN-NAME: measured`, or prints all
/// claims as JSON at the end.
#[derive(Debug)]
pub struct Claims {
    run: String,
    json: Option<Vec<Value>>,
    failed: usize,
}

impl Claims {
    /// Creates an empty list of claims for a run. If `json` is true, they are printed as JSON.
    #[must_use]
    pub fn new(run: impl Into<String>, json: bool) -> Self {
        Self { run: run.into(), json: json.then(Vec::new), failed: 0 }
    }

    /// Prints a line, or keeps the JSON value until the end.
    fn report(&mut self, line: &str, value: Value) {
        match &mut self.json {
            None => println!("{line}"),
            Some(found) => found.push(value),
        }
    }

    /// Reports a claim with its measurement.
    pub fn claim(&mut self, holds: bool, name: &str, measured: &str) {
        let run = &self.run;
        let line = match holds {
            true => format!("pass {run}-{name} ({measured})"),
            false => format!("fail {run}-{name}: {measured}"),
        };
        self.report(&line, json!({ "claim": name, "holds": holds, "measured": measured }));
        self.failed += usize::from(!holds);
    }

    /// Reports a claim about times. The claim is judged only if `is_judged` is true, because times are unreliable on a busy
    /// machine.
    pub fn timed(&mut self, is_judged: bool, holds: bool, name: &str, measured: &str) {
        if is_judged {
            self.claim(holds, name, measured);
        } else {
            self.note(name, measured);
        }
    }

    /// Reports a measurement that is not judged.
    pub fn note(&mut self, name: &str, measured: &str) {
        let line = format!("note {}-{name}: {measured}", self.run);
        self.report(&line, json!({ "note": name, "measured": measured }));
    }

    /// Reports that the run is not possible on this machine.
    pub fn skip(&mut self, why: &str) {
        self.report(&format!("skip {}: {why}", self.run), json!({ "skipped": why }));
    }

    /// Reports that a part of the run is not possible on this machine.
    pub fn skip_claim(&mut self, name: &str, why: &str) {
        let line = format!("skip {}-{name}: {why}", self.run);
        self.report(&line, json!({ "claim": name, "skipped": why }));
    }

    /// Returns the number of claims that have failed.
    #[must_use]
    pub const fn failed(&self) -> usize {
        self.failed
    }

    /// Ends the run. Prints the JSON object if JSON was requested.
    ///
    /// # Errors
    /// Returns an error with the number of failed claims, if any failed.
    pub fn end(self) -> Result<(), String> {
        if let Some(found) = self.json {
            println!("{}", json!({ "attack": self.run, "findings": found }));
        }
        match self.failed {
            0 => Ok(()),
            failed => Err(format!("{}: {failed} claims do not hold", self.run)),
        }
    }
}

/// Returns the exit status for the outcome of a program. Prints an error to standard error.
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
    fn one_failed_claim_fails_run() {
        for json in [false, true] {
            let mut claims = Claims::new("test", json);
            claims.claim(true, "first", "1 of 1");
            assert_eq!(claims.failed(), 0);
            claims.claim(false, "second", "0 of 1");
            claims.claim(true, "third", "1 of 1");
            assert_eq!(claims.end(), Err("test: 1 claims do not hold".to_owned()));
        }
    }
}
