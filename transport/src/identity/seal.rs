//! Sealing of frames, which protects the confidentiality and integrity of a lane's contents.
//!
//! ```text
//!  0 kind (1)  1 flags (1), with PHASE  2 zero (2)  4 positions (4)     associated data
//!  8 contents  then the header's word (2)                               sealed
//!  then a tag (16)
//! ```
//!
//! A frame is sealed when it is posted and not changed afterwards. A sealed frame that cannot be posted ends its trunk.
//! The device therefore sends one ciphertext per nonce, even if it retransmits. The nonce is the count of the lane's
//! frames. RC delivers frames once and in order, so the counts of both sides agree, and a repeated, missing or
//! reordered frame cannot be decrypted. `docs/book/src/why/security.md`, *Sealed frames*, specifies the rules.
#![forbid(unsafe_code)]

use super::keys::{Aead, LaneKeys, LaneSecret, LaneSecrets, Secret};
use crate::wire::frame::{FrameError, HEADER, WORD, flags};
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_machine::mutants::{Sealed, record_sealed};
use trunkline_verbs::Time;

/// Size of a tag, in bytes.
pub(crate) const TAG: usize = 16;
/// Size of the header's word, in bytes.
const WORD_BYTES: usize = 2;
/// Overhead of a sealed frame, in bytes.
pub(crate) const OVERHEAD: usize = WORD_BYTES + TAG;

/// Size of a piece of a large message, in bytes. A tag follows each piece.
const PIECE: usize = 64 << 10;
/// Size of a piece in a simulation, whose messages are smaller.
const SIMULATED_PIECE: usize = 4 << 10;
/// Size of the key of a large message, in bytes.
pub(crate) const CONTENT_KEY: usize = 32;

/// Encrypts and decrypts a large message in pieces. The sealed announcement carries the key and the length, so a
/// truncated message, or a message with pieces of another message, cannot be decrypted.
#[derive(Debug)]
pub(crate) struct ContentSeal {
    aead: LessSafeKey,
    /// Key of an outgoing message, for its announcement.
    key: Option<Secret>,
    piece: usize,
    /// Number of pieces that were sealed or opened.
    pieces: u64,
}

impl ContentSeal {
    fn new(aead: Aead, key: &[u8; CONTENT_KEY], is_simulated: bool) -> Self {
        let piece = if is_simulated { SIMULATED_PIECE } else { PIECE };
        Self { aead: aead.key(key), key: None, piece, pieces: 0 }
    }

    /// Returns the key of an outgoing message.
    pub(crate) fn key(&self) -> &[u8] {
        self.key.as_ref().map_or(&[], |key| key.bytes())
    }

    pub(crate) fn piece(&self) -> usize {
        self.piece
    }

    /// Returns the size of a message of `length` bytes with its tags.
    pub(crate) fn sealed(&self, length: usize) -> usize {
        length.saturating_add(length.div_ceil(self.piece).saturating_mul(TAG))
    }

    /// Seals the next piece, and appends its tag.
    pub(crate) fn seal(&mut self, piece: &mut Vec<u8>) {
        let number = self.pieces;
        let nonce = self.next();
        record(&self.aead, nonce, "piece of a large message", number);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = self.aead.seal_in_place_append_tag(nonce, Aad::empty(), piece);
        sealed.expect("a piece is short enough for the AEAD");
    }

    /// Decrypts the next piece, which with its tag extends from `from` to the end of `bytes`, and moves it to the
    /// start of `bytes`.
    ///
    /// # Errors
    /// Returns an error if the piece is not the next one that the peer sealed.
    pub(crate) fn open(&mut self, bytes: &mut [u8], from: usize) -> Result<(), FrameError> {
        let nonce = Nonce::assume_unique_for_key(self.next());
        let opened = self.aead.open_within(nonce, Aad::empty(), bytes, from..);
        opened.map(drop).map_err(|_| {
            FrameError::Altered("piece of a large message that does not open: it was changed on its way")
        })
    }

    fn next(&mut self) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        nonce[4..].copy_from_slice(&self.pieces.to_be_bytes());
        self.pieces += 1;
        nonce
    }
}

/// Reports the use of a nonce with a key to the simulation. The fingerprint of a key is the tag of an empty message.
#[inline(always)]
fn record(key: &LessSafeKey, nonce: [u8; NONCE_LEN], what: &'static str, number: u64) {
    record_sealed(|| {
        let zero = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let tag = key.seal_in_place_separate_tag(zero, Aad::empty(), &mut []).expect("it is short enough");
        Sealed { key: *tag.as_ref().first_chunk().expect("a tag"), nonce, what, number }
    });
}

