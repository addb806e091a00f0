//! Replays the fuzz corpus, and mutates it for a moment: each parser against its promises.
//!
//! The seed is printed on failure; `TRUNKLINE_FUZZ_SEED` replays it, `TRUNKLINE_FUZZ_RUNS` sets
//! how many mutations each target gets.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::{Path, PathBuf};
    use trunkline_softrdma::pcap::{Datagram, PcapReader};
    use trunkline_softrdma::wire::{MAD_BYTES, fuzz};

    const RUNS_DEFAULT: u64 = 100_000;
    const LENGTH_MAX: usize = 16 * 1024;

    fn folder(name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests", name].iter().collect()
    }

    /// All files below a folder, in a fixed order.
    fn files(folder: &Path) -> Vec<Vec<u8>> {
        let mut entries: Vec<_> = fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("a readable folder").path())
            .collect();
        entries.sort();
        let read =
            |path: PathBuf| if path.is_dir() { files(&path) } else { vec![fs::read(&path).expect("a file")] };
        entries.into_iter().flat_map(read).collect()
    }

    /// UDP payloads without ICRC of all captured packets.
    fn captured_packets() -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for folder_name in ["vectors/rc", "vectors/xrc"] {
            for file in files(&folder(folder_name)) {
                let mut reader = PcapReader::new(&*file).expect("a capture");
                while let Some(frame) = reader.next_frame().expect("a whole capture") {
                    if let Ok(datagram) = Datagram::from_frame(&frame) {
                        let end = datagram.payload.len().saturating_sub(4);
                        packets.push(datagram.payload[..end].to_vec());
                    }
                }
            }
        }
        assert!(packets.len() >= 300, "{} packets", packets.len());
        packets
    }

    /// xorshift64*: small, and the same everywhere.
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

    /// One to four small changes of an input, or a splice of two.
    fn mutate(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut data = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            // Headers decide most, so half of all places are near the start.
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
        Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
    }

    /// Replays the corpus as it is, then mutations of it.
    fn run(name: &str, corpus: &[Vec<u8>], target: fn(&[u8])) {
        assert!(!corpus.is_empty(), "{name} has no corpus");
        corpus.iter().for_each(|data| target(data));
        let first = setting("TRUNKLINE_FUZZ_SEED").unwrap_or(0x5eed_0001);
        let runs = setting("TRUNKLINE_FUZZ_RUNS").unwrap_or(RUNS_DEFAULT);
        for seed in first..first.saturating_add(runs) {
            let data = mutate(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), corpus);
            if catch_unwind(AssertUnwindSafe(|| target(&data))).is_err() {
                panic!("{name}: TRUNKLINE_FUZZ_SEED={seed} TRUNKLINE_FUZZ_RUNS=1 fails on {data:02x?}");
            }
        }
    }

    #[test]
    fn packets() {
        let mut corpus = captured_packets();
        corpus.extend(files(&folder("corpus/packet")));
        run("packet", &corpus, fuzz::packet);
    }

    #[test]
    fn mads() {
        let mut corpus: Vec<_> = captured_packets()
            .into_iter()
            .filter(|p| p.len() == 20 + MAD_BYTES)
            .map(|p| p[20..].to_vec())
            .collect();
        corpus.extend(files(&folder("corpus/mad")));
        run("mad", &corpus, |data| {
            let mut mad = [0; MAD_BYTES];
            mad.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
            fuzz::mad(&mad);
        });
    }

    #[test]
    fn captures() {
        let mut corpus = files(&folder("vectors/rc"));
        corpus.extend(files(&folder("vectors/xrc")));
        corpus.extend(files(&folder("corpus/capture")));
        corpus.iter_mut().for_each(|file| file.truncate(LENGTH_MAX));
        run("capture", &corpus, fuzz::capture);
    }
}
