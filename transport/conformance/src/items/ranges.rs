//! Regions that register only parts of memory.

use super::rc_ends::RcPair;
use crate::check::{EINVAL, Verdict, check, equal, refused};
use crate::connect::Terms;
use crate::traffic::request;
use crate::{Deviation, Lab};
use std::ops::Range;
use std::sync::Arc;
use trunkline_verbs::{
    Access, CompletionStatus as Status, IoAddress, MemoryRegion, RemoteAddress, SendOperation, SrqNumber,
    VerbsError,
};

/// Unused SRQ number; RC packets have no XRCETH.
const NO_SRQ: SrqNumber = SrqNumber::new(0);
/// Three adjacent parts whose boundaries are not page boundaries.
const PARTS: [Range<usize>; 3] = [700..5000, 5000..9001, 9001..9002];
/// Offset at which a READ stores its result.
const INTO: usize = 64 << 10;

pub(super) fn r11(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let length = far.memory.len();
    far.fill(0, 16_384, 0x3c)?;
    let mut wanted = vec![0; 16_384];
    far.memory.read(0, &mut wanted)?;
    let [first, second, third] = PARTS.map(|range| register(lab, range));
    let regions = [first?, second?, third?];
    for (range, region) in PARTS.into_iter().zip(&regions) {
        let bytes =
            u32::try_from(range.len()).map_err(|_| Deviation::Failed("a part is too long".to_owned()))?;
        equal(
            "the status of a READ of all of it",
            read(lab, region, region.address(0), bytes)?,
            Status::Success,
        )?;
        lab.near.contains("what was read", INTO, &wanted[range])?;
        let before = IoAddress(region.address(0).0.wrapping_sub(1));
        let after = region.address(0).plus(u64::from(bytes));
        for (what, from, length) in [
            ("the byte before", before, 1),
            ("the byte after", after, 1),
            ("one byte more", region.address(0), bytes + 1),
        ] {
            is_refused(what, read(lab, region, from, length)?)?;
        }
    }
    let [first, second, _third] = regions;
    first.destroy()?;
    is_refused("a region that has ended", read(lab, &first, first.address(0), 1)?)?;
    let next = read(lab, &second, second.address(0), 1)?;
    equal("the status of a READ of its neighbour", next, Status::Success)?;
    refused("a range that ends beyond the memory", register(lab, 1..length + 1), EINVAL)?;
    refused("a range that begins beyond the memory", register(lab, length + 1..length + 2), EINVAL)
}

/// Registers a part of the far side's memory at an I/O address that differs from the process's address.
fn register(lab: &Lab, range: Range<usize>) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
    let memory = &lab.far.memory;
    let start =
        IoAddress::from_random_like(0x0123_4567_89ab_cdef ^ range.start as u64, memory.address(range.start));
    lab.far.pd.register_range(Arc::clone(memory), range, start, Access::REMOTE_READ)
}

fn is_refused(what: &str, status: Status) -> Verdict {
    check(status == Status::RemoteAccessError, || format!("a READ of {what} ended with {status:?}"))
}

/// READs from a region over a separate connection. Returns the completion status.
fn read(lab: &Lab, region: &Arc<dyn MemoryRegion>, address: IoAddress, length: u32) -> Verdict<Status> {
    let pair = RcPair::new(lab, &Terms::default())?;
    let from = SendOperation::RdmaRead(RemoteAddress { address, rkey: region.rkey() });
    pair.near.post_send(&[request(1, from, &[lab.near.piece(INTO, length)], NO_SRQ)])?;
    Ok(lab.next("a READ", &lab.near.cq)?.status)
}
