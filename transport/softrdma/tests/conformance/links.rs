//! The conformance suite on the software device, over each of its links.

use crate::common;
use crate::common::suite::{Soft, open};
use trunkline_softrdma::device::SoftOptions;

/// A device with a non-default response to messages for unknown SRQs (contract G7).
#[cfg(test)]
mod policies {
    use super::open;
    use crate::common;
    use trunkline_conformance::{Bench, Port, assert_item};
    use trunkline_softrdma::device::{SoftOptions, UnknownSrq};
    use trunkline_verbs::{CompletionStatus, VerbsError};

    struct Policy {
        choice: UnknownSrq,
        status: [CompletionStatus; 1],
    }

    impl Bench for Policy {
        fn provider(&self) -> &str {
            "softrdma"
        }

        fn link(&self) -> &str {
            "in-process, another policy"
        }

        fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
            let [near, far] = common::in_process();
            Ok([open(near)?, open(SoftOptions { unknown_srq: self.choice, ..far })?])
        }

        fn xrc_violation(&self) -> &[CompletionStatus] {
            &self.status
        }
    }

    #[test]
    fn g7_nak62() {
        let status = [CompletionStatus::RemoteAccessError];
        assert_item(&Policy { choice: UnknownSrq::Nak62, status }, "G7");
    }

    #[test]
    fn g7_drop() {
        let status = [CompletionStatus::RetryExceeded];
        let policy = Policy { choice: UnknownSrq::Drop, status };
        assert_item(&policy, "G7");
        // The TGT continues to work, also for other senders (contract G8).
        assert_item(&policy, "G8");
    }
}

/// A device opened without XRC.
#[cfg(test)]
mod without_xrc {
    use super::Soft;
    use crate::common;
    use trunkline_conformance::{ITEMS, Outcome, run};
    use trunkline_softrdma::device::SoftOptions;

    fn bench() -> Soft {
        let options = || common::in_process().map(|side| SoftOptions { without_xrc: true, ..side });
        Soft { link: "in-process, without XRC", options }
    }

    #[test]
    fn a9_without_xrc() {
        let item = ITEMS.iter().find(|item| item.id == "A9").expect("the suite has it");
        assert_eq!(run(&bench(), item), Outcome::Held);
    }

    /// Items that do not require XRC must hold.
    #[test]
    fn rc_without_xrc() {
        for id in ["R1", "R2"] {
            let item = ITEMS.iter().find(|item| item.id == id).expect("the suite has it");
            assert_eq!(run(&bench(), item), Outcome::Held, "{id}");
        }
    }
}

/// A device with two addresses between which it communicates only through shared memory.
#[cfg(test)]
mod two_addresses {
    use crate::common;
    use crate::common::suite::open;
    use trunkline_conformance::{Bench, Port, assert_item};
    use trunkline_verbs::VerbsError;

    struct OneDevice;

    impl Bench for OneDevice {
        fn provider(&self) -> &str {
            "softrdma"
        }

        fn link(&self) -> &str {
            "shared memory, two addresses of one device"
        }

        fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
            let other = common::address();
            let mut options = common::memory();
            options.addresses.push(other);
            let near = open(options)?;
            let far = Port { address: other, gid_index: 1, ..near.clone() };
            Ok([near, far])
        }

        fn is_one_device(&self) -> bool {
            true
        }
    }

    #[test]
    fn rc_between_addresses_of_one_device() {
        assert_item(&OneDevice, "R1");
    }

    #[test]
    fn xrc_between_addresses_of_one_device() {
        assert_item(&OneDevice, "F1");
    }
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
        options: crate::common::in_process
    });
}

#[cfg(test)]
mod udp {
    trunkline_conformance::conformance_tests!(super::Soft {
        link: "udp",
        options: || [crate::common::udp(), crate::common::udp()]
    });
}

/// Two devices that may reach each other only through shared memory.
#[cfg(test)]
mod memory {
    trunkline_conformance::conformance_tests!(super::Soft {
        link: "udp, shared memory",
        options: || [crate::common::memory(), crate::common::memory()]
    });
}

#[cfg(test)]
mod lossy_udp {
    trunkline_conformance::conformance_tests!(super::Soft { link: "udp, lossy", options: super::lossy });
}
