//! Remote keys: whether a key reveals other keys, and whether it opens other memory.
//!
//! A process sees the keys of its registrations. If consecutive keys differ by one of few numbers, the
//! owner of a key can guess the next registration's in a few attempts. A peer sees the keys of messages that
//! are announced to it. If a key opens more than its message, the peer can READ the bytes beside it.

use crate::honest::Setup;
use crate::{Outcome, Plan};
use std::collections::BTreeMap;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Claims, Folder, fresh_ip};
use trunkline_verbs::{Access, Device as _, Memory};

/// Number of registrations.
const COUNT: usize = 2000;
/// Length of each registration in bytes.
const LENGTH: usize = 64;
/// Maximum number of times that one difference may occur: among 2,000 random differences of 32 bits, two
/// equal ones are rare.
const OFTEN: usize = 2;

/// Length of the announced slice in bytes.
const SLICE: usize = 100_000;

pub(crate) fn run(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    guess(findings)?;
    read_beside(plan, findings)
}

/// READs beside the slice of a buffer that was announced to the peer, with that slice's key.
fn read_beside(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    let mut owner = Setup::new(&folder, plan).start()?;
    let honest = Setup::new(&folder, plan).hostile("none").start()?;
    let got = owner.process.numbers(&format!("lend {} {SLICE}", honest.address))?;
    let measured = format!("failed {}, {} bytes of neighbours", got["failed"], got["beside"]);
    findings.claim(got["failed"] == 0 && got["beside"] == 0, "slice", &measured);
    let before = owner.process.numbers("counters")?["fatal_nak_sent"];
    let prying = Setup::new(&folder, plan).hostile("prying").start()?;
    let got = owner.process.numbers(&format!("lend {} {SLICE}", prying.address))?;
    findings.claim(
        got["beside"] == 0,
        "neighbour",
        &format!("{} bytes of neighbours were READ, {} calls failed", got["beside"], got["failed"]),
    );
    let naks = owner.process.numbers("counters")?["fatal_nak_sent"] - before;
    findings.claim(naks > 0, "neighbour-refused", &format!("{naks} NAKs, remote access error"));
    Ok(())
}

/// Looks for keys that can be computed from others.
fn guess(findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    let options = SoftOptions {
        addresses: vec![fresh_ip().into()],
        runtime_directory: Some(folder.join("runtime")),
        ..SoftOptions::default()
    };
    let device = SoftDevice::open(options)?;
    let pd = device.alloc_pd()?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let mut held = Vec::new();
    // Memory registered once and kept, and memory registered anew for each message.
    for name in ["kept", "renewed"] {
        let mut keys = Vec::new();
        for _ in 0..COUNT {
            let region = pd.register(Memory::zeroed(LENGTH)?, rights)?;
            keys.push(region.rkey().0);
            if name == "kept" {
                held.push(region);
            } else {
                region.destroy()?;
            }
        }
        let mut often: BTreeMap<u32, usize> = BTreeMap::new();
        for pair in keys.windows(2) {
            *often.entry(pair[1].wrapping_sub(pair[0])).or_default() += 1;
        }
        let (difference, count) = often.into_iter().max_by_key(|&(_, count)| count).unwrap_or_default();
        let measured = format!("{count} of {} keys differ from the one before by {difference:#x}", COUNT - 1);
        findings.claim(count <= OFTEN, name, &measured);
    }
    Ok(())
}
