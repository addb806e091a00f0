//! Shows what this host's RDMA devices offer to Trunkline, or why Trunkline cannot use them.
//!
//! ```text
//! cargo run -p trunkline-rdma-core --features rdma-core --example devices -- [MEBIBYTES]
//! ```
//!
//! Opens each device and registers memory on it, 4 MiB by default. If there is no device or a device cannot be used, prints
//! the reason to standard error and exits with status 1.

use std::process::ExitCode;
use std::sync::Arc;
use trunkline_rdma_core::RdmaCore;
use trunkline_verbs::{Access, Device, DeviceCapabilities, Memory, Provider, VerbsError, XrcdFlags};

const DEFAULT_MEBIBYTES: usize = 4;

fn main() -> ExitCode {
    let mebibytes = match std::env::args().nth(1).map(|argument| argument.parse()) {
        None => DEFAULT_MEBIBYTES,
        Some(Ok(mebibytes)) => mebibytes,
        Some(Err(_)) => {
            eprintln!("usage: devices [MEBIBYTES]");
            return ExitCode::from(2);
        }
    };
    let devices = match RdmaCore.devices() {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut status = ExitCode::SUCCESS;
    for info in devices {
        let shown = RdmaCore.open(&info.name).and_then(|device| {
            show(device.as_ref());
            try_out(device.as_ref(), mebibytes << 20)
        });
        if let Err(error) = shown {
            eprintln!("{}: {error}", info.name);
            status = ExitCode::FAILURE;
        }
    }
    status
}

fn show(device: &dyn Device) {
    let attributes = device.attributes();
    println!("{}: {}, GUID {:016x}", attributes.name, attributes.link, attributes.guid);
    println!("  capabilities: {}", names(attributes.capabilities));
    println!(
        "  at most: {} QPs of {} requests of {} SGEs, {} SRQs, {} CQs of {} entries, {} regions, {} inline bytes",
        attributes.max_qp,
        attributes.max_qp_wr,
        attributes.max_sge,
        attributes.max_srq,
        attributes.max_cq,
        attributes.max_cqe,
        attributes.max_mr,
        attributes.max_inline_data
    );
    for port in 1..=attributes.ports {
        match device.port(port) {
            Ok(now) => println!("  port {port}: {:?}, MTU {}", now.state, now.active_mtu.bytes()),
            Err(error) => println!("  port {port}: {error}"),
        }
    }
    for entry in device.gid_table() {
        println!("  GID {}: {} ({:?})", entry.index, entry.gid.ip(), entry.kind);
    }
}

fn names(capabilities: DeviceCapabilities) -> String {
    let names: Vec<&str> = capabilities.iter_names().map(|(name, _)| name).collect();
    names.join(" ")
}

/// Performs the steps with which a node begins to use a device.
fn try_out(device: &dyn Device, bytes: usize) -> Result<(), VerbsError> {
    let memory =
        Memory::zeroed(bytes).map_err(|_| VerbsError::OutOfResources("no memory for the program itself"))?;
    let region = device.alloc_pd()?.register(Arc::clone(&memory), Access::LOCAL_WRITE)?;
    println!("  registered: {} bytes, lkey {:#x}", region.memory().len(), region.lkey().0);
    match device.open_xrcd(None, XrcdFlags::CREATE) {
        Ok(_) => println!("  connections: XRC"),
        Err(VerbsError::NotSupported(_)) => println!("  connections: RC, the device has no XRC"),
        Err(error) => return Err(error),
    }
    device.connection_manager().create_channel().map(drop)
}
