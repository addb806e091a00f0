//! One side of a wire test, on the kernel's device that has the local address. `trunkline_conformance::WireOrder` documents
//! the arguments.

use std::process::ExitCode;
use std::sync::Arc;
use trunkline_conformance::WireOrder;
use trunkline_rdma_core::{RdmaCore, device_for};
use trunkline_verbs::{Device, Provider, VerbsError};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(order) = WireOrder::parse(&arguments) else {
        eprintln!("nic_wire_peer: unknown arguments {arguments:?}");
        return ExitCode::from(2);
    };
    match open(&order) {
        Ok(device) if order.run(&device, &mut std::io::stdout()) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nic_wire_peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn open(order: &WireOrder) -> Result<Arc<dyn Device>, VerbsError> {
    RdmaCore.open(&device_for(order.own)?)
}
