//! Heap memory used by decoding, compared with the amount charged for it, for hostile and honest messages.

use crate::HEAP;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, LinkedList, VecDeque};
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;
use trunkline::codec::{Bincode, MessagePack};
use trunkline::fuzz::{decode_within, encode};
use trunkline_testkit::Random;

/// Memory granted for a hostile message, in bytes.
const LIMIT: usize = 8 << 20;
/// Memory that one collection may reserve before it is charged, in bytes: 1 MiB of elements, in a table with 16/7 slots per
/// element, and the allocations of a refusal.
const NOT_COUNTED: usize = (1 << 20) * 16 / 7 + (64 << 10);
/// Number of random messages per type, and maximum length of a message in bytes.
const MESSAGES: usize = 20;
const LONGEST: usize = 10_000;

/// A value of 400 bytes that may be encoded in one byte.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "what it takes when it is empty is the point")]
enum Wide {
    Empty,
    Full([u64; 25], [Option<u64>; 12]),
}

/// A recursive type without a collection.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Chain(Option<Box<Self>>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Tree {
    Leaf(Option<u64>),
    Pair(Box<Self>, Arc<Self>),
    Fork { name: String, below: Vec<Self>, of: BTreeMap<u8, Arc<Self>> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Id(u64);

/// A value whose encoding is empty.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Skipped {
    #[serde(skip)]
    wide: [u64; 16],
}

/// Checks that the heap memory used by a message is charged and does not exceed the grant. Returns true if the message was
/// decoded.
fn hostile<T: Serialize + DeserializeOwned>(name: &str, message: &[u8]) -> bool {
    let before = HEAP.in_use_bytes();
    HEAP.reset_most();
    let decoded = decode_within::<Bincode, T>(message, LIMIT);
    let (most, now) = (HEAP.most_bytes().saturating_sub(before), HEAP.in_use_bytes().saturating_sub(before));
    assert!(most <= LIMIT + NOT_COUNTED, "{name}: {most} bytes while {} were decoded", message.len());
    let Ok((_value, counted)) = decoded else { return false };
    assert!(
        now <= counted,
        "{name}: {now} bytes are held, {counted} are counted, of {} bytes",
        message.len()
    );
    true
}

/// Returns a message of lengths, tags and small numbers, mixed with random bytes.
fn random_message(random: &mut Random, wild: usize) -> Vec<u8> {
    let length = random.below(LONGEST);
    let byte = |random: &mut Random| match random.below(wild) {
        0 => random.below(256),
        1 => random.below(251),
        2..=4 => random.below(8),
        5..=7 => 1,
        _ => 0,
    };
    // The message begins by claiming as many elements as it has bytes.
    let mut message = vec![251];
    message.extend_from_slice(&u16::try_from(length).unwrap().to_le_bytes());
    message.extend((0..length).map(|_| u8::try_from(byte(random)).unwrap()));
    message
}

fn hostile_messages<T: Serialize + DeserializeOwned>(name: &str) {
    let mut random = Random(7);
    let mut decoded = 0;
    for round in 0..MESSAGES {
        // Later messages contain more zeros, which are empty values.
        let message = random_message(&mut random, 9 + round * round);
        decoded += u64::from(hostile::<T>(name, &message));
    }
    // A claim of nearly 1 GiB without contents.
    hostile::<T>(name, &[252, 0, 0, 0, 0x3f]);
    for claimed in [1_u32, 1000, 100_000] {
        for byte in [0, 1] {
            let mut message = vec![252];
            message.extend(claimed.to_le_bytes());
            let missing = message.len();
            message.resize(missing + claimed as usize * 2, byte);
            decoded += u64::from(hostile::<T>(name, &message));
            decoded += u64::from(hostile::<T>(name, &message[..missing + claimed as usize]));
            // A claim of far more bytes than the message has.
            message.truncate(missing);
            hostile::<T>(name, &message);
        }
    }
    eprintln!("{name}: {decoded} messages were decoded");
}

macro_rules! all_hostile {
    ($($type:ty,)*) => {
        $(hostile_messages::<$type>(stringify!($type));)*
    };
}

/// Checks that a value round-trips, and that the charged amount is not much more than the memory it uses.
fn honest<T: Serialize + DeserializeOwned + PartialEq>(name: &str, value: &T, most_times: usize) {
    let message = encode(value).unwrap();
    let before = HEAP.in_use_bytes();
    let (decoded, counted) = decode_within::<Bincode, T>(&message, 256 << 20).expect(name);
    let held = HEAP.in_use_bytes() - before;
    assert!(decoded == *value, "{name}");
    assert!((held..=held * most_times).contains(&counted), "{name}: {held} are held, {counted} counted");
}

/// Maximum size of the allocations for error texts, in bytes.
const REFUSED: usize = 64 << 10;

/// A type for which serde buffers the input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Expr {
    Number(u64),
    List(Vec<Self>),
    Map(BTreeMap<String, Self>),
}

