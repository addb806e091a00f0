//! One item of the contract, and running it.

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
    /// Its number in the contract.
    pub id: &'static str,
    /// What holds, in one sentence.
    pub title: &'static str,
    /// Checks it.
    pub(crate) check: fn(&Lab) -> Result<(), Deviation>,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The device does what the item says.
    Held,
    /// It does something else.
    Failed(String),
    /// It could not be asked.
    Skipped(String),
}

/// The items that a device without XRC can be asked; the others are skipped there.
const WITHOUT_XRC: &[&str] =
    &["A9", "D10", "H4", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10"];

/// Whether an item takes a device with XRC.
fn needs_xrc(id: &str) -> bool {
    !WITHOUT_XRC.contains(&id)
}

/// Checks one item on a pair of devices of its own.
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

/// Skips what takes a device with XRC where there is none.
pub(crate) fn has_xrc(device: &dyn Device) -> Verdict {
    if device.attributes().capabilities.contains(DeviceCapabilities::XRC) {
        return Ok(());
    }
    let name = &device.attributes().name;
    Err(Deviation::Skipped(format!(
        "{name} has no XRC (IBV_DEVICE_XRC is not set, or no domain can be opened)"
    )))
}

/// Runs a check on a thread of its own: what still runs when its time is over has failed, and is
/// left behind, because nothing can end a call into C that blocks.
pub(crate) fn within(limit: Duration, check: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    let (done, outcome) = mpsc::channel();
    let thread = thread::Builder::new().name("conformance-item".to_owned());
    let spawned = thread.spawn(move || drop(done.send(check())));
    if let Err(error) = spawned {
        return Outcome::Skipped(format!("no thread for it: {error}"));
    }
    outcome
        .recv_timeout(limit)
        .unwrap_or_else(|_| Outcome::Failed(format!("it still ran after {limit:?}; a call may block")))
}

/// The outcome of a check, a panic included.
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
