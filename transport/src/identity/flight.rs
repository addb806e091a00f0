//! Reassembly of TLS flights from fragments, and the check of their messages.
//!
//! rustls reads a flight in one call, without checking that its messages belong to that level or that the last one is
//! complete. Each flight is therefore checked here first. The header of a message is a type (1 byte) and a length (3
//! bytes, big endian).
#![forbid(unsafe_code)]

use crate::wire::frame::FrameError;
use crate::wire::handshake::{CLEAR_TOTAL, Fragment, Part, SEALED_TOTAL};

/// Maximum size of a ServerHello flight, in bytes.
const SERVER_HELLO_TOTAL: u16 = 1024;
/// Size of the header of a TLS message, in bytes.
const MESSAGE: usize = 4;
/// Types of TLS messages (RFC 8446, section 4).
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const ENCRYPTED_EXTENSIONS: u8 = 8;
const CERTIFICATE: u8 = 11;
const CERTIFICATE_REQUEST: u8 = 13;
const CERTIFICATE_VERIFY: u8 = 15;
const FINISHED: u8 = 20;
/// Random value of a ServerHello that is a HelloRetryRequest (RFC 8446, section 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// Offset of the random value in a ServerHello, after the header and the version.
const RANDOM: usize = MESSAGE + 2;

/// A flight of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flight {
    ClientHello,
    ServerHello,
    /// EncryptedExtensions to Finished of the TLS server.
    Server,
    /// Certificate to Finished of the TLS client.
    Client,
}

impl Flight {
    /// All flights, in the order in which they are sent.
    pub(crate) const ALL: [Self; 4] = [Self::ClientHello, Self::ServerHello, Self::Server, Self::Client];

    pub(crate) fn is_sealed(self) -> bool {
        matches!(self, Self::Server | Self::Client)
    }

    /// Returns the maximum size, in bytes.
    fn largest(self) -> u16 {
        match self {
            Self::ClientHello => CLEAR_TOTAL,
            Self::ServerHello => SERVER_HELLO_TOTAL,
            Self::Server | Self::Client => SEALED_TOTAL,
        }
    }

    /// Checks the messages of a complete flight. A TLS client without a certificate omits CertificateVerify.
    fn check(self, flight: &[u8]) -> Result<(), FrameError> {
        match self {
            Self::ClientHello => walk(flight, &[CLIENT_HELLO]),
            Self::ServerHello => walk(flight, &[SERVER_HELLO]),
            Self::Server => walk(
                flight,
                &[ENCRYPTED_EXTENSIONS, CERTIFICATE_REQUEST, CERTIFICATE, CERTIFICATE_VERIFY, FINISHED],
            ),
            Self::Client => walk(flight, &[CERTIFICATE, CERTIFICATE_VERIFY, FINISHED])
                .or_else(|error| walk(flight, &[CERTIFICATE, FINISHED]).map_err(|_| error)),
        }
    }
}

/// Checks that a flight consists of exactly one complete message of each type, in this order.
pub(crate) fn walk(flight: &[u8], types: &[u8]) -> Result<(), FrameError> {
    let mut rest = flight;
    for &expected in types {
        let Some(&[kind, high, middle, low]) = rest.first_chunk::<MESSAGE>() else {
            return Err(FrameError::Broken("handshake flight without all of its messages"));
        };
        if kind != expected {
            return Err(FrameError::Broken("handshake flight with a message out of order"));
        }
        let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
        if kind == SERVER_HELLO && rest.get(RANDOM..RANDOM + RETRY.len()) == Some(&RETRY[..]) {
            return Err(FrameError::Broken("HelloRetryRequest in place of a ServerHello"));
        }
        let Some(after) = rest.get(MESSAGE..).and_then(|body| body.get(length..)) else {
            return Err(FrameError::Broken("handshake flight that ends within a message"));
        };
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(FrameError::Broken("handshake flight with more messages")) }
}

/// A flight that arrives in fragments.
#[derive(Debug)]
pub(crate) struct Incoming {
    flight: Flight,
    /// `None` before the first fragment.
    total: Option<u16>,
    bytes: Vec<u8>,
}

impl Incoming {
    pub(crate) fn new(flight: Flight) -> Self {
        Self { flight, total: None, bytes: Vec::new() }
    }

