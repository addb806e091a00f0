//! Findings of an attack: claims and measurements, as lines or as one JSON object.

use crate::Outcome;
use serde_json::{Value, json};
use trunkline_testkit::Claims;

/// Claims of one attack.
#[derive(Debug)]
pub(crate) struct Findings {
    name: &'static str,
    lines: Option<Claims>,
    found: Vec<Value>,
    failed: usize,
}

impl Findings {
    pub(crate) fn new(name: &'static str, json: bool) -> Self {
        Self { name, lines: (!json).then(|| Claims::new(name)), found: Vec::new(), failed: 0 }
    }

    /// Reports a claim with its measurement.
    pub(crate) fn claim(&mut self, holds: bool, name: &str, measured: &str) {
        match &mut self.lines {
            Some(lines) => lines.claim(holds, name, measured),
            None => self.found.push(json!({ "claim": name, "holds": holds, "measured": measured })),
        }
        self.failed += usize::from(!holds);
    }

    /// Reports a claim about times, which is only noted unless it `is_judged`: they mean little on a busy machine.
    pub(crate) fn timed(&mut self, is_judged: bool, holds: bool, name: &str, measured: &str) {
        if is_judged {
            self.claim(holds, name, measured);
        } else {
            self.note(name, measured);
        }
    }

    /// Reports a measurement that is not judged.
    pub(crate) fn note(&mut self, name: &str, measured: &str) {
        match &self.lines {
            Some(_) => println!("note {}-{name}: {measured}", self.name),
            None => self.found.push(json!({ "note": name, "measured": measured })),
        }
    }

    /// Reports that this machine does not permit the attack.
    pub(crate) fn skip(&mut self, why: &str) {
        match &self.lines {
            Some(_) => println!("skip {}: {why}", self.name),
            None => self.found.push(json!({ "skipped": why })),
        }
    }

    /// Reports that this machine does not permit a part of the attack.
    pub(crate) fn skip_claim(&mut self, name: &str, why: &str) {
        match &self.lines {
            Some(_) => println!("skip {}-{name}: {why}", self.name),
            None => self.found.push(json!({ "claim": name, "skipped": why })),
        }
    }

    /// Returns the number of claims that do not hold.
    pub(crate) const fn failed(&self) -> usize {
        self.failed
    }

    /// Prints the object if JSON is wanted.
    ///
    /// # Errors
    /// The number of claims that do not hold, if any.
    pub(crate) fn end(self) -> Outcome<()> {
        if self.lines.is_none() {
            println!("{}", json!({ "attack": self.name, "findings": self.found }));
        }
        match self.failed {
            0 => Ok(()),
            failed => Err(format!("{}: {failed} claims do not hold", self.name).into()),
        }
    }
}
