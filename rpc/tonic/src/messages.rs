//! Charges peers for the buffers of tonic's decoder. After the prefix of a message, the decoder reserves space for the
//! whole message. It inflates compressed messages into a second buffer, and keeps both buffers until the end of the stream.
//!
//! The peer is charged before the bytes of a body are passed to tonic. The size of the first buffer follows from the
//! prefix. The size of the second buffer is measured: a gzip or deflate message is kept until it is complete, and is
//! inflated once. Messages with other encodings cannot be measured. From the first such message on, the peer is charged for
//! the largest message that tonic inflates by default.
//!
//! The charge is at least the capacity of both buffers, less the first 8 KiB. With unmeasured messages, this holds only for
//! tonic's default `max_decoding_message_size`.

use bytes::Bytes;
use flate2::bufread::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use std::io::{Cursor, Read};
use std::task::{Context, Poll, ready};
use tonic::Status;
use trunkline::stub::PeerMemory;

/// Size of a message's prefix, in bytes. The prefix contains a flag and the size of the message.
const PREFIX: usize = 5;
/// Maximum size of a message that is passed on together with other messages, in bytes. tonic reserves space for the whole
/// message when it reads the prefix. If more than the prefix of a larger message were passed on, the buffer would become
/// twice as large.
const SMALL: usize = 4096;
/// Initial capacity of tonic's first buffer, and unit of the second buffer's size, in bytes.
const TONIC_BUFFER: usize = 8 << 10;
/// Number of bytes that are inflated before the task yields.
const TURN: usize = 256 << 10;
/// Maximum size to which tonic inflates a message by default, in bytes.
const TONIC_MAX_INFLATED: usize = 4 << 20;

/// Compression of the messages whose compression flag is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// No compression. tonic refuses messages whose flag is set.
    Identity,
    Gzip,
    Deflate,
    /// Any other compression, such as zstd. The inflated size cannot be measured.
    Unmeasured,
}

/// Sizes of the memory that holds messages, in bytes.
#[derive(Default)]
struct Held {
    buffer: usize,
    /// Size of the compressed message that is kept for measurement.
    compressed: usize,
    inflated: usize,
}

/// A compressed message that is being measured.
struct Inflating {
    message: Bytes,
    reader: Box<dyn Read + Send + Sync>,
    bytes: usize,
}

/// Divides the pieces of a body into frames for tonic, and charges the peer for tonic's buffers.
pub(crate) struct Messages {
    /// Maximum size of a message on the wire, in bytes; unlimited if `None`.
    most: Option<usize>,
    encoding: Encoding,
    /// `None` if the peer is this program itself.
    memory: Option<PeerMemory>,
    held: Held,
    /// The prefix of the current message, of which `filled` bytes have arrived.
    prefix: [u8; PREFIX],
    filled: usize,
    /// Number of bytes of the current message that are still to arrive.
    left: usize,
    /// The part of the last piece that is still to be divided.
    rest: Bytes,
    /// The current message without its prefix, if it is being measured.
    compressed: Vec<u8>,
    inflating: Option<Inflating>,
    /// A measured message that is ready to be passed on.
    measured: Bytes,
    /// The status of the refused message. No message is passed on after a refusal.
    refused: Option<Status>,
}

impl Messages {
    /// Creates the divider for a body that belongs to these headers.
    pub(crate) fn new(headers: &HeaderMap, most: Option<usize>, memory: Option<PeerMemory>) -> Self {
        let encoding = match headers.get("grpc-encoding").map(http::HeaderValue::as_bytes) {
            None | Some(b"identity") => Encoding::Identity,
            Some(b"gzip") => Encoding::Gzip,
            Some(b"deflate") => Encoding::Deflate,
            Some(_) => Encoding::Unmeasured,
        };
        Self {
            most,
            encoding,
            memory,
            held: Held { buffer: TONIC_BUFFER, ..Held::default() },
            prefix: [0; PREFIX],
            filled: 0,
            left: 0,
            rest: Bytes::new(),
            compressed: Vec::new(),
            inflating: None,
            measured: Bytes::new(),
            refused: None,
        }
    }

