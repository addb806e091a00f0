//! Replays the fuzz corpora of frames and values, and some mutations of them.

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::{LENGTH_MAX, files, run};
use std::path::PathBuf;
use trunkline::fuzz;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let mut corpus = files(&[env!("CARGO_MANIFEST_DIR"), "tests/corpus", name].iter().collect::<PathBuf>());
    corpus.iter_mut().for_each(|file| file.truncate(LENGTH_MAX));
    corpus
}

#[test]
fn call_frame_corpus_keeps_properties_of_parser() {
    run("call_frame", &corpus("call_frame"), 50_000, fuzz::call_frame);
}

#[test]
fn value_corpus_keeps_properties_of_decoder() {
    run("values", &corpus("values"), 20_000, fuzz::values);
}
