//! Fuzz targets, which are functions that take arbitrary bytes and panic if a property is violated.
//!
//! The tests call the targets with a corpus and brief mutations of it. Coverage-guided fuzzers call them too.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::credit::Grantor;
#[cfg(feature = "identity")]
use crate::identity::{
    Credentials, HandshakeFailure, Identity, Trust, binding,
    exchange::{Exchange, Proof, Role},
    flight::{Flight, Incoming},
};
use crate::session::private_data::{Features, Hello, Refusal, Welcome};
use crate::wire::frame::{Announcement, DRIVER, Fin, FrameKind, Header, SETTLED, Settled, bundled};
#[cfg(feature = "identity")]
use crate::wire::handshake::Part;
use crate::wire::handshake::{Fragment, associated};
use crate::wire::settings::Settings;
#[cfg(feature = "identity")]
use std::sync::{Arc, OnceLock};
use trunkline_verbs::QpNumber;
#[cfg(feature = "identity")]
use trunkline_verbs::Time;

/// Parses a frame and its body, and checks that the parsed values survive a round trip.
pub fn frame(data: &[u8]) {
    let Ok(header) = Header::parse(data) else { return };
    let Header { grant, want, target, .. } = header;
    assert_eq!(Settled { grant, want, target }.emit()[..], data[SETTLED..8], "a header comes back");
    let rest = &data[header.bytes..];
    match header.kind {
        FrameKind::Announcement => {
            let announcement = Announcement::parse(rest);
            assert_eq!(Announcement::parse(&announcement.emit()), announcement, "an announcement comes back");
        }
        FrameKind::Fin => {
            for fin in Fin::parse_all(rest).flatten() {
                assert!(Fin::parse_all(&fin.emit()).eq([Ok(fin)]), "a FIN comes back");
            }
        }
        FrameKind::Settings => {
            if let Ok(settings) = Settings::parse(rest) {
                assert_eq!(Settings::parse(&settings.emit()), Ok(settings), "settings come back");
            }
        }
        FrameKind::Bundle => {
            let mut end = 0;
            for message in bundled(data, header.message.word) {
                let Ok(message) = message else { return };
                let contents = message.contents;
                assert!(message.header.kind >= DRIVER && contents.start > end, "messages in order");
                end = contents.end;
                assert!(end <= data.len(), "messages within their frame");
            }
        }
        FrameKind::Handshake => {
            if let Ok(fragment) = Fragment::parse(data) {
                let frame = fragment.emit();
                assert_eq!(frame.len(), data.len(), "a fragment fills its frame");
                assert_eq!(Fragment::parse(&frame), Ok(fragment), "a fragment comes back");
                assert_eq!(associated(&frame)[4..14], associated(data)[4..14], "its fields come back");
                let Fragment { exchange, is_sealed, part, offset, total, bytes } = fragment;
                let flight = [bytes, &vec![0; usize::from(total)]].concat();
                let mut all = Fragment::all(exchange, is_sealed, part, &flight[..usize::from(total)]);
                assert!(offset > 0 || all.next() == Some(fragment), "a fragment begins its flight");
            }
        }
        FrameKind::Message | FrameKind::Credit | FrameKind::Unknown => {}
    }
}

/// Parses the private data of a handshake as each of its messages, and checks that the parsed values survive
/// a round trip.
pub fn handshake(data: &[u8]) {
    if let Ok(hello) = Hello::parse(data, Features::HANDSHAKE) {
        assert_eq!(Hello::parse(&hello.emit(), Features::HANDSHAKE), Ok(hello), "a hello comes back");
    }
    if let Ok(welcome) = Welcome::parse(data) {
        assert_eq!(Welcome::parse(&welcome.emit()), Ok(welcome), "a welcome comes back");
    }
    if let Some(refusal) = Refusal::parse(data)
        // An emitted refusal names the versions of this node.
        && !matches!(refusal, Refusal::Version(_))
    {
        assert_eq!(Refusal::parse(&refusal.emit(false)), Some(refusal), "a refusal comes back");
    }
}

/// Parses the bytes after the first as a flight of the kind that the first byte selects, and as the list of a binding.
#[cfg(feature = "identity")]
pub fn identity(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let flight = Flight::ALL[usize::from(first) % Flight::ALL.len()];
    let mut incoming = Incoming::new(flight);
    let fragments = Fragment::all(0, flight.is_sealed(), Part::Tls, bytes);
    let results = fragments.map_while(|fragment| incoming.take(&fragment).ok()).collect::<Vec<_>>();
    if results.contains(&true) {
        assert_eq!(incoming.into_bytes(), bytes, "a flight is whole at its end");
    }
    let ours = binding::example();
    if let Ok(settings) = ours.compare(bytes) {
        assert!(
            bytes.len() >= ours.emit().len() - ours.settings.len() + settings.len(),
            "all entries are there"
        );
    }
}

