//! Runs the conformance suite on the software device.

use std::net::IpAddr;
use trunkline_conformance::{Bench, Port};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::{CompletionStatus, VerbsError};

/// The device on one of its links.
pub(crate) struct Soft {
    pub(crate) link: &'static str,
    pub(crate) options: fn() -> [SoftOptions; 2],
}

/// Returns the benches in one process and over UDP.
pub(crate) fn benches() -> [Soft; 2] {
    [
        Soft { link: "in-process", options: super::in_process },
        Soft { link: "udp", options: || [super::udp(), super::udp()] },
    ]
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

    fn is_one_device(&self) -> bool {
        self.link.starts_with("udp")
    }

    fn xrc_violation(&self) -> &[CompletionStatus] {
        // The default policy is NAK 0x64. Such a send has few retries. With packet loss, all of them may be
        // lost.
        const STATUSES: [CompletionStatus; 2] =
            [CompletionStatus::RemoteInvalidRdRequest, CompletionStatus::RetryExceeded];
        if self.link.contains("lossy") { &STATUSES } else { &STATUSES[..1] }
    }
}

/// Opens the device at its first address.
pub(crate) fn open(options: SoftOptions) -> Result<Port, VerbsError> {
    let address: IpAddr = options.addresses[0];
    let device = SoftDevice::open(options)?;
    Ok(Port { device, address, gid_index: 0 })
}
