//! Checks the items of the XRC contract on the software device. `cargo conformance` runs this program.
//!
//! ```text
//! cargo conformance [--json] [ITEM...]
//! ```
//!
//! Each item is checked within one process over UDP on two addresses, or, if it needs several processes, between
//! processes on one address. In that case the program starts itself as the puppet. The program writes the report to
//! standard output, and progress to standard error. The exit status is 1 if an item failed, and 2 for invalid
//! arguments.

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
                "conformance: {unknown} is neither an option nor an item; usage: cargo conformance [--json] [ITEM...]"
            );
            return ExitCode::from(2);
        }
    };
    let benches = suite::benches().map(|bench| Arc::new(bench) as Arc<dyn Bench>);
    let processes: Arc<dyn ProcessBench> = Arc::new(Soft::from_program());
    run_program(&wanted, &benches, &processes)
}
