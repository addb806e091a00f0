//! The header in front of every message, and the small bodies of rendezvous messages.
//!
//! Owns the layout; senders and receivers of a poller call it. It must never panic on the bytes
//! of a peer, and never trust a length in them: what a frame claims is checked against what the
//! device reports as received. All fields are little endian.
//!
//! ```text
//!  0 kind      1 version    2 source poller (2)
//!  4 want (2)  6 count (2)  8 grant (4)  12 released (4)  16 length (4)
//! 20 target poller (2)  22 zero (2)
//! 24 payload
//! ```
#![forbid(unsafe_code)]

/// Bytes of the header; a multiple of 8, so that payloads keep their alignment.
pub(crate) const HEADER: usize = 24;
/// Bytes of a rendezvous request before its inline head.
pub(crate) const REQUEST: usize = 32;
/// Bytes of one entry of a FIN.
pub(crate) const FIN_ENTRY: usize = 16;
/// Most entries that one FIN carries.
pub(crate) const FIN_ENTRIES: usize = 12;
/// Version of this layout.
pub(crate) const VERSION: u8 = 2;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole message.
    Eager,
    /// A message whose body the receiver is to READ.
    Request,
    /// Bodies that were read, or given up.
    Fin,
    /// Credit positions alone.
    Credit,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Eager => 1,
            Self::Request => 2,
            Self::Fin => 3,
            Self::Credit => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Eager),
            2 => Some(Self::Request),
            3 => Some(Self::Fin),
            4 => Some(Self::Credit),
            _ => None,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Poller that sent it.
    pub(crate) source: u16,
    /// Messages that wait at the sender for credit.
    pub(crate) want: u16,
    /// Entries of a FIN.
    pub(crate) count: u16,
    /// Position up to which the receiver of this frame may send back.
    pub(crate) grant: u32,
    /// How many credits the sender of this frame has released so far.
    pub(crate) released: u32,
    /// Bytes after the header.
    pub(crate) length: u32,
    /// Poller that it is for. Over XRC it arrives at that poller's SRQ.
    pub(crate) target: u16,
}

/// Why a frame was refused; the texts end up in `PeerDown::Misbehaved`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FrameError(pub(crate) &'static str);

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Header {
    /// The header as bytes.
    pub(crate) fn emit(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = self.kind.code();
        out[1] = VERSION;
        out[2..4].copy_from_slice(&self.source.to_le_bytes());
        out[4..6].copy_from_slice(&self.want.to_le_bytes());
        out[6..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..12].copy_from_slice(&self.grant.to_le_bytes());
        out[12..16].copy_from_slice(&self.released.to_le_bytes());
        out[16..20].copy_from_slice(&self.length.to_le_bytes());
        out[20..22].copy_from_slice(&self.target.to_le_bytes());
        out
    }

    /// The poller that a received frame is for, if it is long enough to say so; nothing of it has
    /// been checked.
    pub(crate) fn peek_target(received: &[u8]) -> Option<u16> {
        (received.len() >= HEADER).then(|| u16_at(received, 20))
    }

    /// The header of a received frame. `received` is the whole frame as the device delivered it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn parse(received: &[u8]) -> Result<Self, FrameError> {
        if received.len() < HEADER {
            return Err(FrameError("frame shorter than its header"));
        }
        if received[1] != VERSION {
            return Err(FrameError("frame of another version"));
        }
        let kind = Kind::from_code(received[0]).ok_or(FrameError("frame of an unknown kind"))?;
        if u16_at(received, 22) != 0 {
            return Err(FrameError("reserved field of a frame is not zero"));
        }
        let header = Self {
            kind,
            source: u16_at(received, 2),
            want: u16_at(received, 4),
            count: u16_at(received, 6),
            grant: u32_at(received, 8),
            released: u32_at(received, 12),
            length: u32_at(received, 16),
            target: u16_at(received, 20),
        };
        let payload = received.len() - HEADER;
        if usize::try_from(header.length) != Ok(payload) {
            return Err(FrameError("frame length differs from what was received"));
        }
        let count = usize::from(header.count);
        match kind {
            Kind::Eager if count == 0 => {}
            Kind::Credit if count == 0 && payload == 0 => {}
            Kind::Request if count == 0 && payload >= REQUEST => {}
            Kind::Fin if (1..=FIN_ENTRIES).contains(&count) && payload == count * FIN_ENTRY => {}
            _ => return Err(FrameError("frame whose length does not fit its kind")),
        }
        Ok(header)
    }
}

