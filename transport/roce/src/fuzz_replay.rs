//! Replays the fuzz corpus and a short run of mutations, to check the properties of each parser.

#[path = "../../../fuzz/replay.rs"]
mod replay;

use crate::fuzz;
use crate::pcap::{Datagram, PcapReader};
use crate::wire::MAD_BYTES;
use replay::{LENGTH_MAX, files, run};
use std::path::PathBuf;

const RUNS: u64 = 100_000;

fn folder(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", name].iter().collect()
}

/// Returns the UDP payloads of all captured packets, without ICRC.
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

#[test]
fn packet_corpus_keeps_properties_of_parser() {
    let mut corpus = captured_packets();
    corpus.extend(files(&folder("corpus/packet")));
    run("packet", &corpus, RUNS, fuzz::packet);
}

#[test]
fn mad_corpus_keeps_properties_of_parser() {
    let mut corpus: Vec<_> = captured_packets()
        .into_iter()
        .filter(|p| p.len() == 20 + MAD_BYTES)
        .map(|p| p[20..].to_vec())
        .collect();
    corpus.extend(files(&folder("corpus/mad")));
    run("mad", &corpus, RUNS, |data| {
        let mut mad = [0; MAD_BYTES];
        mad.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        fuzz::mad(&mad);
    });
}

#[test]
fn capture_corpus_keeps_properties_of_reader() {
    let mut corpus = files(&folder("vectors/rc"));
    corpus.extend(files(&folder("vectors/xrc")));
    corpus.extend(files(&folder("corpus/capture")));
    corpus.iter_mut().for_each(|file| file.truncate(LENGTH_MAX));
    run("capture", &corpus, RUNS, fuzz::capture);
}
