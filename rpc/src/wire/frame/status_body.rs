//! The texts of a status, which are the encoded part of a reply that contains a status. The header contains the code, the
//! reason and the origin, and the body contains the details.
//!
//! ```text
//! 0 bytes of the message (4)   the message   causes (1)   then, for each: bytes of its text (2)   its text
//! ```
//!
//! Texts are UTF-8, and invalid sequences are replaced. The bytes come from a peer, so limits are checked before anything is
//! allocated.

use crate::status::{MOST_CAUSE_BYTES, MOST_CAUSES, MOST_DETAILS, MOST_MESSAGE_BYTES, Status, cut};
use std::borrow::Cow;

/// The code of a reply whose encoded part is an error of the method's own type.
pub(crate) const HANDLER_ERROR: u8 = 0xff;

/// Appends the texts of a status. The message is truncated to the receiver's limit.
pub(crate) fn emit(status: &Status, into: &mut Vec<u8>) {
    let message = cut(status.message(), MOST_MESSAGE_BYTES);
    into.extend(u32::try_from(message.len()).unwrap_or_default().to_le_bytes());
    into.extend_from_slice(message.as_bytes());
    // Causes in a status never exceed their limits.
    let causes = &status.causes()[..status.causes().len().min(MOST_CAUSES)];
    into.push(u8::try_from(causes.len()).unwrap_or_default());
    for cause in causes {
        let cause = cut(cause, MOST_CAUSE_BYTES);
        into.extend(u16::try_from(cause.len()).unwrap_or_default().to_le_bytes());
        into.extend_from_slice(cause.as_bytes());
    }
}

/// The texts of a status.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StatusTexts<'m> {
    pub(crate) message: Cow<'m, str>,
    pub(crate) causes: Vec<String>,
}

/// Parses the texts in `encoded`. Returns `None` if the texts, or `details` bytes of details, exceed the limits on a status.
pub(crate) fn parse(encoded: &[u8], details: usize) -> Option<StatusTexts<'_>> {
    let (length, rest) = encoded.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (message, rest) = rest.split_at_checked(length)?;
    let (&count, mut rest) = rest.split_first()?;
    if length > MOST_MESSAGE_BYTES || usize::from(count) > MOST_CAUSES || details > MOST_DETAILS {
        return None;
    }
    let mut causes = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (length, text) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (text, others) = text.split_at_checked(length).filter(|_| length <= MOST_CAUSE_BYTES)?;
        causes.push(String::from_utf8_lossy(text).into_owned());
        rest = others;
    }
    rest.is_empty().then(|| StatusTexts { message: String::from_utf8_lossy(message), causes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Code;
    use crate::wire::frame::Header;
    use trunkline_transport::MessageHeader;

    fn emitted(status: &Status) -> Vec<u8> {
        let mut bytes = Vec::new();
        emit(status, &mut bytes);
        bytes
    }

    #[test]
    fn status_texts_round_trip() {
        let status = Status::aborted("no").with_cause("disk").with_cause("plug");
        let bytes = emitted(&status);
        assert_eq!(bytes, b"\x02\0\0\0no\x02\x04\0disk\x04\0plug");
        let texts = StatusTexts { message: "no".into(), causes: status.causes().to_vec() };
        assert_eq!(parse(&bytes, 0), Some(texts));
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end], 0), None, "cut at {end}");
        }
        assert_eq!(parse(&[&bytes[..], &[0]].concat(), 0), None);
        assert_eq!(parse(b"\x01\0\0\0\xff\0", 0).unwrap().message, "\u{fffd}");
    }

    /// Parses and emits the statuses in the examples of `docs/book/src/why/wire.md`.
    #[test]
    fn examples_of_wire_document_parse_and_re_emit() {
        let mut seen = Vec::new();
        for (name, frame) in
            trunkline_testkit::wire_examples().into_iter().filter(|(_, frame)| frame[0] == 0x30)
        {
            let ([kind, flags, low, high], frame) = trunkline_testkit::message_in(&frame);
            let header = MessageHeader { kind, flags, word: u16::from_le_bytes([low, high]) };
            let Ok((Header::Reply { code: code @ 1..=16, .. }, encoded)) = Header::parse(header, frame)
            else {
                continue;
            };
            let texts = parse(&frame[encoded.clone()], frame.len() - encoded.end);
            let StatusTexts { message, causes } = texts.unwrap_or_else(|| panic!("{name}"));
            let status = Status::new(Code::from_number(code), message).with_causes(causes);
            assert_eq!(emitted(&status), frame[encoded], "{name}");
            seen.push(status.to_string());
        }
        assert_eq!(seen, ["FailedPrecondition: 0\nu16", "Unimplemented: ", "FailedPrecondition: no: x"]);
    }

    #[test]
    fn overlong_status_texts_are_cut_by_sender_and_refused_by_receiver() {
        let long = Status::aborted("ä".repeat(MOST_MESSAGE_BYTES));
        let bytes = emitted(&long);
        assert_eq!(parse(&bytes, 0).unwrap().message.len(), MOST_MESSAGE_BYTES);
        assert!(parse(&bytes, MOST_DETAILS).is_some());
        assert!(parse(&bytes, MOST_DETAILS + 1).is_none());
        let mut longer = bytes;
        longer.insert(4, b'a');
        longer[..4].copy_from_slice(&u32::try_from(MOST_MESSAGE_BYTES + 1).unwrap().to_le_bytes());
        assert!(parse(&longer, 0).is_none());
        let causes = |count: usize, bytes: usize| {
            let cause = [&u16::try_from(bytes).unwrap().to_le_bytes()[..], &vec![b'c'; bytes]].concat();
            [&[0, 0, 0, 0, u8::try_from(count).unwrap()][..], &cause.repeat(count)].concat()
        };
        assert!(parse(&causes(MOST_CAUSES, MOST_CAUSE_BYTES), 0).is_some());
        assert!(parse(&causes(MOST_CAUSES + 1, 1), 0).is_none());
        assert!(parse(&causes(1, MOST_CAUSE_BYTES + 1), 0).is_none());
    }
}