/// The fixed part of a rendezvous request; the head of the message follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// The sender's number for it; comes back in the FIN.
    pub(crate) id: u64,
    /// Bytes to READ.
    pub(crate) body: u64,
    /// From here in the sender's memory.
    pub(crate) address: u64,
    /// Under this key.
    pub(crate) rkey: u32,
    /// How long the receiver may wait for memory, in milliseconds.
    pub(crate) patience_ms: u32,
}

impl Request {
    /// As bytes.
    pub(crate) fn emit(&self) -> [u8; REQUEST] {
        let mut out = [0; REQUEST];
        out[0..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..16].copy_from_slice(&self.body.to_le_bytes());
        out[16..24].copy_from_slice(&self.address.to_le_bytes());
        out[24..28].copy_from_slice(&self.rkey.to_le_bytes());
        out[28..32].copy_from_slice(&self.patience_ms.to_le_bytes());
        out
    }

    /// From the payload of a frame that [`Header::parse`] took.
    pub(crate) fn parse(payload: &[u8]) -> Self {
        Self {
            id: u64_at(payload, 0),
            body: u64_at(payload, 8),
            address: u64_at(payload, 16),
            rkey: u32_at(payload, 24),
            patience_ms: u32_at(payload, 28),
        }
    }
}

/// How a rendezvous ended at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinStatus {
    /// Read to the end.
    Read,
    /// No memory became free in time; nothing was handed on.
    Exhausted,
}

/// One entry of a FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fin {
    pub(crate) id: u64,
    pub(crate) status: FinStatus,
}

impl Fin {
    /// As bytes.
    pub(crate) fn emit(&self) -> [u8; FIN_ENTRY] {
        let mut out = [0; FIN_ENTRY];
        out[0..8].copy_from_slice(&self.id.to_le_bytes());
        out[8] = match self.status {
            FinStatus::Read => 0,
            FinStatus::Exhausted => 1,
        };
        out
    }

    /// The entries of a FIN's payload.
    pub(crate) fn parse_all(payload: &[u8]) -> impl Iterator<Item = Result<Self, FrameError>> + '_ {
        payload.chunks_exact(FIN_ENTRY).map(|entry| {
            let status = match u64_at(entry, 8) {
                0 => FinStatus::Read,
                1 => FinStatus::Exhausted,
                _ => return Err(FrameError("FIN with an unknown status")),
            };
            Ok(Self { id: u64_at(entry, 0), status })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: Kind, count: u16, length: u32) -> Header {
        Header { kind, source: 3, want: 7, count, grant: u32::MAX, released: 9, length, target: 2 }
    }

    #[test]
    fn headers_survive_the_round_trip() {
        for (kind, count, length) in
            [(Kind::Eager, 0, 5), (Kind::Request, 0, 40), (Kind::Fin, 2, 32), (Kind::Credit, 0, 0)]
        {
            let header = header(kind, count, length);
            let mut bytes = header.emit().to_vec();
            bytes.resize(HEADER + usize::try_from(length).unwrap(), 0);
            assert_eq!(Header::parse(&bytes), Ok(header));
            assert_eq!(Header::peek_target(&bytes), Some(2));
            bytes.push(0);
            assert!(Header::parse(&bytes).is_err(), "a byte too many in {kind:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Header::parse(&[]).is_err() && Header::peek_target(&[0; 23]).is_none());
        let good = header(Kind::Credit, 0, 0).emit();
        for (at, value) in [(0, 0), (0, 9), (1, 1), (6, 1), (16, 1), (22, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Header::parse(&bad).is_err(), "byte {at} = {value}");
        }
        let mut short = header(Kind::Request, 0, 8).emit().to_vec();
        short.extend([0; 8]);
        assert!(Header::parse(&short).is_err());
        let mut unknown = Fin { id: 1, status: FinStatus::Read }.emit();
        unknown[8] = 2;
        assert!(Fin::parse_all(&unknown).next().unwrap().is_err());
    }

    #[test]
    fn bodies_survive_the_round_trip() {
        let request = Request { id: 1, body: u64::MAX, address: 3, rkey: 4, patience_ms: 5 };
        assert_eq!(Request::parse(&request.emit()), request);
        let fins = [Fin { id: 9, status: FinStatus::Read }, Fin { id: 10, status: FinStatus::Exhausted }];
        let bytes = fins.iter().flat_map(Fin::emit).collect::<Vec<_>>();
        assert!(Fin::parse_all(&bytes).map(Result::unwrap).eq(fins));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(&header.emit()[..], &bytes[..HEADER]);
                let _ = Request::parse(&bytes[HEADER..]);
                let _ = Fin::parse_all(&bytes[HEADER..]).count();
            }
        }
    }
}
