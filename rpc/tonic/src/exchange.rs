//! The service that transfers exchanges, and the division of bodies into pieces.
//!
//! The items that each side streams are the pieces of its body, which are never empty. Headers and trailers are sent as
//! metadata. If a request body is available as a whole, as in a unary call, it is sent as an argument. It then needs
//! neither items nor a task.

use bytes::Bytes;
use trunkline::{Context, Status, Stream, Streaming};

/// Maximum size of a piece, in bytes. The first frame of a response may be larger.
pub(crate) const MAX_PIECE: usize = 256 << 10;
/// Maximum size of a body that is sent as an argument, in bytes.
pub(crate) const MAX_WHOLE: usize = 4 << 20;

#[trunkline::service(name = "trunkline.grpc")]
pub(crate) trait Exchange {
    async fn call(
        &self,
        cx: &Context,
        body: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;

    async fn call_whole(
        &self,
        cx: &Context,
        body: Bytes,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
}

/// Returns the part of a node's message after the method's name, or `None` if the message does not begin with that name.
pub(crate) fn unnamed(message: &str) -> Option<&str> {
    let text = message.strip_prefix("trunkline.grpc.call")?;
    let text = text.strip_prefix("_whole").unwrap_or(text);
    text.starts_with([' ', ':']).then_some(text)
}

/// Splits the next piece off a frame. Returns `None` when the frame is empty. A frame of at most `most` bytes is one piece.
pub(crate) fn next_piece(frame: &mut Bytes, most: usize) -> Option<Bytes> {
    let piece = if frame.len() <= most { frame.len() } else { MAX_PIECE };
    (!frame.is_empty()).then(|| frame.split_to(frame.len().min(piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_name_of_shared_method_is_removed_from_messages() {
        assert_eq!(unnamed("trunkline.grpc.call: panicked"), Some(": panicked"));
        assert_eq!(unnamed("trunkline.grpc.call_whole at a:1: lost"), Some(" at a:1: lost"));
        for other in ["", "trunkline.grpc.calls: lost", "the trunkline.grpc.call: lost"] {
            assert_eq!(unnamed(other), None, "{other}");
        }
    }

    #[test]
    fn frames_are_split_and_empty_frames_omitted() {
        let frame = Bytes::from(vec![1; 2 * MAX_PIECE + 1]);
        let sizes = |most| {
            let mut frame = frame.clone();
            std::iter::from_fn(|| next_piece(&mut frame, most)).map(|piece| piece.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0), [MAX_PIECE, MAX_PIECE, 1]);
        assert_eq!(sizes(frame.len() - 1), [MAX_PIECE, MAX_PIECE + 1]);
        assert_eq!(sizes(frame.len()), [frame.len()]);
        assert_eq!(next_piece(&mut Bytes::new(), MAX_PIECE), None);
    }
}