/// Number of frames and time after which a lane's sender changes to the next phase. AES-GCM keeps its margin up to
/// 2^23 frames of the largest size (RFC 9001, section 6.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PhaseLimit {
    pub(crate) frames: u32,
    pub(crate) time: Duration,
}

/// Keys of one direction of a lane.
#[derive(Debug)]
struct Direction {
    secret: LaneSecret,
    keys: LaneKeys,
    /// Key phase; true if PHASE is set.
    phase: bool,
    /// Number of frames, in all phases.
    count: u64,
}

impl Direction {
    fn new(secret: LaneSecret) -> Self {
        Self { keys: secret.keys(), secret, phase: false, count: 0 }
    }

    /// Replaces the secret and the keys.
    fn replace(&mut self, secret: LaneSecret, phase: bool) {
        (self.keys, self.phase) = (secret.keys(), phase);
        self.secret = secret;
    }
}

/// Seals the frames to a poller of the peer, and opens the frames from it.
#[derive(Debug)]
pub(crate) struct LaneSeal {
    seals: Direction,
    opens: Direction,
    /// Secret of a renewal, until SWITCH is sealed.
    renewed: Option<LaneSecret>,
    limit: PhaseLimit,
    /// Number of frames sealed in this phase, and time of the first of them.
    in_phase: u32,
    since: Time,
    /// Creation time of the first keys, and number of phases that the peer has begun since then.
    created: Time,
    peer_phases: u64,
    /// Number of large messages to the peer.
    contents: u64,
}

impl LaneSeal {
    pub(crate) fn new(secrets: LaneSecrets, limit: PhaseLimit, now: Time) -> Self {
        let LaneSecrets { seals, opens } = secrets;
        let (seals, opens) = (Direction::new(seals), Direction::new(opens));
        Self {
            seals,
            opens,
            renewed: None,
            limit,
            in_phase: 0,
            since: now,
            created: now,
            peer_phases: 0,
            contents: 0,
        }
    }

    /// Takes the secret of a renewal for [`Self::switch`].
    pub(crate) fn renew(&mut self, renewed: LaneSecret) {
        self.renewed = Some(renewed);
    }

    /// Creates a key for a large message to the peer. Returns the message's seal.
    pub(crate) fn new_content(&mut self, is_simulated: bool) -> ContentSeal {
        self.contents += 1;
        let secret = &self.seals.secret;
        let key = secret.content_key(self.contents);
        let seal = ContentSeal::new(secret.aead(), key.bytes(), is_simulated);
        ContentSeal { key: Some(key), ..seal }
    }

    /// Returns the seal of a large message from the peer.
    pub(crate) fn content(&self, key: &[u8; CONTENT_KEY], is_simulated: bool) -> ContentSeal {
        ContentSeal::new(self.opens.secret.aead(), key, is_simulated)
    }

    /// Seals a frame, whose last [`OVERHEAD`] bytes are free. Its header is final, without PHASE.
    ///
    /// # Panics
    /// Panics if the frame lacks room for the sealing overhead, which is a bug in the caller.
    pub(crate) fn seal(&mut self, frame: &mut [u8], now: Time) {
        if self.in_phase >= self.limit.frames || now.saturating_duration_since(self.since) >= self.limit.time
        {
            self.next_phase(now);
        }
        let Direction { keys, phase, count, .. } = &mut self.seals;
        // Panic rather than send the frame in plaintext.
        const ROOM: &str = "a frame has a header, and room for the seal";
        let (header, rest) = frame.split_first_chunk_mut::<HEADER>().expect(ROOM);
        let (sealed, tag) = rest.split_last_chunk_mut::<TAG>().expect(ROOM);
        let word = sealed.last_chunk_mut::<WORD_BYTES>().expect(ROOM);
        word.copy_from_slice(&header[WORD..WORD + WORD_BYTES]);
        header[WORD..WORD + WORD_BYTES].fill(0);
        if *phase {
            header[1] |= flags::PHASE;
        }
        let nonce = keys.nonce(*count);
        record(keys.aead(), nonce, Sealed::FRAME, *count);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = keys.aead().seal_in_place_separate_tag(nonce, Aad::from(&*header), sealed);
        *tag = *sealed.expect("a frame is short enough for the AEAD").as_ref().first_chunk().expect("a tag");
        *count += 1;
        self.in_phase += 1;
    }