    /// Returns the next frame, made from the pieces that `next` returns. Polls `next` again after it has ended.
    pub(crate) fn poll_frame(
        &mut self,
        task: &mut Context<'_>,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>>,
    ) -> Poll<Option<Result<Bytes, Status>>> {
        if let Some(status) = &self.refused {
            return Poll::Ready(Some(Err(status.clone())));
        }
        loop {
            if let Err(status) = ready!(self.poll_inflated(task)) {
                return Poll::Ready(Some(Err(self.refuse(status))));
            }
            if self.inflating.is_none() && self.measured.is_empty() && self.rest.is_empty() {
                match ready!(next(task)) {
                    Some(Ok(piece)) => self.rest = piece,
                    // tonic reports the incomplete message.
                    None if !self.compressed.is_empty() => {
                        return Poll::Ready(Some(Ok(std::mem::take(&mut self.compressed).into())));
                    }
                    end => return Poll::Ready(end),
                }
            }
            match self.cut() {
                Ok(frame) if frame.is_empty() => {}
                Ok(frame) => return Poll::Ready(Some(Ok(frame))),
                Err(status) => return Poll::Ready(Some(Err(self.refuse(status)))),
            }
        }
    }

    fn refuse(&mut self, status: Status) -> Status {
        (self.rest, self.compressed) = (Bytes::new(), Vec::new());
        self.refused.insert(status).clone()
    }

    /// Takes the next frame, which contains small messages or a part of one message. The frame is empty if its bytes are
    /// kept for measurement.
    fn cut(&mut self) -> Result<Bytes, Status> {
        if !self.measured.is_empty() {
            self.held.compressed = 0;
            self.charge()?;
            return Ok(std::mem::take(&mut self.measured));
        }
        if self.filled == 0 {
            let (bytes, largest) = self.small_messages()?;
            if bytes > 0 {
                grow(&mut self.held.buffer, bytes);
                grow(&mut self.held.buffer, bytes + largest);
                self.charge()?;
                return Ok(self.rest.split_to(bytes));
            }
        }
        if self.filled < PREFIX {
            let part = self.rest.split_to(self.rest.len().min(PREFIX - self.filled));
            self.prefix[self.filled..self.filled + part.len()].copy_from_slice(&part);
            self.filled += part.len();
            if self.filled == PREFIX {
                self.begin()?;
            }
            return Ok(part);
        }
        let part = self.rest.split_to(self.rest.len().min(self.left));
        self.left -= part.len();
        if self.left == 0 {
            self.filled = 0;
        }
        if !self.is_measured() {
            return Ok(part);
        }
        self.compressed.extend_from_slice(&part);
        if self.left == 0 {
            self.inflate();
        }
        Ok(Bytes::new())
    }

    /// Returns the total size of the complete small messages at the front, and the size of the largest of them.
    fn small_messages(&self) -> Result<(usize, usize), Status> {
        let (mut bytes, mut largest) = (0, 0);
        while let Some(prefix) = self.rest[bytes..].first_chunk::<PREFIX>() {
            let (flag, size) = (prefix[0], size(prefix));
            if flag == 1 || size > SMALL || self.rest.len() - bytes < PREFIX + size {
                break;
            }
            self.check(size)?;
            bytes += PREFIX + size;
            largest = largest.max(size);
        }
        Ok((bytes, largest))
    }

