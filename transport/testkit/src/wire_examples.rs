//! Examples in `docs/book/src/why/wire.md` and `docs/book/src/why/security.md`, for tests of code that parses frames or
//! derives keys.

use std::path::Path;

/// Returns the frames in `docs/book/src/why/wire.md` with their names.
///
/// # Panics
/// Panics if the document is missing, or if an example does not consist of a name and bytes.
#[must_use]
pub fn wire_examples() -> Vec<(String, Vec<u8>)> {
    examples("wire.md", "```frames")
}

/// Returns the values of the key test vector in `docs/book/src/why/security.md` with their names.
///
/// # Panics
/// Panics if the document is missing, or if an example does not consist of a name and bytes.
#[must_use]
pub fn key_examples() -> Vec<(String, Vec<u8>)> {
    examples("security.md", "```keys")
}

/// Returns the examples in a document after the line `start`.
fn examples(document: &str, start: &str) -> Vec<(String, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src/why").join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().skip_while(|line| *line != start).skip(1).take_while(|line| *line != "```");
    let byte = |text: &str| u8::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{text:?} is not a byte"));
    let example = |line: &str| {
        let (name, bytes) = line.split_once(": ").unwrap_or_else(|| panic!("{line:?} has no name"));
        (name.to_owned(), bytes.split_whitespace().map(byte).collect())
    };
    let examples = lines.map(example).collect::<Vec<_>>();
    assert!(!examples.is_empty(), "{document} has no examples");
    examples
}

/// Returns the header fields and the contents of a frame that consists of one message. The fields are the kind, the
/// driver's flags and the word.
#[must_use]
pub fn message_in(frame: &[u8]) -> ([u8; 4], &[u8]) {
    let (kind, flags) = (frame[0], frame[1]);
    let timed = if flags & 4 == 0 { 0 } else { 4 };
    let announcement = if flags & 2 == 0 { 0 } else { 32 };
    ([kind, flags & 0xf1, frame[2], frame[3]], &frame[8 + timed + announcement..])
}