    /// Adds the next fragment, decrypted if it was sealed. Returns true if the flight is complete and consists of
    /// the expected messages.
    ///
    /// # Errors
    /// Returns an error if the fragment is not the next one of this flight, or the messages are not the expected
    /// ones.
    pub(crate) fn take(&mut self, fragment: &Fragment<'_>) -> Result<bool, FrameError> {
        let Self { flight, total, bytes } = self;
        let &Fragment { is_sealed, part, offset, total: claimed, bytes: more, .. } = fragment;
        if part != Part::Tls || is_sealed != flight.is_sealed() {
            return Err(FrameError::Broken("handshake frame of another part or level than expected"));
        }
        let end = bytes.len() + more.len();
        let is_next = usize::from(offset) == bytes.len() && *total.get_or_insert(claimed) == claimed;
        if !is_next || claimed > flight.largest() || end > usize::from(claimed) || more.is_empty() {
            return Err(FrameError::Broken("handshake fragment that is not the next one of its flight"));
        }
        bytes.reserve_exact(usize::from(claimed) - bytes.len());
        bytes.extend(more);
        let is_whole = end == usize::from(claimed);
        if is_whole {
            flight.check(bytes)?;
        }
        Ok(is_whole)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns messages of these types and lengths.
    fn messages(list: &[(u8, usize)]) -> Vec<u8> {
        let message = |&(kind, length): &(u8, usize)| {
            let header = u32::try_from(length).unwrap().to_be_bytes();
            [&[kind][..], &header[1..], &vec![kind; length]].concat()
        };
        list.iter().flat_map(message).collect()
    }

    fn example(flight: Flight) -> Vec<u8> {
        messages(match flight {
            Flight::ClientHello => &[(1, 3000)],
            Flight::ServerHello => &[(2, 120)],
            Flight::Server => &[(8, 90), (13, 0), (11, 5000), (15, 300), (20, 48)],
            Flight::Client => &[(11, 2000), (15, 300), (20, 48)],
        })
    }

    fn received(flight: Flight, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
        let mut incoming = Incoming::new(flight);
        let mut is_whole = false;
        for fragment in Fragment::all(0, flight.is_sealed(), Part::Tls, bytes) {
            assert!(!is_whole, "whole before its end");
            is_whole = incoming.take(&fragment)?;
        }
        assert!(is_whole);
        Ok(incoming.into_bytes())
    }

    #[test]
    fn complete_flight_with_expected_messages_is_accepted() {
        for flight in Flight::ALL {
            let bytes = example(flight);
            assert_eq!(received(flight, &bytes), Ok(bytes.clone()), "{flight:?}");
            for cut in 1..bytes.len() {
                assert!(received(flight, &bytes[..cut]).is_err(), "{cut} bytes of {flight:?}");
            }
            for more in [&[20][..], &[20, 0, 0, 1], &messages(&[(20, 0)])] {
                assert!(received(flight, &[&bytes, more].concat()).is_err(), "{more:?} after {flight:?}");
            }
            for other in Flight::ALL.into_iter().filter(|&other| other != flight) {
                assert!(received(other, &bytes).is_err(), "{flight:?} in place of {other:?}");
            }
        }
        let unsigned = messages(&[(11, 4), (20, 48)]);
        assert_eq!(received(Flight::Client, &unsigned), Ok(unsigned.clone()));
        for wrong in [&[(15, 4), (20, 48)][..], &[(11, 4), (15, 4)], &[(11, 4), (20, 4), (15, 4)], &[(11, 4)]]
        {
            assert!(received(Flight::Client, &messages(wrong)).is_err(), "{wrong:?}");
        }
        assert!(received(Flight::Server, &messages(&[(8, 9), (11, 9), (15, 9), (20, 9)])).is_err());
    }

    #[test]
    fn hello_retry_request_is_refused() {
        let mut hello = example(Flight::ServerHello);
        hello[RANDOM..RANDOM + 32].copy_from_slice(&RETRY);
        let error = received(Flight::ServerHello, &hello).unwrap_err();
        assert!(error.to_string().starts_with("HelloRetryRequest"), "{error}");
        hello[RANDOM] ^= 1;
        assert_eq!(received(Flight::ServerHello, &hello), Ok(hello.clone()));
    }

    #[test]
    fn fragments_are_taken_in_order_with_one_total() {
        let bytes = example(Flight::Client);
        let [first, second] = Fragment::all(0, true, Part::Tls, &bytes).collect::<Vec<_>>()[..] else {
            panic!()
        };
        let long = vec![0; 12_289];
        for (taken, wrong) in [
            (None, second),
            (Some(first), first),
            (Some(first), Fragment { total: first.total + 1, ..second }),
            (Some(first), Fragment { offset: first.offset + 1, ..second }),
            (Some(first), Fragment { bytes: &long[..2012], ..second }),
            (Some(first), Fragment { bytes: &[], ..second }),
            (Some(first), Fragment { is_sealed: false, ..second }),
            (Some(first), Fragment { part: Part::Done, ..second }),
            (None, Fragment { total: SEALED_TOTAL + 1, ..first }),
            (None, Fragment { total: 0, bytes: &[], ..first }),
        ] {
            let mut incoming = Incoming::new(Flight::Client);
            assert!(taken.is_none_or(|taken| incoming.take(&taken) == Ok(false)));
            assert!(incoming.take(&wrong).is_err(), "{wrong:?}");
        }
        let hello = messages(&[(2, usize::from(SERVER_HELLO_TOTAL) - 3)]);
        assert!(received(Flight::ServerHello, &hello).is_err(), "larger than a ServerHello");
        let mut incoming = Incoming::new(Flight::Client);
        assert_eq!([first, second].map(|next| incoming.take(&next)), [Ok(false), Ok(true)]);
        assert!(incoming.take(&second).is_err(), "a fragment after the flight");
    }
}
