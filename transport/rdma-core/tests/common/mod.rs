//! The device under test. It is the host's first device, which is opened twice.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use trunkline_conformance::{Bench, Port};
use trunkline_rdma_core::RdmaCore;
use trunkline_verbs::{CompletionStatus, Device, GidEntry, GidKind, Provider, VerbsError};

/// A device of the host with one of its addresses.
#[derive(Debug, Clone)]
pub(crate) struct OnHost {
    pub(crate) device: String,
    pub(crate) gid: GidEntry,
}

impl OnHost {
    /// Returns the device named by `TRUNKLINE_DEVICE`, or the first device, with its first RoCE v2 address that is not
    /// link-local. The error states why there is none.
    pub(crate) fn find() -> Result<Self, String> {
        Ok(Self::all(std::env::var("TRUNKLINE_DEVICE").ok().as_deref())?.remove(0))
    }

    /// Returns the device with the given name, or the first device, once per RoCE v2 address that is not link-local. The
    /// result is not empty.
    pub(crate) fn all(name: Option<&str>) -> Result<Vec<Self>, String> {
        let devices = RdmaCore.devices().map_err(|error| error.to_string())?;
        let mut names = devices.into_iter().map(|info| info.name);
        let device = names
            .find(|device| name.is_none_or(|name| name == device))
            .ok_or("libibverbs lists no such device; load a driver, or set LD_LIBRARY_PATH=target/dropin")?;
        let opened = RdmaCore.open(&device).map_err(|error| format!("{device}: {error}"))?;
        let usable = |entry: &GidEntry| entry.kind == GidKind::RoceV2 && !is_link_local(entry.gid.ip());
        let gids = opened.gid_table().into_iter().filter(usable);
        let all: Vec<_> = gids.map(|gid| Self { device: device.clone(), gid }).collect();
        if all.is_empty() {
            return Err(format!("{device} has no RoCE v2 address; give its interface an IP address"));
        }
        Ok(all)
    }

    /// Opens the device again, for use with its address.
    pub(crate) fn port(&self) -> Result<Port, VerbsError> {
        Ok(Port { device: self.open()?, address: self.gid.gid.ip(), gid_index: self.gid.index })
    }

    /// Opens the device again.
    pub(crate) fn open(&self) -> Result<Arc<dyn Device>, VerbsError> {
        RdmaCore.open(&self.device)
    }

    /// Returns true if the device is the kernel's soft RoCE, which has known deviations. Only its driver names the network
    /// interface.
    fn is_rxe(&self) -> bool {
        Path::new("/sys/class/infiniband").join(&self.device).join("parent").exists()
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

impl Bench for OnHost {
    fn provider(&self) -> &str {
        "rdma-core"
    }

    fn link(&self) -> &str {
        &self.device
    }

    fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
        Ok([self.port()?, self.port()?])
    }

    fn is_one_device(&self) -> bool {
        true
    }

    fn shows_solicited(&self) -> bool {
        false
    }

    // rxe reads its ring of receives only when other work wakes it.
    fn flushes_late_receives(&self) -> bool {
        !self.is_rxe()
    }

    // rxe treats a message that exceeds its receive as a malformed receive.
    fn length_violation(&self) -> &[CompletionStatus] {
        const STATUSES: [CompletionStatus; 2] =
            [CompletionStatus::RemoteInvalidRequest, CompletionStatus::RemoteOperationError];
        if self.is_rxe() { &STATUSES } else { &STATUSES[..1] }
    }

    fn excuse(&self, id: &str) -> Option<&str> {
        (id == "H4" && self.is_rxe()).then_some("rxe of Linux 6.1 does not report the last receive")
    }
}
