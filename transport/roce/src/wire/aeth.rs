//! Syndromes, RNR timers, credits and NAK codes, the fields of an AETH (contract rocev2 §6).

use super::Aeth;

/// The meaning of an AETH's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledges all packets up to the response's PSN.
    Ack {
        /// Encoded number of further messages that the responder can accept.
        credits: CreditCode,
    },
    /// The receive queue was empty. The requester must repeat the request later.
    Rnr {
        /// Time that the requester must wait before it repeats the request.
        timer: RnrTimer,
    },
    /// The request was refused.
    Nak(NakCode),
    /// A code that the specification reserves. Contains the whole byte.
    Reserved(u8),
}

/// An encoded number of credits, 5 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CreditCode(pub u8);

/// An encoded waiting time, 5 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(pub u8);

/// Reason why a request was refused, 5 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

/// Number of credits by code (contract rocev2 6.4).
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768,
];

/// Time by RNR timer code, in units of 10 microseconds (contract rocev2 6.3). Code 0 is the longest.
const RNR_TENS_OF_US: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl CreditCode {
    /// No limit. Responders with an SRQ always send this code (contract rocev2 6.5).
    pub const UNLIMITED: Self = Self(0x1f);

    /// Returns the number of messages, or `None` if the responder sets no limit.
    #[must_use]
    pub fn credits(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0 & 0x1f)).copied()
    }
}

impl RnrTimer {
    /// Returns the time in nanoseconds.
    #[must_use]
    pub fn nanoseconds(self) -> u64 {
        RNR_TENS_OF_US[usize::from(self.0 & 0x1f)] * 10_000
    }
}

impl NakCode {
    /// A packet is missing. The requester must send again from the NAK's PSN.
    pub const PSN_SEQUENCE: Self = Self(0);
    /// The request is malformed or not supported by the responder.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The key is invalid, the range exceeds the region, or the access right is missing.
    pub const REMOTE_ACCESS: Self = Self(2);
    /// The responder itself failed.
    pub const REMOTE_OPERATIONAL: Self = Self(3);
    /// The domain has no such SRQ; XRC only.
    pub const INVALID_RD_REQUEST: Self = Self(4);

    /// Returns the specification's name of the code.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PSN_SEQUENCE => "PSN sequence error",
            Self::INVALID_REQUEST => "invalid request",
            Self::REMOTE_ACCESS => "remote access error",
            Self::REMOTE_OPERATIONAL => "remote operational error",
            Self::INVALID_RD_REQUEST => "invalid RD request",
            _ => "unknown NAK code",
        }
    }
}

impl Syndrome {
    /// An acknowledgement with unlimited credits.
    pub const ACK: Self = Self::Ack { credits: CreditCode::UNLIMITED };

    /// Decodes the syndrome byte.
    #[must_use]
    pub const fn new(byte: u8) -> Self {
        let low = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack { credits: CreditCode(low) },
            1 => Self::Rnr { timer: RnrTimer(low) },
            3 => Self::Nak(NakCode(low)),
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the syndrome byte.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits.0 & 0x1f,
            Self::Rnr { timer } => 0x20 | timer.0 & 0x1f,
            Self::Nak(code) => 0x60 | code.0 & 0x1f,
            Self::Reserved(byte) => byte,
        }
    }
}

impl Aeth {
    /// Creates a header with this syndrome and the responder's message sequence number.
    #[must_use]
    pub const fn new(syndrome: Syndrome, msn: u32) -> Self {
        Self { syndrome: syndrome.byte(), msn: msn & 0x00ff_ffff }
    }

    /// Decodes the syndrome.
    #[must_use]
    pub const fn meaning(self) -> Syndrome {
        Syndrome::new(self.syndrome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_values_of_contract() {
        assert_eq!(Syndrome::new(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::new(0x62), Syndrome::Nak(NakCode::REMOTE_ACCESS));
        assert_eq!(Syndrome::new(0x40), Syndrome::Reserved(0x40));
        assert_eq!(RnrTimer(0).nanoseconds(), 655_360_000);
        assert_eq!(RnrTimer(1).nanoseconds(), 10_000);
        assert_eq!(RnrTimer(12).nanoseconds(), 640_000);
        assert_eq!(RnrTimer(25).nanoseconds(), 61_440_000);
        assert_eq!(RnrTimer(31).nanoseconds(), 491_520_000);
        assert_eq!(CreditCode(5).credits(), Some(6));
        assert_eq!(CreditCode(30).credits(), Some(32_768));
        assert_eq!(CreditCode::UNLIMITED.credits(), None);
    }
}
