//! A datagram in words, for the trace.

use trunkline_roce::wire::{Bth, Opcode, Operation, Service};

/// Describes a datagram: its operation, destination QP and PSN.
pub(crate) fn describe(bytes: &[u8]) -> String {
    match Bth::parse(bytes) {
        Ok(bth) => {
            let ack = if bth.ack_request { ", asks for an ACK" } else { "" };
            format!("{} to QP {:?}, PSN {:?}{ack}", name(bth.opcode), bth.destination, bth.psn)
        }
        Err(error) => format!("not RoCE ({error})"),
    }
}

/// Returns the name of an opcode, or its number.
fn name(opcode: Opcode) -> String {
    if opcode == Opcode::CNP {
        return "CNP".to_owned();
    }
    let service = match opcode.service() {
        Service::RC => "RC",
        Service::UC => "UC",
        Service::UD => "UD",
        Service::XRC => "XRC",
        _ => return format!("opcode {:#04x}", opcode.0),
    };
    let operation = match opcode.operation() {
        Operation::SEND_FIRST => "SEND_FIRST",
        Operation::SEND_MIDDLE => "SEND_MIDDLE",
        Operation::SEND_LAST => "SEND_LAST",
        Operation::SEND_LAST_IMM => "SEND_LAST_IMM",
        Operation::SEND_ONLY => "SEND_ONLY",
        Operation::SEND_ONLY_IMM => "SEND_ONLY_IMM",
        Operation::WRITE_FIRST => "WRITE_FIRST",
        Operation::WRITE_MIDDLE => "WRITE_MIDDLE",
        Operation::WRITE_LAST => "WRITE_LAST",
        Operation::WRITE_LAST_IMM => "WRITE_LAST_IMM",
        Operation::WRITE_ONLY => "WRITE_ONLY",
        Operation::WRITE_ONLY_IMM => "WRITE_ONLY_IMM",
        Operation::READ_REQUEST => "READ_REQUEST",
        Operation::READ_RESPONSE_FIRST => "READ_RESPONSE_FIRST",
        Operation::READ_RESPONSE_MIDDLE => "READ_RESPONSE_MIDDLE",
        Operation::READ_RESPONSE_LAST => "READ_RESPONSE_LAST",
        Operation::READ_RESPONSE_ONLY => "READ_RESPONSE_ONLY",
        Operation::ACKNOWLEDGE => "ACKNOWLEDGE",
        Operation::ATOMIC_ACKNOWLEDGE => "ATOMIC_ACKNOWLEDGE",
        Operation::COMPARE_SWAP => "COMPARE_SWAP",
        Operation::FETCH_ADD => "FETCH_ADD",
        Operation::SEND_LAST_INV => "SEND_LAST_INV",
        Operation::SEND_ONLY_INV => "SEND_ONLY_INV",
        _ => return format!("opcode {:#04x}", opcode.0),
    };
    format!("{service} {operation}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_have_names() {
        assert_eq!(name(Opcode::new(Service::XRC, Operation::SEND_ONLY)), "XRC SEND_ONLY");
        assert_eq!(name(Opcode::new(Service::RC, Operation::ACKNOWLEDGE)), "RC ACKNOWLEDGE");
        assert_eq!(name(Opcode::CNP), "CNP");
        assert_eq!(name(Opcode(0xff)), "opcode 0xff");
        assert_eq!(describe(&[1, 2]).split(' ').next(), Some("not"));
    }
}
