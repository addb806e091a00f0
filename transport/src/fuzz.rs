//! Fuzz targets: plain functions that take any bytes and panic when something is broken.
//!
//! Called by the tests, which mutate valid inputs for a moment, and by coverage-guided fuzzers.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::credit::Grantor;
use crate::frame::{Announcement, Fin, Header, Kind, SETTLED, Settled};
use crate::session::private_data::{Hello, Refusal, Welcome};
use crate::settings::Settings;
use trunkline_verbs::QpNumber;

/// Parses a frame and its body; what parses comes back the same.
pub fn frame(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    let Header { grant, want, target, .. } = header;
    assert_eq!(Settled { grant, want, target }.emit()[..], data[SETTLED..8], "a header comes back");
    let rest = &data[header.bytes..];
    match header.kind {
        Kind::Announcement => {
            let announcement = Announcement::parse(rest);
            assert_eq!(Announcement::parse(&announcement.emit()), announcement, "an announcement comes back");
        }
        Kind::Fin => {
            for fin in Fin::parse_all(rest).flatten() {
                assert!(Fin::parse_all(&fin.emit()).eq([Ok(fin)]), "a FIN comes back");
            }
        }
        Kind::Settings => {
            if let Ok(settings) = Settings::parse(rest) {
                assert_eq!(Settings::parse(&settings.emit()), Ok(settings), "settings come back");
            }
        }
        Kind::Message | Kind::Credit | Kind::Unknown => {}
    }
}

/// Parses the private data of a handshake as each of its messages; what parses comes back.
pub fn handshake(data: &[u8]) {
    if let Ok(hello) = Hello::parse(data) {
        assert_eq!(Hello::parse(&hello.emit()), Ok(hello), "a hello comes back");
    }
    if let Ok(welcome) = Welcome::parse(data) {
        assert_eq!(Welcome::parse(&welcome.emit()), Ok(welcome), "a welcome comes back");
    }
    if let Some(refusal) = Refusal::parse(data)
        // What is emitted names the versions that are spoken here.
        && !matches!(refusal, Refusal::Version(_))
    {
        assert_eq!(Refusal::parse(&refusal.emit()), Some(refusal), "a refusal comes back");
    }
}

/// Lets peers claim anything about their credit: the depth is never granted twice. The first
/// byte is the depth; each four bytes that follow are what one peer does.
pub fn credit(data: &[u8]) {
    let Some((&depth, steps)) = data.split_first() else { return };
    let mut grantor = Grantor::new(u32::from(depth).max(2));
    let mut pairs = Vec::new();
    let mut now_ms = 0;
    for step in steps.chunks_exact(4) {
        now_ms += u64::from(step[1] >> 4);
        let known = pairs.get(usize::from(step[1] & 7)).copied();
        match (step[0] % 4, known) {
            (0, _) => {
                let target = QpNumber::new(u32::from(step[2]));
                let peer = PeerKey::new(([127, 0, 0, 1], u16::from(step[3] >> 4)).into());
                pairs.extend(grantor.open(now_ms, target, peer));
            }
            (1, Some(pair)) => {
                // A violation ends the session in earnest; here the peer goes on.
                let released = (step[0] & 4 == 0).then_some(u16::from(step[2]));
                let _ = grantor.hear(pair, now_ms, step[3], released);
            }
            (2, Some(pair)) => {
                pairs.retain(|&other| other != pair);
                grantor.close(pair);
            }
            _ => grantor.grant(now_ms),
        }
        for &pair in pairs.iter().filter(|&&pair| grantor.must_tell(pair)).collect::<Vec<_>>() {
            if step[3] & 1 == 0 {
                grantor.tell(pair);
            }
        }
        let ledger = grantor.ledger();
        assert!(ledger.outstanding <= ledger.capacity, "granted more than there is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::ConnectionKind;
    use crate::frame::{self as layout, FinStatus, flags};
    use crate::session::private_data::SessionName;
    use crate::settings::Settings;
    use std::num::NonZeroU16;
    use trunkline_verbs::SrqNumber;

    const RUNS: u32 = 100_000;

    /// xorshift64*: small, and the same everywhere.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
            usize::try_from(value).unwrap() % bound.max(1)
        }

        fn byte(&mut self) -> u8 {
            u8::try_from(self.below(256)).unwrap()
        }
    }

    fn mutate(random: &mut Random, input: &mut Vec<u8>) {
        for _ in 0..=random.below(4) {
            match random.below(5) {
                0 => input.truncate(random.below(input.len() + 1)),
                1 => input.push(random.byte()),
                2 if !input.is_empty() => {
                    let at = random.below(input.len());
                    input[at] ^= 1 << random.below(8);
                }
                _ if !input.is_empty() => {
                    let at = random.below(input.len());
                    input[at] = random.byte();
                }
                _ => {}
            }
        }
    }

    fn run(name: &str, target: fn(&[u8]), seeds: &[Vec<u8>]) {
        let seed = std::env::var("TRUNKLINE_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        let mut random = Random(seed);
        for run in 0..RUNS {
            let mut input = seeds[random.below(seeds.len())].clone();
            if run > 0 {
                mutate(&mut random, &mut input);
            }
            let result = std::panic::catch_unwind(|| target(&input));
            assert!(result.is_ok(), "{name}: TRUNKLINE_FUZZ_SEED={seed}, run {run}: {input:02x?}");
        }
    }

    #[test]
    fn mutated_frames() {
        let announcement = Announcement { id: 1, body: 2, address: 3, rkey: 4, patience_ms: 5 }.emit();
        let head = |bytes: [u8; 4]| [&bytes[..], &[3, 0, 2, 1, 9, 9, 9, 9, 9, 9, 9, 9]].concat();
        let fins = [Fin { id: 1, status: FinStatus::Read }, Fin { id: 2, status: FinStatus::Exhausted }];
        let fins = fins.iter().flat_map(Fin::emit).collect::<Vec<_>>();
        let settings = Settings { max_message: 1, max_frame: 4096, large_messages: 2 }.emit();
        let seeds = [
            [&head([0x20, 0, 0, 0])[..], b"hello"].concat(),
            [&head([0x40, flags::TIME_LEFT, 0xff, 0xff])[..], &[7; 16]].concat(),
            [&head([0x20, flags::ANNOUNCES, 0, 0])[..], &announcement, b"hello"].concat(),
            [&layout::fin(2)[..], &fins].concat(),
            layout::credit().to_vec(),
            [&layout::settings()[..], &settings, &[9, 0, 1, 0, 7]].concat(),
            [0x0c, flags::CRITICAL, 0, 0, 0, 0, 0, 0].to_vec(),
        ];
        run("frame", frame, &seeds);
    }

    #[test]
    fn mutated_handshakes() {
        let session = SessionName { epoch: 5, number: 6 };
        let listener_port = NonZeroU16::new(7471).unwrap();
        let (echo, connections) = (Some(session), ConnectionKind::Xrc);
        let mut hello =
            Hello { listener_port, session, echo, poller: 1, pollers: 2, connections, cookie: None }.emit();
        hello.resize(56, 0);
        let srqs = (1..5).map(SrqNumber::new).collect();
        let mut welcome = Welcome { session, srqs }.emit();
        welcome.resize(196, 0);
        run("handshake", handshake, &[hello, welcome, Refusal::Stale.emit()]);
    }

    #[test]
    fn credit_claims() {
        let seed = (0..240u8).map(|at| at.wrapping_mul(37)).collect::<Vec<_>>();
        let small = (0..120u8).map(|at| at.wrapping_mul(11) % 24).collect::<Vec<_>>();
        run("credit", credit, &[seed, small]);
    }
}
