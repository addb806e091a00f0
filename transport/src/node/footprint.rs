//! Compares the memory that settings require with the memory of the machine. Without this check, the kernel might kill
//! the process much later.
//!
//! A [`Footprint`] is a sum of named parts, which `docs/book/src/reference/budgets.md` lists. A node has two
//! footprints. The memory that it takes when it starts is compared with the free memory of the machine and its
//! control group. The memory that its limits let peers use is compared with the total memory, counting only limits
//! that are raised above their defaults. Sums saturate, and a saturated sum never fits.
#![forbid(unsafe_code)]

use std::fmt;
use trunkline_verbs::{headroom, host_memory};

/// Memory for a queued message in addition to its contents, and memory for a call.
pub const MESSAGE_BYTES: usize = 256;
/// Memory that a thread's stack uses. Its address space is [`headroom::STACK`].
const USED_STACK: usize = 64 << 10;
/// Number of parts that an error names.
const NAMED: usize = 3;
/// Size that exceeds the address space of a process.
const NOWHERE: u64 = 1 << 47;

/// A part of a footprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    name: &'static str,
    /// Settings that the part depends on.
    settings: &'static str,
    bytes: u64,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) {} MiB", self.name, self.settings, mib(self.bytes))
    }
}

/// Amounts of memory by purpose.
#[derive(Debug, Clone, Default)]
pub struct Footprint {
    parts: Vec<Part>,
    threads: u64,
}

impl Footprint {
    /// Adds a part, whose size in bytes is the product of these factors.
    pub fn add(&mut self, name: &'static str, settings: &'static str, factors: &[usize]) {
        let bytes = factors.iter().fold(1, |bytes: u64, factor| bytes.saturating_mul(*factor as u64));
        self.parts.push(Part { name, settings, bytes });
    }

    /// Adds the stacks of threads.
    pub fn add_threads(&mut self, setting: &'static str, threads: usize) {
        self.add("stacks of threads", setting, &[threads, USED_STACK]);
        self.threads = self.threads.saturating_add(threads as u64);
    }

    /// Returns the parts that are larger than in `defaults`, which has the same parts in the same order.
    #[must_use]
    pub fn raised_from(self, defaults: &Self) -> Self {
        let both = self.parts.into_iter().zip(&defaults.parts);
        let parts = both.filter(|(part, default)| part.bytes > default.bytes).map(|(part, _)| part).collect();
        Self { parts, threads: 0 }
    }

    /// Appends the parts of another footprint.
    pub fn append(&mut self, other: Self) {
        self.parts.extend(other.parts);
        self.threads = self.threads.saturating_add(other.threads);
    }

    /// Returns the sum of the parts, or `u64::MAX` if it overflows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Returns the address space that the parts take.
    pub(crate) fn address_space(&self) -> u64 {
        let unused = (headroom::STACK - USED_STACK) as u64;
        self.bytes().saturating_add(self.threads.saturating_mul(unused))
    }

    fn check(&self, use_of: Use, bound: host_memory::Bound) -> Result<(), TooMuchMemory> {
        let bytes = self.bytes();
        if bytes <= bound.bytes {
            return Ok(());
        }
        let mut parts = self.parts.clone();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        parts.truncate(NAMED);
        Err(TooMuchMemory { use_of, bytes, bound, largest: parts })
    }
}

/// Memory that a sum is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    AtStart,
    Raised,
}

/// Sum that exceeds the available memory, with its largest parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooMuchMemory {
    use_of: Use,
    bytes: u64,
    bound: host_memory::Bound,
    largest: Vec<Part>,
}

impl fmt::Display for TooMuchMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, most, of) = (mib(self.bytes), mib(self.bound.bytes), self.bound.of);
        match self.use_of {
            Use::AtStart => write!(f, "the node needs {bytes} MiB to start, and {of} has {most} MiB free")?,
            Use::Raised => {
                write!(f, "limits raised beyond the defaults allow {bytes} MiB, and {of} has {most} MiB")?;
            }
        }
        for (at, part) in self.largest.iter().enumerate() {
            write!(f, "{}{part}", if at == 0 { "; the largest parts are " } else { ", " })?;
        }
        f.write_str(": choose less")
    }
}

impl std::error::Error for TooMuchMemory {}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Compares the sums with the memory of the machine and its control group.
///
/// # Errors
/// Returns the sum that is too large.
pub(crate) fn check(at_start: &Footprint, raised: &Footprint) -> Result<(), TooMuchMemory> {
    let nowhere = host_memory::Bound { bytes: NOWHERE, of: "a process" };
    let known = host_memory::read();
    at_start.check(Use::AtStart, known.free.unwrap_or(nowhere))?;
    raised.check(Use::Raised, known.whole.unwrap_or(nowhere))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(mib: u64) -> host_memory::Bound {
        host_memory::Bound { bytes: mib << 20, of: "the machine" }
    }

    fn sum(parts: &[(&'static str, usize)]) -> Footprint {
        let mut sum = Footprint::default();
        parts.iter().for_each(|(name, mib)| sum.add(name, "setting", &[*mib, 1 << 20]));
        sum
    }

    #[test]
    fn sums_beyond_memory_are_refused_with_their_largest_parts() {
        let sum = sum(&[("a", 1), ("b", 40), ("c", 3), ("d", 20)]);
        assert_eq!(sum.check(Use::AtStart, bound(64)), Ok(()));
        assert_eq!(
            sum.check(Use::AtStart, bound(63)).unwrap_err().to_string(),
            "the node needs 64 MiB to start, and the machine has 63 MiB free; the largest parts are b (setting) 40 MiB, \
             d (setting) 20 MiB, c (setting) 3 MiB: choose less"
        );
        let text = sum.check(Use::Raised, bound(63)).unwrap_err().to_string();
        assert!(
            text.starts_with("limits raised beyond the defaults allow 64 MiB, and the machine has 63 MiB; ")
        );
    }

    #[test]
    fn footprint_difference_has_only_raised_parts() {
        let raised =
            sum(&[("a", 1), ("b", 40), ("c", 3)]).raised_from(&sum(&[("a", 1), ("b", 39), ("c", 4)]));
        assert_eq!(raised.bytes(), 40 << 20);
    }

    #[test]
    fn overflowing_sums_saturate_and_exceed_every_limit() {
        let mut sum = Footprint::default();
        sum.add("a", "a", &[usize::MAX, usize::MAX, 2]);
        sum.add("b", "b", &[usize::MAX, 1]);
        sum.add_threads("c", usize::MAX);
        assert_eq!((sum.bytes(), sum.address_space()), (u64::MAX, u64::MAX));
        assert!(sum.check(Use::AtStart, host_memory::Bound { bytes: NOWHERE, of: "a process" }).is_err());
    }
}
