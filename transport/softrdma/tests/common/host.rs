//! Processes that share the runtime directory of a test, as the processes of one host do.

use nix::unistd::geteuid;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Folder, Process};
use trunkline_verbs::{CmId, Device, PortSpace, QpType, VerbsError};

/// Environment variable that selects the part of a process started by a test.
const PART: &str = "TRUNKLINE_TEST_PART";
const RUNTIME: &str = "TRUNKLINE_RUNTIME_DIR";

/// A directory of one test, which contains the runtime directory of its processes. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Host(Folder);

impl Host {
    pub(crate) fn new() -> Self {
        Self(Folder::new().unwrap())
    }

    /// Returns the path of a file of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    /// Returns options of a device of this process that shares the runtime directory.
    pub(crate) fn options(&self) -> SoftOptions {
        SoftOptions { runtime_directory: Some(self.runtime()), ..super::udp() }
    }

    /// Returns the folder of this network namespace in the runtime directory.
    pub(crate) fn namespace_directory(&self) -> PathBuf {
        let mut inside = std::fs::read_dir(self.runtime()).unwrap();
        inside.next().unwrap().unwrap().path()
    }

    /// Starts a process of this host. The command comes from `same_test`.
    pub(crate) fn start(&self, part: &str, command: &mut Command, variables: &[(&str, &str)]) -> Process {
        command.env(PART, part).env(RUNTIME, self.runtime()).envs(variables.iter().copied());
        Process::start(part, command).unwrap()
    }
}

/// Returns the part that this process plays; `None` in the test itself.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Returns the user that processes of this test prove to each other; `None` for the overflow uid, which is
/// never accepted as proof.
pub(crate) fn provable_user() -> Option<u32> {
    Some(geteuid().as_raw()).filter(|uid| *uid != 65534)
}

/// Returns the number of files whose names begin with a prefix.
pub(crate) fn count_files(folder: &Path, start: &str) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(start)).count()
}

/// Opens a device at an address. The device binds the port or watches the holder of the port.
pub(crate) fn open(
    options: SoftOptions,
    address: IpAddr,
) -> Result<(Arc<SoftDevice>, Arc<dyn CmId>), String> {
    let options = SoftOptions { addresses: vec![address], ..options };
    let device = SoftDevice::open(options).map_err(|error| error.to_string())?;
    let id = listen(&device, SocketAddr::new(address, 0)).map_err(|error| error.to_string())?;
    Ok((device, id))
}

/// Creates an id that listens.
pub(crate) fn listen(device: &Arc<SoftDevice>, at: SocketAddr) -> Result<Arc<dyn CmId>, VerbsError> {
    let manager = device.connection_manager();
    let channel = manager.create_channel()?;
    let id = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel)?;
    id.bind(at)?;
    id.listen(1).map(|()| id)
}
