//! The conformance suite on a device of the host.
#![cfg(feature = "rdma-core")]

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use super::common::OnHost;
    use trunkline_conformance::{ITEMS, Outcome, run};

    /// Without a device, the test prints a message and passes, because most machines have no RDMA device. To run it on the
    /// software device through the drop-in libraries: `cargo dropin`, then `LD_LIBRARY_PATH=$PWD/target/dropin cargo test
    /// -p trunkline-rdma-core --features rdma-core`.
    #[test]
    fn every_item_holds_or_is_skipped_with_reason() {
        let bench = match OnHost::find() {
            Ok(bench) => bench,
            Err(why) => return println!("skip conformance on rdma-core: {why}"),
        };
        let mut failed = Vec::new();
        for item in ITEMS {
            let outcome = run(&bench, item);
            println!("{}: {outcome:?}", item.id);
            match outcome {
                Outcome::Failed(_) => failed.push(item.id),
                Outcome::Held | Outcome::Skipped(_) => {}
            }
        }
        assert!(failed.is_empty(), "{failed:?}");
    }
}
