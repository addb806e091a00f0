//! The trace of a call, in the format of the W3C recommendation "Trace Context".
//!
//! The metadata keys `traceparent` and `tracestate` contain the trace. Parsing accepts later versions of the format, and
//! output has version 0. This module does not create identifiers.
//!
//! A peer chooses the trace, and a handler's nested calls inherit it. In nested calls, the trace is therefore limited to
//! [`MOST_TRACE_BYTES`], and is dropped before all other metadata.

use super::{Metadata, PREFIX};
use std::fmt;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";
/// Length of a `traceparent` of version 0, in bytes.
const PARENT_BYTES: usize = 55;
/// Maximum length of a `tracestate` that is passed on (Trace Context §3.3.1.5).
const MOST_STATE: usize = 512;
/// Maximum number of entries in a `tracestate` (Trace Context §3.3.1.1).
const MOST_ENTRIES: usize = 32;
/// Length in bytes above which an entry is among the first to be dropped (Trace Context §3.3.1.5).
const LONG_ENTRY: usize = 128;
/// Maximum length of an entry's key, and of its value, in bytes.
const MOST_PART: usize = 256;
/// Maximum size of a trace that a call inherits, in the metadata of the call's request.
pub(crate) const MOST_TRACE_BYTES: usize =
    2 * PREFIX + PARENT.len() + PARENT_BYTES + STATE.len() + MOST_STATE;
/// Flag of a trace that the caller may have recorded.
const SAMPLED: u8 = 1;

/// The trace to which a call belongs, and the span that made the call, as in W3C `traceparent` and `tracestate`.
///
/// It is sent as metadata of the request. A handler's nested calls continue the trace. See
/// [`Context::trace`](crate::Context::trace).
///
/// ```
/// use trunkline::{Metadata, TraceContext};
///
/// let mut metadata = Metadata::new();
/// metadata.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")?;
/// let trace = TraceContext::of(&metadata).expect("it is well-formed");
/// assert_eq!(format!("{:032x}", trace.trace_id()), "0af7651916cd43dd8448eb211c80319c");
/// assert!(trace.is_sampled());
/// # Ok::<(), trunkline::MetadataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
    state: String,
}

impl TraceContext {
    /// Creates a trace context without state. Returns `None` if an identifier is zero.
    #[must_use]
    pub fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<Self> {
        let flags = if is_sampled { SAMPLED } else { 0 };
        (trace_id != 0 && span_id != 0).then(|| Self { trace_id, span_id, flags, state: String::new() })
    }

    /// Returns the trace context in metadata, or `None` if the trace is missing or malformed.
    ///
    /// The state is limited to 512 bytes. From a longer state, entries of more than 128 bytes are removed first, and then
    /// other entries, starting at the end in both cases. A state that is malformed or has more than 32 entries is omitted.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Option<Self> {
        let mut parents = metadata.get_all(PARENT);
        let trace = Self::parse(parents.next()?)?;
        if parents.next().is_some() {
            return None;
        }
        Some(trace.with_state(bounded_state(metadata.get_all(STATE)).unwrap_or_default()))
    }

    /// Parses a `traceparent`, which consists of version, trace, span and flags.
    fn parse(text: &str) -> Option<Self> {
        let is_hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        let (known, later) = text.split_at_checked(PARENT_BYTES)?;
        let mut parts = known.split('-');
        let mut next = |digits: usize| {
            let part = parts.next()?;
            (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
        };
        let [version, trace_id, span_id, flags] = [next(2)?, next(32)?, next(16)?, next(2)?];
        // Later versions may append parts.
        let is_complete = later.is_empty() || (version != "00" && later.starts_with('-'));
        if version == "ff" || !is_complete {
            return None;
        }
        let trace_id = u128::from_str_radix(trace_id, 16).ok()?;
        let trace = Self::new(trace_id, u64::from_str_radix(span_id, 16).ok()?, false)?;
        Some(Self { flags: u8::from_str_radix(flags, 16).ok()?, ..trace })
    }

    /// Sets the vendors' entries, in the format of `tracestate`.
    #[must_use]
    pub fn with_state(self, state: impl Into<String>) -> Self {
        Self { state: state.into(), ..self }
    }

    /// Returns the identifier of the trace, which is not zero.
    #[must_use]
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// Returns the identifier of the span that made the call, which is not zero.
    #[must_use]
    pub fn span_id(&self) -> u64 {
        self.span_id
    }

    /// Returns true if the caller may have recorded the trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the vendors' entries, in the format of `tracestate`. Empty if there are none.
    #[must_use]
    pub fn state(&self) -> &str {
        &self.state
    }

    /// Writes the trace context into metadata and replaces an earlier trace context. A state that is not printable ASCII, or
    /// has more than 65,535 bytes, is omitted.
    pub fn put_into(&self, metadata: &mut Metadata) {
        metadata.remove(STATE);
        let _never_fails = metadata.insert(PARENT, &self.to_string());
        if !self.state.is_empty() {
            let _left_out = metadata.insert(STATE, &self.state);
        }
    }
}

/// Returns the entries of all `tracestate` values that fit, or `None` if one is malformed or there are too many.
fn bounded_state<'m>(states: impl Iterator<Item = &'m str>) -> Option<String> {
    let entries = states.flat_map(|state| state.split(',')).map(|entry| entry.trim_matches(' '));
    let mut kept = Vec::new();
    for entry in entries.filter(|entry| !entry.is_empty()) {
        if kept.len() == MOST_ENTRIES || !is_state_entry(entry) {
            return None;
        }
        kept.push(entry);
    }
    let length = |kept: &[&str]| kept.iter().map(|entry| entry.len() + 1).sum::<usize>().saturating_sub(1);
    while length(&kept) > MOST_STATE {
        let long = kept.iter().rposition(|entry| entry.len() > LONG_ENTRY);
        kept.remove(long.unwrap_or(kept.len() - 1));
    }
    Some(kept.join(","))
}

