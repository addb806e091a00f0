//! The conformance suite on the software device, over each of its links.

mod common;

use std::net::IpAddr;
use trunkline_conformance::{Bench, Port};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::{CompletionStatus, VerbsError};

struct Soft {
    link: &'static str,
    options: fn() -> [SoftOptions; 2],
}

impl Bench for Soft {
    fn provider(&self) -> &str {
        "softrdma"
    }

    fn link(&self) -> &str {
        self.link
    }

    fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
        let [near, far] = (self.options)();
        Ok([open(near)?, open(far)?])
    }

    fn xrc_violation(&self) -> &[CompletionStatus] {
        // The default policy is NAK 0x64; where packets are lost, the few retries of such a send
        // may all be.
        const STATUSES: [CompletionStatus; 2] =
            [CompletionStatus::RemoteInvalidRdRequest, CompletionStatus::RetryExceeded];
        if self.link.contains("lossy") { &STATUSES } else { &STATUSES[..1] }
    }
}

fn open(options: SoftOptions) -> Result<Port, VerbsError> {
    let address: IpAddr = options.addresses[0];
    let device = SoftDevice::open(options)?;
    Ok(Port { device, address, gid_index: 0 })
}

fn lossy() -> [SoftOptions; 2] {
    [3, 4].map(|seed| {
        let plan = format!("drop=0.03,reorder=0.03,duplicate=0.03,corrupt=0.01,seed={seed}");
        SoftOptions { faults: Some(plan.parse().expect("a plan")), ..common::udp() }
    })
}

#[cfg(test)]
mod in_process {
    trunkline_conformance::conformance_tests!(super::Soft {
        link: "in-process",
        options: super::common::in_process
    });
}

#[cfg(test)]
mod udp {
    trunkline_conformance::conformance_tests!(super::Soft {
        link: "udp",
        options: || [super::common::udp(), super::common::udp()]
    });
}

#[cfg(test)]
mod lossy_udp {
    trunkline_conformance::conformance_tests!(super::Soft { link: "udp, lossy", options: super::lossy });
}