    /// Handles the prefix of a message that is passed on in parts.
    fn begin(&mut self) -> Result<(), Status> {
        self.left = size(&self.prefix);
        self.check(self.left)?;
        grow(&mut self.held.buffer, PREFIX.saturating_add(self.left));
        if self.is_measured() {
            self.held.compressed = self.left;
            let first = (self.left / (TONIC_BUFFER / 2) + 1).saturating_mul(TONIC_BUFFER);
            grow(&mut self.held.inflated, first);
        } else if self.prefix[0] == 1 && self.encoding == Encoding::Unmeasured {
            self.held.inflated = TONIC_MAX_INFLATED;
        }
        self.charge()?;
        self.compressed.reserve_exact(self.held.compressed);
        if self.left == 0 {
            self.filled = 0;
        }
        Ok(())
    }

    /// Returns true if the current message must be complete and measured before it is passed on.
    fn is_measured(&self) -> bool {
        self.prefix[0] == 1 && matches!(self.encoding, Encoding::Gzip | Encoding::Deflate)
    }

    /// Starts measuring the current message.
    fn inflate(&mut self) {
        let message = Bytes::from(std::mem::take(&mut self.compressed));
        let body = Cursor::new(message.clone());
        let reader: Box<dyn Read + Send + Sync> = match self.encoding {
            Encoding::Deflate => Box::new(ZlibDecoder::new(body)),
            _ => Box::new(GzDecoder::new(body)),
        };
        self.inflating = Some(Inflating { message, reader, bytes: 0 });
    }

    /// Continues the measurement of a compressed message. Returns ready if no measurement is in progress.
    fn poll_inflated(&mut self, task: &Context<'_>) -> Poll<Result<(), Status>> {
        let Some(mut inflating) = self.inflating.take() else { return Poll::Ready(Ok(())) };
        let mut scratch = [0; TONIC_BUFFER];
        let mut inflated = 0;
        while inflated < TURN {
            match inflating.reader.read(&mut scratch) {
                // tonic inflates the message up to the same error and reports it.
                Ok(0) | Err(_) => {
                    self.measured = inflating.message;
                    return Poll::Ready(Ok(()));
                }
                Ok(bytes) => {
                    inflated += bytes;
                    inflating.bytes += bytes;
                    grow(&mut self.held.inflated, inflating.bytes);
                    self.charge()?;
                }
            }
        }
        self.inflating = Some(inflating);
        task.waker().wake_by_ref();
        Poll::Pending
    }

    /// Charges the peer for the buffers beyond their free initial capacity.
    fn charge(&mut self) -> Result<(), Status> {
        let (Some(memory), held) = (&mut self.memory, &self.held) else { return Ok(()) };
        let bytes =
            (held.buffer - TONIC_BUFFER).saturating_add(held.compressed).saturating_add(held.inflated);
        memory.resize(bytes).map_err(|status| crate::grpc_status(&status))
    }

