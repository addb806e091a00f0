//! One side of the interoperability test, on the software device. `trunkline_conformance::WireOrder` lists the
//! arguments.

use std::process::ExitCode;
use std::sync::Arc;
use trunkline_conformance::WireOrder;
use trunkline_softrdma::device::{OpenError, SoftDevice, SoftOptions};
use trunkline_verbs::Device;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(order) = WireOrder::parse(&arguments) else {
        eprintln!("wire_peer: the arguments {arguments:?} are not valid");
        return ExitCode::from(2);
    };
    match open(&order) {
        Ok(device) if order.run(&device, &mut std::io::stdout()) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("wire_peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(order: &WireOrder) -> Result<Arc<dyn Device>, OpenError> {
    let options = SoftOptions { addresses: vec![order.own], ..SoftOptions::from_env()? };
    Ok(SoftDevice::open(options)?)
}
