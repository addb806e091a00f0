//! A packet as a line of text.

use super::cm::CmReport;
use super::packet::{Fields, PacketReport};
use std::fmt;

impl fmt::Display for PacketReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.since_start_ns / 1000;
        write!(f, "{} {}.{:06}", self.frame, us / 1_000_000, us % 1_000_000)?;
        write!(f, " {} > {}", self.source, self.destination)?;
        write!(f, " {}", self.opcode_name.as_deref().unwrap_or("EMPTY"))?;
        if let Some(fields) = &self.fields {
            write!(f, "{fields}")?;
        }
        self.faults.iter().try_for_each(|fault| write!(f, " ! {fault}"))
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " qp {:#08x} psn {:#08x}", self.dest_qp, self.psn)?;
        if let Some(srq) = self.xrc_srq {
            write!(f, " srq {srq:#08x}")?;
        }
        if let Some(qp) = self.source_qp {
            write!(f, " from qp {qp:#08x}")?;
        }
        if let Some(reth) = &self.reth {
            write!(f, " {:#x}+{} rkey {:#010x}", reth.address, reth.length, reth.rkey)?;
        }
        if let Some(atomic) = &self.atomic {
            write!(f, " {:#x} rkey {:#010x}", atomic.address, atomic.rkey)?;
            write!(f, " operand {:#x} compare {:#x}", atomic.swap_or_add, atomic.compare)?;
        }
        if let Some(aeth) = &self.aeth {
            write!(f, " {} msn {}", aeth.meaning, aeth.msn)?;
        }
        if let Some(original) = self.original {
            write!(f, " original {original:#x}")?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, " imm {immediate:#010x}")?;
        }
        if let Some(rkey) = self.invalidate {
            write!(f, " invalidate {rkey:#010x}")?;
        }
        write!(f, " {} B", self.payload_bytes)?;
        if self.solicited {
            f.write_str(" solicited")?;
        }
        if self.ack_request {
            f.write_str(" ack?")?;
        }
        match &self.cm {
            Some(cm) => write!(f, " {cm}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for CmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {}", self.cm)?;
        if let Some(transport) = self.transport {
            write!(f, " {transport}")?;
        }
        let numbers = [
            ("id", self.local_id),
            ("peer id", self.remote_id),
            ("qpn", self.local_qpn),
            ("eecn", self.local_eecn.filter(|eecn| *eecn != 0)),
            ("peer qpn", self.remote_qpn),
            ("starting psn", self.starting_psn),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                write!(f, " {name} {number:#x}")?;
            }
        }
        if let Some(service) = self.service_id {
            write!(f, " service {service:#018x}")?;
        }
        match self.reject_reason {
            Some(reason) => write!(f, " reason {reason}"),
            None => Ok(()),
        }
    }
}