    /// Returns an error if a message exceeds the size limit of its method.
    fn check(&self, size: usize) -> Result<(), Status> {
        match self.most {
            Some(most) if size > most => {
                let text = format!("a message of {size} bytes; the limit of its method is {most}");
                Err(Status::resource_exhausted(text))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the message size in a prefix.
fn size([_, size @ ..]: &[u8; PREFIX]) -> usize {
    usize::try_from(u32::from_be_bytes(*size)).unwrap_or(usize::MAX)
}

/// Increases a capacity in the same way as tonic's buffers.
fn grow(capacity: &mut usize, bytes: usize) {
    if bytes > *capacity {
        *capacity = bytes.max(capacity.saturating_mul(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::collections::VecDeque;
    use std::io::Write;
    use std::task::Waker;

    fn messages(encoding: &'static str, most: Option<usize>) -> Messages {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-encoding"),
            HeaderValue::from_static(encoding),
        )]);
        Messages::new(&headers, most, None)
    }

    fn message(flag: u8, body: &[u8]) -> Vec<u8> {
        [&[flag][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
    }

    /// Passes a body through `messages` in pieces of `cut` bytes, and returns the frames.
    fn pass(messages: &mut Messages, body: &[u8], cut: usize) -> Result<Vec<Bytes>, Status> {
        let mut pieces = body.chunks(cut).map(Bytes::copy_from_slice).collect::<VecDeque<_>>();
        let mut next = |_: &mut Context<'_>| Poll::Ready(pieces.pop_front().map(Ok));
        let task = &mut Context::from_waker(Waker::noop());
        let mut frames = Vec::new();
        loop {
            match messages.poll_frame(task, &mut next) {
                Poll::Ready(Some(frame)) => frames.push(frame?),
                Poll::Ready(None) => return Ok(frames),
                Poll::Pending => {}
            }
        }
    }

    #[test]
    fn message_sizes_are_checked_for_any_frame_boundaries() {
        let body =
            |sizes: &[usize]| sizes.iter().flat_map(|size| message(0, &vec![9; *size])).collect::<Vec<_>>();
        for cut in 1..=12 {
            let accepted = body(&[3, 0, 0, 2, 3]);
            let frames = pass(&mut messages("identity", Some(3)), &accepted, cut).unwrap();
            assert_eq!(frames.concat(), accepted, "{cut}");
            let mut refusing = messages("identity", Some(3));
            // After the error, a reader that continues gets no further bytes.
            for _ in 0..2 {
                let refused = pass(&mut refusing, &body(&[3, 0, 4]), cut).unwrap_err();
                assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{cut}");
            }
        }
    }

    #[test]
    fn small_messages_share_frame_and_large_messages_follow_prefix() {
        let small = [message(0, &[1; 10]), message(0, &[2; SMALL])].concat();
        let body = [&small[..], &message(0, &[3; SMALL + 1]), &message(0, &[])].concat();
        let mut messages = messages("identity", None);
        let frames = pass(&mut messages, &body, body.len()).unwrap();
        let sizes = frames.iter().map(Bytes::len).collect::<Vec<_>>();
        assert_eq!(sizes, [small.len(), PREFIX, SMALL + 1, PREFIX]);
        assert_eq!(messages.held.buffer, 2 * TONIC_BUFFER);
    }

    #[test]
    fn compressed_messages_are_measured_and_pass_unchanged() {
        let zeros = vec![0; 1_000_000];
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&zeros).unwrap();
        let mut deflate = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        deflate.write_all(&zeros).unwrap();
        let [gzip, deflate] = [gzip.finish().unwrap(), deflate.finish().unwrap()];
        for (encoding, compressed, held) in
            [("gzip", &gzip, 1 << 20), ("deflate", &deflate, 1 << 20), ("gzip", &deflate, TONIC_BUFFER)]
        {
            let plain = message(0, &[7; 10]);
            let body = [&plain[..], &message(1, compressed), &plain].concat();
            // The input may also end early.
            for (end, held) in [(body.len(), held), (plain.len() + 100, TONIC_BUFFER)] {
                for cut in [1, 7, 1000, body.len()] {
                    let mut messages = messages(encoding, None);
                    let frames = pass(&mut messages, &body[..end], cut).unwrap();
                    assert_eq!(frames.concat(), body[..end], "{encoding} {cut}");
                    assert_eq!(messages.held.inflated, held, "{encoding} {cut}");
                }
            }
        }
    }

    #[test]
    fn messages_of_unknown_encoding_pass_at_largest_charge() {
        let plain = message(0, &[7; 10]);
        for (encoding, flag, bytes, held) in [
            ("zstd", 0, 10, 0),
            ("zstd", 1, 10_000, TONIC_MAX_INFLATED),
            // tonic refuses a message with the compression flag if the encoding is `identity`.
            ("identity", 1, 10, 0),
        ] {
            let body = [&plain[..], &message(flag, &vec![1; bytes]), &plain].concat();
            for cut in [1, 7, body.len()] {
                let mut messages = messages(encoding, None);
                let frames = pass(&mut messages, &body, cut).unwrap();
                assert_eq!(frames.concat(), body, "{encoding} {cut}");
                assert_eq!(messages.held.inflated, held, "{encoding} {cut}");
            }
        }
    }
}
