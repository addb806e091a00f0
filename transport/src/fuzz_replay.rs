//! Replays the fuzz corpus and a short run of mutations of it: frames, handshakes, and peers' claims about
//! credit.

#[path = "../../fuzz/replay.rs"]
mod replay;

use crate::fuzz;
use replay::{LENGTH_MAX, files, run};
use std::path::PathBuf;
use trunkline_testkit::wire_examples;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = [env!("CARGO_MANIFEST_DIR"), "tests/corpus", name].iter().collect::<PathBuf>();
    let corpus = files(&folder);
    assert!(corpus.iter().all(|file| file.len() <= LENGTH_MAX), "an input that is too long");
    corpus
}

#[test]
fn frames() {
    run("frame", &corpus("frame"), 300_000, fuzz::frame);
}

#[test]
fn frames_of_all_kinds_are_in_the_corpus() {
    let corpus = corpus("frame");
    for (name, frame) in wire_examples() {
        assert!(corpus.contains(&frame), "docs/wire.md has an example that the corpus does not: {name}");
    }
}

#[test]
fn handshakes() {
    run("handshake", &corpus("handshake"), 300_000, fuzz::handshake);
}

#[test]
fn credit_claims() {
    run("credit", &corpus("credit"), 30_000, fuzz::credit);
}