/// Passes arbitrary frames to one side of a handshake. The lowest bit of the first byte selects the side, and the
/// other bits are the number of valid frames that are passed first. Each frame is preceded by its length, in two
/// bytes.
#[cfg(feature = "identity")]
pub fn exchange(data: &[u8]) {
    /// Self-signed certificate and its key.
    const PEM: &[u8] = include_bytes!("../tests/corpus/example.pem");
    static OWN: OnceLock<Arc<Credentials>> = OnceLock::new();
    const DEADLINE: Time = Time(5);
    let own = OWN.get_or_init(|| {
        let identity = Identity::from_pem(PEM, PEM).expect("a certificate and its key");
        let trust = Trust::from_pem(PEM).expect("a certificate");
        let provider = rustls::crypto::ring::default_provider();
        let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
        Arc::new(Credentials::new(&identity, &trust, provider, time).expect("a suitable provider"))
    });
    let Some((&first, mut rest)) = data.split_first() else { return };
    let mut sides = [[1, 2], [2, 1]].map(|[ours, theirs]| {
        let role = Role::of(ours, theirs).expect("different epochs");
        Exchange::new(role, own, binding::example(), 0, DEADLINE).expect("random numbers")
    });
    let deliver = |to: &mut Exchange, frame: &[u8]| -> Result<(), HandshakeFailure> {
        let mut is_ready = to.handle(frame.into())?;
        while is_ready {
            is_ready = to.advance()?;
        }
        to.confirm(Time(1));
        Ok(())
    };
    let mut honest = usize::from(first >> 1);
    for sender in [0, 1, 0, 1] {
        while honest > 0
            && let Some(frame) = sides[sender].poll_frame()
        {
            honest -= 1;
            assert_eq!(deliver(&mut sides[1 - sender], &frame), Ok(()), "an honest handshake goes on");
        }
    }
    let [client, server] = sides;
    let mut side = if first & 1 == 0 { client } else { server };
    let proof = side.take_proof();
    if let Some(Proof { proven, settings, .. }) = &proof {
        assert_eq!(
            (proven.names().len(), proven.certificates().len()),
            (1, 1),
            "a proof has names and certificates"
        );
        assert_eq!(settings[..], binding::example().settings[..], "and settings");
    }
    let mut ended = None;
    while let Some((&length, after)) = rest.split_first_chunk() {
        let (frame, after) = after.split_at(after.len().min(u16::from_le_bytes(length).into()));
        rest = after;
        let result = deliver(&mut side, frame);
        assert!(ended.is_none() || result.is_ok(), "frames after the end are ignored");
        ended = ended.or(result.err());
    }
    assert!(proof.is_some() || side.take_proof().is_none(), "any frames prove a name");
    assert!(side.next_timer().is_none() || side.handle_timer(DEADLINE).is_err(), "a wait without end");
    for frame in std::iter::from_fn(|| side.poll_frame()) {
        assert!(Fragment::parse(&frame).is_ok_and(|fragment| fragment.emit().len() == frame.len()));
    }
}

/// Applies arbitrary credit claims of peers, and checks that receives are never granted twice. The first byte is the
/// depth. Each group of four bytes after it is one action of a peer.
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
                // In a real session, a violation ends the session. Here the peer continues.
                let released = (step[0] & 4 == 0).then_some(u16::from(step[2]));
                let _ = grantor.apply_header(pair, now_ms, step[3], released);
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

/// Replay loop, shared by the tests of all crates with fuzz targets.
#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

/// Replays the corpus and a short run of mutations of it.
#[cfg(test)]
mod tests {
    use super::replay::{LENGTH_MAX, files, run};
    use std::path::PathBuf;
    use trunkline_testkit::wire_examples;

    fn corpus(name: &str) -> Vec<Vec<u8>> {
        let folder = [env!("CARGO_MANIFEST_DIR"), "tests/corpus", name].iter().collect::<PathBuf>();
        let corpus = files(&folder);
        assert!(corpus.iter().all(|file| file.len() <= LENGTH_MAX), "an input that is too long");
        corpus
    }

    #[test]
    fn frame_corpus_keeps_properties_of_parser() {
        run("frame", &corpus("frame"), 300_000, super::frame);
    }

    #[test]
    fn frames_of_all_kinds_are_in_corpus() {
        let corpus = corpus("frame");
        for (name, frame) in wire_examples() {
            assert!(
                corpus.contains(&frame),
                "docs/book/src/why/wire.md has an example that the corpus does not: {name}"
            );
        }
    }

    #[test]
    fn private_data_corpus_keeps_properties_of_parser() {
        run("handshake", &corpus("handshake"), 300_000, super::handshake);
    }

    #[test]
    #[cfg(feature = "identity")]
    fn identity_corpus_keeps_properties_of_parser() {
        let corpus = corpus("identity");
        let ours = crate::identity::binding::example();
        assert!(corpus.iter().any(|file| ours.compare(&file[1..]).is_ok()), "no binding that is accepted");
        run("identity", &corpus, 300_000, super::identity);
    }

    #[test]
    #[cfg(feature = "identity")]
    fn exchange_corpus_keeps_properties_of_handshake() {
        run("exchange", &corpus("exchange"), 500, super::exchange);
    }

    #[test]
    fn credit_corpus_keeps_properties_of_grants() {
        run("credit", &corpus("credit"), 30_000, super::credit);
    }
}
