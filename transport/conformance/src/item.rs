//! One item of the contract, and its execution.

use crate::check::Verdict;
use crate::{Bench, Deviation, Lab};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use trunkline_verbs::{Device, DeviceCapabilities};

/// An item of the XRC verbs contract.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// Number in the contract.
    pub id: &'static str,
    /// Property that is checked, as one sentence.
    pub title: &'static str,
    /// The check.
    pub(crate) check: fn(&Lab) -> Result<(), Deviation>,
}

/// The result of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The device conforms to the item.
    Held,
    /// The device deviates from the item.
    Failed(String),
    /// The item could not be checked.
    Skipped(String),
}

/// Items that apply to devices without XRC. Other items are skipped on these devices.
const WITHOUT_XRC: &[&str] =
    &["A9", "D10", "H4", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11"];

/// Returns true if an item requires a device with XRC.
fn needs_xrc(id: &str) -> bool {
    !WITHOUT_XRC.contains(&id)
}

/// Checks one item on a separate pair of devices.
#[must_use]
pub fn run(bench: &dyn Bench, item: &Item) -> Outcome {
    if let Some(why) = bench.excuse(item.id) {
        return Outcome::Skipped(why.to_owned());
    }
    judged(|| {
        let lab = Lab::new(bench)?;
        if needs_xrc(item.id) {
            has_xrc(lab.near.device.as_ref())?;
            has_xrc(lab.far.device.as_ref())?;
        }
        (item.check)(&lab)
    })
}

/// Returns an error that skips the check if the device does not support XRC.
pub(crate) fn has_xrc(device: &dyn Device) -> Verdict {
    if device.attributes().capabilities.contains(DeviceCapabilities::XRC) {
        return Ok(());
    }
    let name = &device.attributes().name;
    Err(Deviation::Skipped(format!(
        "{name} has no XRC (IBV_DEVICE_XRC is not set, or no domain can be opened)"
    )))
}

/// Runs a check on a separate thread. A check that does not return within `limit` fails, and its thread is abandoned,
/// because a blocked call into C cannot be ended.
pub(crate) fn within(limit: Duration, check: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    let (done, outcome) = mpsc::channel();
    let thread = thread::Builder::new().name("conformance-item".to_owned());
    let spawned = thread.spawn(move || drop(done.send(check())));
    if let Err(error) = spawned {
        return Outcome::Skipped(format!("its thread could not be started: {error}"));
    }
    outcome.recv_timeout(limit).unwrap_or_else(|_| {
        Outcome::Failed(format!("it did not return within {limit:?}; a call may be blocked"))
    })
}

/// Returns the outcome of a check. A panic counts as a failure.
pub(crate) fn judged(check: impl FnOnce() -> Verdict) -> Outcome {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(())) => Outcome::Held,
        Ok(Err(Deviation::Failed(why))) => Outcome::Failed(why),
        Ok(Err(Deviation::Skipped(why))) => Outcome::Skipped(why),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text");
            Outcome::Failed(format!("panicked: {text}"))
        }
    }
}