    /// Changes to the next key, which seals later frames.
    fn next_phase(&mut self, now: Time) {
        (self.in_phase, self.since) = (0, now);
        if mutant!(phases_never_end) {
            return;
        }
        if mutant!(phase_is_skipped) {
            self.seals.phase = !self.seals.phase;
            return;
        }
        let (secret, phase) = (self.seals.secret.next(), !self.seals.phase);
        self.seals.replace(secret, phase);
    }

    /// Opens the lane's next frame. Returns the length of the opened frame.
    ///
    /// # Errors
    /// Returns an error if the frame is not the next one that the peer sealed, or begins a phase too early.
    pub(crate) fn open(&mut self, frame: &mut [u8], now: Time) -> Result<usize, FrameError> {
        const ALTERED: FrameError = FrameError::Altered(
            "sealed frame that does not open: it was changed, repeated, moved or left out on its way",
        );
        let length = frame.len();
        let Some((header, sealed)) = frame.split_first_chunk_mut::<HEADER>() else { return Err(ALTERED) };
        let is_next = (header[1] & flags::PHASE != 0) != self.opens.phase;
        if is_next {
            self.check_phase(now)?;
        }
        let Direction { secret, keys, phase, count, .. } = &mut self.opens;
        let next = is_next.then(|| secret.next()).map(|secret| (secret.keys(), secret));
        let with = next.as_ref().map_or(&*keys, |(keys, _)| keys);
        let nonce = Nonce::assume_unique_for_key(with.nonce(*count));
        let opened = with.aead().open_in_place(nonce, Aad::from(&*header), sealed).map_err(|_| ALTERED)?;
        let word = opened.last_chunk::<WORD_BYTES>().ok_or(ALTERED)?;
        header[WORD..WORD + WORD_BYTES].copy_from_slice(word);
        header[1] &= !flags::PHASE;
        *count += 1;
        if let Some((of_next, next)) = next {
            (*keys, *secret, *phase) = (of_next, next, !*phase);
            self.peer_phases += 1;
        }
        Ok(length - OVERHEAD)
    }

    /// Checks that the peer may change to its next key phase. Frames can be delayed in transit, so the limit is not a
    /// rate. Over the lane's lifetime, the peer may use twice as many phases as an honest peer.
    #[cold]
    fn check_phase(&self, now: Time) -> Result<(), FrameError> {
        let by_time = 2 * now.saturating_duration_since(self.created).as_nanos() / self.limit.time.as_nanos();
        let by_frames = 2 * u128::from(self.opens.count) / u128::from(self.limit.frames);
        if u128::from(self.peer_phases) <= by_time + by_frames {
            return Ok(());
        }
        Err(FrameError::Altered(
            "sealed frame of another key phase, too soon after the phases before: it was changed on its way, or the peer changes \
             its keys too often",
        ))
    }

    /// Seals later frames with the keys of a renewal.
    pub(crate) fn switch(&mut self, now: Time) {
        let Some(renewed) = self.renewed.take() else { return };
        (self.in_phase, self.since) = (0, now);
        self.seals.replace(renewed, false);
    }

