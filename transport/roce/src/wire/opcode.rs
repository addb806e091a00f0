//! Opcodes (contract rocev2 §2).

/// The opcode byte of a BTH, with any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// Transport service, bits 7:5 of the opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Service(pub u8);

impl Service {
    /// Reliable connection.
    pub const RC: Self = Self(0x00);
    /// Unreliable connection.
    pub const UC: Self = Self(0x20);
    /// Unreliable datagram.
    pub const UD: Self = Self(0x60);
    /// Congestion notification.
    pub const CNP: Self = Self(0x80);
    /// Extended reliable connection.
    pub const XRC: Self = Self(0xa0);
}

/// Operation, bits 4:0 of the opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(pub u8);

#[allow(missing_docs, reason = "the names are those of contract rocev2 2.2")]
impl Operation {
    pub const SEND_FIRST: Self = Self(0x00);
    pub const SEND_MIDDLE: Self = Self(0x01);
    pub const SEND_LAST: Self = Self(0x02);
    pub const SEND_LAST_IMM: Self = Self(0x03);
    pub const SEND_ONLY: Self = Self(0x04);
    pub const SEND_ONLY_IMM: Self = Self(0x05);
    pub const WRITE_FIRST: Self = Self(0x06);
    pub const WRITE_MIDDLE: Self = Self(0x07);
    pub const WRITE_LAST: Self = Self(0x08);
    pub const WRITE_LAST_IMM: Self = Self(0x09);
    pub const WRITE_ONLY: Self = Self(0x0a);
    pub const WRITE_ONLY_IMM: Self = Self(0x0b);
    pub const READ_REQUEST: Self = Self(0x0c);
    pub const READ_RESPONSE_FIRST: Self = Self(0x0d);
    pub const READ_RESPONSE_MIDDLE: Self = Self(0x0e);
    pub const READ_RESPONSE_LAST: Self = Self(0x0f);
    pub const READ_RESPONSE_ONLY: Self = Self(0x10);
    pub const ACKNOWLEDGE: Self = Self(0x11);
    pub const ATOMIC_ACKNOWLEDGE: Self = Self(0x12);
    pub const COMPARE_SWAP: Self = Self(0x13);
    pub const FETCH_ADD: Self = Self(0x14);
    pub const SEND_LAST_INV: Self = Self(0x16);
    pub const SEND_ONLY_INV: Self = Self(0x17);
}

impl Operation {
    /// Returns true for READ responses and acknowledgements, which a responder sends.
    #[must_use]
    pub const fn is_response(self) -> bool {
        self.0 >= Self::READ_RESPONSE_FIRST.0 && self.0 <= Self::ATOMIC_ACKNOWLEDGE.0
    }
}

impl Opcode {
    /// Congestion notification, the only opcode of its service.
    pub const CNP: Self = Self(0x81);

    /// Combines a service and an operation.
    #[must_use]
    pub const fn new(service: Service, operation: Operation) -> Self {
        Self(service.0 & 0xe0 | operation.0 & 0x1f)
    }

    /// Returns the transport service, bits 7:5.
    #[must_use]
    pub const fn service(self) -> Service {
        Service(self.0 & 0xe0)
    }

    /// Returns the operation, bits 4:0.
    #[must_use]
    pub const fn operation(self) -> Operation {
        Operation(self.0 & 0x1f)
    }
}