/// A value of 4 KiB that may be encoded in one byte.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "what a small value takes is the point")]
enum Page {
    Number(u64),
    List(Vec<Self>),
    Full([[u64; 32]; 16]),
}

/// Checks that the heap memory used by a value that is nested in `levels` lists is charged.
fn buffered<T: Serialize + DeserializeOwned>(name: &str, levels: usize, value: &[u8]) {
    let message = [&[0x91].repeat(levels), value].concat();
    let before = HEAP.in_use_bytes();
    HEAP.reset_most();
    let (_value, counted) = decode_within::<MessagePack, T>(&message, 2 << 30).expect(name);
    let most = HEAP.most_bytes().saturating_sub(before);
    let is_counted = most <= counted + counted / 5 + REFUSED;
    assert!(is_counted, "{name}: {most} bytes within {levels} lists, {counted} are counted");
}

/// Returns the encoding of a list with `count` copies of a value.
fn list_of(count: u32, value: &[u8]) -> Vec<u8> {
    [&[0xdd], &count.to_be_bytes()[..], &value.repeat(count as usize)].concat()
}

fn copies_of_buffered_values_are_counted() {
    for levels in [0, 1, 4, 10] {
        buffered::<Expr>("numbers", levels, &list_of(5_000, &[7]));
        buffered::<Expr>("lists", levels, &list_of(3_000, &[0x91, 7]));
        buffered::<Expr>("maps", levels, &list_of(2_000, b"\x81\xa1a\x07"));
        buffered::<Page>("pages", levels, &list_of(500, &[7]));
    }
    let bytes = 100_000_u32;
    let texts = list_of(100, &[&[0xdb], &bytes.to_be_bytes()[..], &vec![b'a'; bytes as usize]].concat());
    let before = HEAP.in_use_bytes();
    let (value, counted) = decode_within::<MessagePack, Vec<Text>>(&texts, 64 << 20).unwrap();
    assert!(HEAP.in_use_bytes() - before <= counted, "{} texts", value.len());
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
}

pub(crate) fn heap_of_decoding_is_counted() {
    copies_of_buffered_values_are_counted();
    all_hostile! {
        Vec<String>, Vec<Option<u64>>, Vec<Vec<u8>>, Vec<[u64; 0]>, Vec<()>, Vec<Wide>, Vec<Vec<Wide>>, Vec<Skipped>,
        Vec<(String, Vec<String>)>, VecDeque<Wide>, LinkedList<u8>, LinkedList<()>, LinkedList<Wide>, BTreeSet<Vec<u8>>,
        Vec<BTreeSet<[u64; 16]>>, Vec<BTreeMap<u8, [u64; 16]>>, BTreeMap<String, String>, HashMap<u64, Wide>,
        HashMap<String, Vec<u8>>, HashSet<u8>, HashSet<Skipped>, Vec<HashMap<u8, [u64; 16]>>, Vec<HashSet<u8>>, Vec<Chain>,
        Vec<Tree>, Tree, Vec<Box<u8>>, Vec<Rc<u16>>, Vec<Option<Box<u8>>>, Vec<Box<[u8]>>, Vec<Arc<str>>, Vec<Id>,
        Vec<Option<Arc<Wide>>>, Vec<Box<(u8, u8)>>, (String, Vec<u8>, bytes::Bytes), Vec<bytes::Bytes>, Vec<char>,
    }
    let count = 100_000_u64;
    honest("options", &(0..4 * count).map(|at| (at % 3 > 0).then_some(at)).collect::<Vec<_>>(), 2);
    honest("texts", &(0..count).map(|at| at.to_string()).collect::<Vec<_>>(), 5);
    honest("ids", &(0..count).map(Id).collect::<Vec<_>>(), 2);
    honest("bytes", &vec![7_u8; 64 << 20], 2);
    let files = (0..count / 10).map(|at| (at.to_string(), vec![1_u8; 100]));
    honest("files", &files.clone().collect::<HashMap<_, _>>(), 2);
    honest("sorted files", &files.collect::<BTreeMap<_, _>>(), 4);
    let tree = |name: u64| Tree::Fork {
        name: name.to_string(),
        below: vec![
            Tree::Leaf(Some(name)),
            Tree::Pair(Box::new(Tree::Leaf(None)), Arc::new(Tree::Leaf(None))),
        ],
        of: BTreeMap::from([(1, Arc::new(Tree::Leaf(Some(1))))]),
    };
    let deep = (0..80).fold(tree(0), |below, name| Tree::Fork {
        name: name.to_string(),
        below: vec![below, tree(name)],
        of: BTreeMap::new(),
    });
    honest("trees", &(0..5_000).map(tree).chain([deep]).collect::<Vec<_>>(), 4);
    let chain = (0..60).fold(Chain(None), |chain, _| Chain(Some(Box::new(chain))));
    honest("chain", &chain, 20);
}