/// Returns true if the text, which must be trimmed, has the form `key=value` (Trace Context §3.3.1.3).
fn is_state_entry(entry: &str) -> bool {
    let Some((key, value)) = entry.split_once('=') else { return false };
    let is_key = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let is_value = |c: u8| matches!(c, b' '..=b'~') && c != b',' && c != b'=';
    let begins = key.bytes().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let lengths = (1..=MOST_PART).contains(&key.len()) && (1..=MOST_PART).contains(&value.len());
    begins && lengths && key.bytes().all(is_key) && value.bytes().all(is_value)
}

/// Writes the trace context in the format of `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl Metadata {
    /// Returns true if there is a `traceparent`, whether or not it is well-formed.
    pub(crate) fn has_trace(&self) -> bool {
        self.get(PARENT).is_some()
    }

    /// Drops the `tracestate` if the metadata exceeds `most` bytes, and then the `traceparent` if the metadata is still too
    /// large. A peer may have chosen both.
    pub(crate) fn drop_trace_beyond(&mut self, most: usize) {
        for key in [STATE, PARENT] {
            if self.size() > most {
                self.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT_00: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(parents: &[&str], states: &[&str]) -> Option<TraceContext> {
        let mut metadata = Metadata::new();
        parents.iter().for_each(|parent| metadata.append(PARENT, parent).unwrap());
        states.iter().for_each(|state| metadata.append(STATE, state).unwrap());
        TraceContext::of(&metadata)
    }

    #[test]
    fn well_formed_trace_contexts_round_trip() {
        let trace = of(&[PARENT_00], &["a=1", "", "b=2,c=3"]).unwrap();
        assert_eq!(
            (trace.trace_id(), trace.span_id()),
            (0x0af7651916cd43dd8448eb211c80319c, 0xb7ad6b7169203331)
        );
        assert_eq!((trace.is_sampled(), trace.state()), (true, "a=1,b=2,c=3"));
        let mut metadata = Metadata::new();
        metadata.append(PARENT, "old").unwrap();
        metadata.append(STATE, "old").unwrap();
        trace.put_into(&mut metadata);
        assert_eq!((metadata.get(PARENT), metadata.len()), (Some(PARENT_00), 2));
        assert_eq!(TraceContext::of(&metadata), Some(trace));
        TraceContext::new(1, 2, false).unwrap().put_into(&mut metadata);
        let expected = "00-00000000000000000000000000000001-0000000000000002-00";
        assert_eq!((metadata.get(PARENT), metadata.get(STATE)), (Some(expected), None));
    }

    #[test]
    fn state_is_bounded_by_whole_entries() {
        let long = |key: &str| format!("{key}={}", "v".repeat(127));
        let short = |key: &str| format!("{key}={}", "v".repeat(98));
        let [a, b, c, d, e, f] = ["a", "b", "c", "d", "e", "f"].map(short);
        let longest = format!("{}={}", "k".repeat(255), "v".repeat(256));
        let kept = |states: &[&str]| of(&[PARENT_00], states).unwrap().state().to_owned();
        assert_eq!(kept(&[&longest]), longest, "512 bytes");
        assert_eq!(kept(&[&longest, "z=1"]), "z=1");
        // Five entries of 100 bytes and their commas fit.
        assert_eq!(kept(&[&[&*a, &b, &c, &d, &e, &f].join(",")]), [&*a, &b, &c, &d, &e].join(","));
        let (x, y) = (long("x"), long("y"));
        assert_eq!(
            kept(&[&[&*x, &a, &b, &y, &c].join(",")]),
            [&*x, &a, &b, &c].join(","),
            "the last long one"
        );
        assert_eq!(kept(&[&[&*x, &a, &b, &y].join(" , "), &c, &d]), [&*a, &b, &c, &d].join(","));
        let entries = |count: usize| (0..count).map(|n| format!("k{n}=1")).collect::<Vec<_>>().join(",");
        assert_eq!(kept(&[&entries(32)]), entries(32));
        let too_long = [format!("k={}", "v".repeat(257)), format!("{}=1", "k".repeat(257))];
        for bad in
            ["a", "=1", "a=", "A=1", "_a=1", "a b=1", "a=1=2", &entries(33), &too_long[0], &too_long[1]]
        {
            assert_eq!(kept(&["ok=1", bad]), "", "{bad}");
        }
    }

    #[test]
    fn later_versions_may_be_longer() {
        for (parent, is_valid) in [
            (PARENT_00.replacen("00", "01", 1), true),
            (PARENT_00.replacen("00", "cc", 1) + "-more", true),
            (PARENT_00.replacen("00", "cc", 1) + "more", false),
            (PARENT_00.replacen("00", "ff", 1), false),
            (PARENT_00.to_owned() + "-more", false),
        ] {
            assert_eq!(of(&[&parent], &[]).is_some(), is_valid, "{parent}");
        }
    }

    #[test]
    fn malformed_contexts_are_ignored() {
        let zero_trace = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let zero_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let misplaced = "00-0af7651916cd43dd8448eb211c80319-cb7ad6b7169203331-01";
        let signed = "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let upper = PARENT_00.to_uppercase();
        for bad in ["", "00", &PARENT_00[..54], zero_trace, zero_span, misplaced, signed, &*upper] {
            assert_eq!(of(&[bad], &["a=1"]), None, "{bad}");
        }
        assert_eq!((of(&[PARENT_00, PARENT_00], &[]), of(&[], &["a=1"])), (None, None));
        assert_eq!((TraceContext::new(0, 1, true), TraceContext::new(1, 0, true)), (None, None));
    }
}
