//! Human-readable names of opcodes.

use super::{Opcode, Operation, Service};
use std::fmt;

impl Operation {
    /// Returns the operation's name in contract rocev2 2.2, if it has one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::SEND_FIRST => "SEND_FIRST",
            Self::SEND_MIDDLE => "SEND_MIDDLE",
            Self::SEND_LAST => "SEND_LAST",
            Self::SEND_LAST_IMM => "SEND_LAST_IMM",
            Self::SEND_ONLY => "SEND_ONLY",
            Self::SEND_ONLY_IMM => "SEND_ONLY_IMM",
            Self::WRITE_FIRST => "WRITE_FIRST",
            Self::WRITE_MIDDLE => "WRITE_MIDDLE",
            Self::WRITE_LAST => "WRITE_LAST",
            Self::WRITE_LAST_IMM => "WRITE_LAST_IMM",
            Self::WRITE_ONLY => "WRITE_ONLY",
            Self::WRITE_ONLY_IMM => "WRITE_ONLY_IMM",
            Self::READ_REQUEST => "READ_REQUEST",
            Self::READ_RESPONSE_FIRST => "READ_RESP_FIRST",
            Self::READ_RESPONSE_MIDDLE => "READ_RESP_MIDDLE",
            Self::READ_RESPONSE_LAST => "READ_RESP_LAST",
            Self::READ_RESPONSE_ONLY => "READ_RESP_ONLY",
            Self::ACKNOWLEDGE => "ACKNOWLEDGE",
            Self::ATOMIC_ACKNOWLEDGE => "ATOMIC_ACKNOWLEDGE",
            Self::COMPARE_SWAP => "COMPARE_SWAP",
            Self::FETCH_ADD => "FETCH_ADD",
            Self::SEND_LAST_INV => "SEND_LAST_INV",
            Self::SEND_ONLY_INV => "SEND_ONLY_INV",
            _ => return None,
        })
    }
}

impl Service {
    /// Returns the service's usual abbreviation, if the service is supported.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::RC => "RC",
            Self::UC => "UC",
            Self::UD => "UD",
            Self::XRC => "XRC",
            _ => return None,
        })
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::CNP {
            return f.write_str("CNP");
        }
        match (self.layout(), self.service().name(), self.operation().name()) {
            (Some(_), Some(service), Some(operation)) => write!(f, "{service}_{operation}"),
            _ => write!(f, "UNKNOWN_{:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_known_opcodes_have_names() {
        assert_eq!(Opcode(0xa4).to_string(), "XRC_SEND_ONLY");
        assert_eq!(Opcode(0x64).to_string(), "UD_SEND_ONLY");
        assert_eq!(Opcode(0x81).to_string(), "CNP");
        assert_eq!(Opcode(0x6c).to_string(), "UNKNOWN_0x6c");
        for code in 0..=u8::MAX {
            let named = !Opcode(code).to_string().starts_with("UNKNOWN");
            assert_eq!(named, Opcode(code).layout().is_some(), "{code:#x}");
        }
    }
}
