//! Fuzz targets: plain functions that take any bytes and panic when something is broken.
//!
//! Called by the tests, which mutate valid inputs for a moment, and by coverage-guided fuzzers.
#![forbid(unsafe_code)]

use crate::credit::Grantor;
use crate::frame::{Fin, HEADER, Header, Kind, Request};
use crate::session::private_data::{Hello, Refusal, Welcome};
use trunkline_verbs::QpNumber;

/// Parses a frame and its body; what parses comes back the same.
pub fn frame(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    assert_eq!(header.emit()[..], data[..HEADER], "a header comes back");
    let payload = &data[HEADER..];
    match header.kind {
        Kind::Request => {
            let request = Request::parse(payload);
            assert_eq!(Request::parse(&request.emit()), request, "a request comes back");
        }
        Kind::Fin => {
            for fin in Fin::parse_all(payload).flatten() {
                assert!(Fin::parse_all(&fin.emit()).eq([Ok(fin)]), "a FIN comes back");
            }
        }
        Kind::Eager | Kind::Credit => {}
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
    if let Some(refusal) = Refusal::parse(data) {
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
            (0, _) => pairs.extend(grantor.open(now_ms, QpNumber::new(u32::from(step[2])))),
            (1, Some(pair)) => {
                // A violation ends the session in earnest; here the peer goes on.
                let released = u32::from(step[2]);
                let _ = grantor.hear(pair, now_ms, u16::from(step[3]), released, step[0] & 4 != 0);
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
        assert!(grantor.outstanding() <= grantor.capacity(), "granted more than there is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::ConnectionKind;
    use crate::frame::FinStatus;
    use crate::session::private_data::SessionName;
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
        let with = |kind, count, payload: &[u8]| {
            let length = u32::try_from(payload.len()).unwrap();
            let header = Header { kind, source: 1, want: 2, count, grant: 3, released: 4, length, target: 1 };
            [&header.emit()[..], payload].concat()
        };
        let request = Request { id: 1, body: 2, address: 3, rkey: 4, patience_ms: 5 }.emit();
        let fins = [Fin { id: 1, status: FinStatus::Read }, Fin { id: 2, status: FinStatus::Exhausted }];
        let fins = fins.iter().flat_map(Fin::emit).collect::<Vec<_>>();
        let seeds = [
            with(Kind::Eager, 0, b"hello"),
            with(Kind::Request, 0, &request),
            with(Kind::Fin, 2, &fins),
            with(Kind::Credit, 0, b""),
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
        let mut welcome = Welcome { session, max_message: 7, max_frame: 4096, srqs }.emit();
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
