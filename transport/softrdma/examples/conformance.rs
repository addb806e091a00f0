//! The XRC contract on the software device, item by item: what `cargo conformance` runs.
//!
//! ```text
//! cargo conformance [--json] [ITEM...]
//! ```
//!
//! Each item is asked in one process, over UDP on two addresses, and between processes on one
//! address where it needs them; this program is its own puppet there. The table goes to standard
//! output, what is being done to standard error. Exit status 1 when an item failed, 2 for
//! arguments that mean nothing.

#[path = "../tests/common/mod.rs"]
mod common;

use common::processes::{PUPPET, Soft};
use common::suite;
use std::process::ExitCode;
use std::sync::Arc;
use trunkline_conformance::{Bench, ProcessBench, Wanted, run_program};

fn main() -> ExitCode {
    if std::env::var_os(PUPPET).is_some() {
        return match common::processes::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("puppet: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let wanted = match Wanted::read(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(unknown) => {
            eprintln!(
                "conformance: {unknown} means nothing here; usage: cargo conformance [--json] [ITEM...]"
            );
            return ExitCode::from(2);
        }
    };
    let benches = suite::benches().map(|bench| Arc::new(bench) as Arc<dyn Bench>);
    let processes: Arc<dyn ProcessBench> = Arc::new(Soft::from_program());
    run_program(&wanted, &benches, &processes)
}
