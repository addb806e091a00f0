//! Replays a fuzz corpus and random mutations of it.
//!
//! The tests of all crates with fuzz targets include this file. A failure prints the seed. `TRUNKLINE_FUZZ_SEED` sets the
//! seed, and `TRUNKLINE_FUZZ_RUNS` sets the number of mutations per target.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Maximum length of an input, in bytes.
pub(crate) const LENGTH_MAX: usize = 16 * 1024;

/// Reads all files below a folder in a fixed order.
pub(crate) fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    entries.sort();
    let read =
        |path: PathBuf| if path.is_dir() { files(&path) } else { vec![fs::read(&path).expect("a file")] };
    entries.into_iter().flat_map(read).collect()
}

/// Xorshift64* random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 33).expect("31 bits") % bound.max(1)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

/// Returns an input with one to four small changes. A change may splice in a part of another input.
fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut data = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        // Headers are the most important part, so half of the positions are near the start.
        let near = if random.byte() & 1 == 0 { data.len().min(64) } else { data.len() };
        let at = random.below(near);
        match random.below(7) {
            0 => data.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (random.byte() & 7)),
            1 => data.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.byte()),
            2 => data.truncate(at),
            3 => data.extend((0..random.below(9)).map(|_| random.byte())),
            4 => {
                let interesting = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
                data.iter_mut().skip(at).take(4).for_each(|byte| *byte = interesting);
            }
            5 if at < data.len() => drop(data.remove(at)),
            _ => {
                let other = &corpus[random.below(corpus.len())];
                data.truncate(at);
                data.extend_from_slice(&other[random.below(other.len())..]);
            }
        }
    }
    data.truncate(LENGTH_MAX);
    data
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

/// Replays the corpus unchanged, and then `runs` mutations of it, unless the environment sets another number.
pub(crate) fn run(name: &str, corpus: &[Vec<u8>], runs: u64, target: fn(&[u8])) {
    assert!(!corpus.is_empty(), "{name} has no corpus");
    corpus.iter().for_each(|data| target(data));
    let first = setting("TRUNKLINE_FUZZ_SEED").unwrap_or(0x5eed_0001);
    let runs = setting("TRUNKLINE_FUZZ_RUNS").unwrap_or(runs);
    for seed in first..first.saturating_add(runs) {
        let data = mutate(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), corpus);
        if catch_unwind(AssertUnwindSafe(|| target(&data))).is_err() {
            panic!("{name}: TRUNKLINE_FUZZ_SEED={seed} TRUNKLINE_FUZZ_RUNS=1 fails on {data:02x?}");
        }
    }
}