    /// Opens later frames with the keys of a renewal.
    pub(crate) fn peer_switched(&mut self, renewed: LaneSecret) {
        self.opens.replace(renewed, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::keys::{Aead, Exported, Pollers};

    fn exported(seed: u8) -> Exported {
        let export = |out: &mut [u8; 32]| {
            out.fill(seed);
            Ok::<_, ()>(())
        };
        Exported::new(export).unwrap()
    }

    /// Returns both ends of the lanes of a session with two pollers per side, by own poller and peer's poller.
    fn session(seed: u8, aead: Aead, limit: PhaseLimit) -> [Vec<LaneSeal>; 2] {
        [true, false].map(|is_client| {
            let keys = exported(seed).lanes(aead, Pollers { own: 2, peers: 2, is_client });
            keys.into_iter().flatten().map(|lane| LaneSeal::new(lane, limit, Time(0))).collect()
        })
    }

    const NO_LIMIT: PhaseLimit = PhaseLimit { frames: u32::MAX, time: Duration::MAX };

    fn frame(number: u8, contents: usize) -> Vec<u8> {
        let mut frame = vec![0x40, 0x10, number, 2, 3, 4, 5, 0];
        frame.resize(HEADER + contents, number);
        frame
    }

    fn sealed(lane: &mut LaneSeal, frame: &[u8], now: Time) -> Vec<u8> {
        let mut sealed = frame.to_vec();
        sealed.resize(frame.len() + OVERHEAD, 0xff);
        lane.seal(&mut sealed, now);
        sealed
    }

    fn opened(lane: &mut LaneSeal, sealed: &[u8]) -> Result<Vec<u8>, FrameError> {
        opened_at(lane, sealed, Time(0))
    }

    fn opened_at(lane: &mut LaneSeal, sealed: &[u8], now: Time) -> Result<Vec<u8>, FrameError> {
        let mut frame = sealed.to_vec();
        let length = lane.open(&mut frame, now)?;
        frame.truncate(length);
        Ok(frame)
    }

    #[test]
    fn peer_opens_each_frame_once_in_order_and_unchanged() {
        for aead in [Aead::Aes256Gcm, Aead::ChaCha20Poly1305] {
            let [mut ours, mut theirs] = session(1, aead, NO_LIMIT);
            let [first, second] = [frame(1, 40), frame(2, 0)].map(|frame| {
                let sealed = sealed(&mut ours[1], &frame, Time(0));
                assert!(
                    sealed[2..4] == [0; 2] && !sealed[8..].windows(4).any(|four| four == [1; 4]),
                    "{sealed:?}"
                );
                (frame, sealed)
            });
            // The lane from poller 0 to poller 1 is the peer's lane for poller 1 from poller 0.
            let (at, others) = (2, [0, 1, 3]);
            for at_byte in 0..first.1.len() {
                let mut changed = first.1.clone();
                changed[at_byte] ^= 1 << (at_byte % 8);
                assert!(opened(&mut theirs[at], &changed).is_err(), "byte {at_byte} was changed");
            }
            for length in 0..first.1.len() {
                assert!(opened(&mut theirs[at], &first.1[..length]).is_err(), "{length} bytes are left");
            }
            assert!(opened(&mut theirs[at], &second.1).is_err(), "one was left out");
            assert!(
                others.iter().all(|other| opened(&mut theirs[*other], &first.1).is_err()),
                "in another lane"
            );
            assert!(ours.iter_mut().all(|own| opened(own, &first.1).is_err()), "reflected");
            let [_, mut other] = session(2, aead, NO_LIMIT);
            assert!(opened(&mut other[at], &first.1).is_err(), "in another session");
            assert_eq!(opened(&mut theirs[at], &first.1), Ok(first.0));
            assert!(opened(&mut theirs[at], &first.1).is_err(), "repeated");
            assert_eq!(opened(&mut theirs[at], &second.1), Ok(second.0), "nothing refused has an effect");
        }
    }

    #[test]
    fn keys_change_after_number_of_frames_and_after_time() {
        let limit = PhaseLimit { frames: 3, time: Duration::from_secs(60) };
        let [mut ours, mut theirs] = session(1, Aead::Aes256Gcm, limit);
        let phases = [0, 0, 0, 0, 59, 60, 61].map(|seconds| {
            let now = Time(0) + Duration::from_secs(seconds);
            let sealed = sealed(&mut ours[0], &frame(7, 9), now);
            assert_eq!(opened_at(&mut theirs[0], &sealed, now), Ok(frame(7, 9)));
            u8::from(sealed[1] & flags::PHASE != 0)
        });
        assert_eq!(phases, [0, 0, 0, 1, 1, 0, 0]);
        let mut stale = sealed(&mut ours[0], &frame(7, 9), Time(0));
        stale[1] ^= flags::PHASE;
        assert!(opened(&mut theirs[0], &stale).is_err(), "the phase is authenticated");
    }

    #[test]
    fn peer_may_change_keys_at_most_twice_as_often_as_specified() {
        let limit = PhaseLimit { frames: 10, time: Duration::from_secs(600) };
        // Returns the number of frames that are opened, and the error that ends them.
        let opened_of = |frames_per_phase, frames: u64, seconds_per_frame: u64| {
            let of_peer = PhaseLimit { frames: frames_per_phase, time: limit.time };
            let [mut peers, _] = session(1, Aead::Aes256Gcm, of_peer);
            let [_, mut ours] = session(1, Aead::Aes256Gcm, limit);
            let frames = (0..frames).map(|at| {
                let now = Time(0) + Duration::from_secs(at * seconds_per_frame);
                (sealed(&mut peers[0], &frame(7, 9), now), now)
            });
            let mut opened = (0, Ok(()));
            for (sealed, now) in frames {
                if let Err(error) = opened_at(&mut ours[0], &sealed, now) {
                    opened.1 = Err(error);
                    break;
                }
                opened.0 += 1;
            }
            opened
        };
        let refused = |frames| {
            let (opened, result) = frames;
            let Err(FrameError::Altered(cause)) = result else { panic!("{opened} frames are opened") };
            assert!(cause.contains("changes its keys too often"), "{cause}");
            opened
        };
        assert_eq!(refused(opened_of(1, 1000, 0)), 2, "a change per frame");
        assert_eq!(refused(opened_of(4, 1000, 0)), 24, "a change per four frames");
        assert_eq!(refused(opened_of(1, 1000, 200)), 4, "a change per 200 s");
        assert_eq!(opened_of(5, 1000, 0), (1000, Ok(())), "a change per five frames");
        assert_eq!(opened_of(10, 1000, 0), (1000, Ok(())), "an honest peer");
        assert_eq!(opened_of(10, 1000, 600), (1000, Ok(())), "a frame in ten minutes");
    }

    #[test]
    fn delayed_key_changes_are_accepted_at_once() {
        let limit = PhaseLimit { frames: 10, time: Duration::from_secs(600) };
        let [mut ours, mut theirs] = session(1, Aead::Aes256Gcm, limit);
        let times = (0..20).map(|at| Time(0) + Duration::from_secs(600 * at)).collect::<Vec<_>>();
        for sealed in times.iter().map(|now| sealed(&mut ours[0], &frame(7, 9), *now)).collect::<Vec<_>>() {
            assert_eq!(opened_at(&mut theirs[0], &sealed, times[19]), Ok(frame(7, 9)));
        }
    }

    #[test]
    fn pieces_of_large_message_open_only_in_order() {
        let [mut ours, theirs] = session(1, Aead::ChaCha20Poly1305, NO_LIMIT);
        let message = |ours: &mut LaneSeal| {
            let mut seal = ours.new_content(true);
            let key = *seal.key().first_chunk().unwrap();
            let pieces = [(1, SIMULATED_PIECE), (2, SIMULATED_PIECE), (3, 5)].map(|(fill, length)| {
                let mut piece = vec![fill; length];
                seal.seal(&mut piece);
                piece
            });
            assert_eq!(pieces.iter().map(Vec::len).sum::<usize>(), seal.sealed(2 * SIMULATED_PIECE + 5));
            (key, pieces)
        };
        let (key, [first, second, last]) = message(&mut ours[0]);
        let (other_key, [of_other, ..]) = message(&mut ours[0]);
        assert_ne!(key, other_key);
        let open = |seal: &mut ContentSeal, piece: &[u8]| {
            let mut bytes = vec![0; 7];
            bytes.extend_from_slice(piece);
            seal.open(&mut bytes, 7).map(|()| bytes[..piece.len() - TAG].to_vec())
        };
        let seal = || theirs[0].content(&key, true);
        for at in [0, 100, SIMULATED_PIECE - 1, SIMULATED_PIECE, SIMULATED_PIECE + TAG - 1] {
            let mut changed = first.clone();
            changed[at] ^= 0x80;
            assert!(open(&mut seal(), &changed).is_err(), "byte {at} was changed");
        }
        for wrong in [&second, &of_other, &last] {
            assert!(open(&mut seal(), wrong).is_err());
        }
        assert!(open(&mut seal(), &first[..first.len() - 1]).is_err());
        let mut seal = seal();
        for (piece, fill) in [(&first, 1), (&second, 2), (&last, 3)] {
            assert_eq!(open(&mut seal, piece), Ok(vec![fill; piece.len() - TAG]));
        }
    }

    #[test]
    fn frame_counts_continue_after_lanes_switch_to_renewal_keys() {
        let limit = PhaseLimit { frames: 2, time: Duration::MAX };
        let [mut ours, mut theirs] = session(1, Aead::Aes256Gcm, limit);
        let renewed = |is_client| {
            let keys = exported(9).lanes(Aead::ChaCha20Poly1305, Pollers { own: 1, peers: 1, is_client });
            keys.into_iter().flatten().next().unwrap()
        };
        ours[0].renew(renewed(true).seals);
        for at in 0..7 {
            let sealed = sealed(&mut ours[0], &frame(at, 9), Time(0));
            assert_eq!(opened(&mut theirs[0], &sealed), Ok(frame(at, 9)));
            assert_eq!(sealed[1] & flags::PHASE != 0, [0, 0, 1, 0, 0, 1, 1][usize::from(at)] == 1);
            if at == 2 {
                // Frame 2 is a SWITCH.
                ours[0].switch(Time(0));
                theirs[0].peer_switched(renewed(false).opens);
            }
        }
    }
}
