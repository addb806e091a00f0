//! Runs the demo's halves as processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use trunkline_testkit::{Folder, Process, fresh_ip};

/// Time limit of each wait, for a loaded machine. The simulation requires deaths to be noticed within 3 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a small tree; removed when the scene is dropped.
pub(crate) struct Scene {
    root: Folder,
    addresses: [String; 2],
    /// True if the client has a separate address.
    apart: bool,
}

impl Scene {
    /// Creates a scene with one address for both halves.
    pub(crate) fn new() -> Self {
        let root = Folder::new().expect("a directory");
        std::fs::create_dir_all(root.join("tree/below")).expect("a directory");
        let bytes: Vec<u8> =
            (0..3_000_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for (name, length) in [("empty", 0), ("small", 7), ("below/page", 4096), ("below/large", bytes.len())]
        {
            std::fs::write(root.join("tree").join(name), &bytes[..length]).expect("a file");
        }
        Self { root, addresses: [fresh_ip().to_string(), fresh_ip().to_string()], apart: false }
    }

    /// Creates a scene with two addresses.
    pub(crate) fn apart() -> Self {
        let mut scene = Self::new();
        scene.apart = true;
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the command of the demo with this scene's tree and addresses, and `more` arguments.
    pub(crate) fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-demo"));
        command
            .args(["--tree", path_text(&self.root.join("tree"))])
            .args(["--server-address", &self.addresses[0]])
            .args(["--client-address", &self.addresses[usize::from(self.apart)]])
            .args(more)
            .env("TRUNKLINE_LOG", "info")
            .env("TRUNKLINE_XRC", "on");
        command
    }

    /// Starts the whole demo.
    pub(crate) fn demo(&self, more: &[&str]) -> Process {
        Process::start_program("the demo", &mut self.command(more)).expect("it starts")
    }

    /// Starts the server half.
    pub(crate) fn server(&self) -> Server {
        let mut command = self.command(&["server"]);
        let process = Process::start_program("the server", &mut command).expect("it starts");
        let mut process = process.with_bound(PATIENCE);
        let address = process.after("listening ").expect("the server listens");
        Server { process, address }
    }

    /// Starts the client half.
    pub(crate) fn client(&self, server: &Server, calls: u64) -> Process {
        let calls = calls.to_string();
        let mut command = self.command(&["--calls", &calls, "client", "--server", &server.address]);
        Process::start_program("the client", &mut command).expect("it starts")
    }
}

pub(crate) fn path_text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// A running server half.
pub(crate) struct Server {
    pub(crate) process: Process,
    /// Address on which it listens.
    address: String,
}

/// Returns the exit code of a process that ends in time.
pub(crate) fn exit_code(process: &mut Process, within: Duration) -> Option<i32> {
    process.wait(within).and_then(|status| status.code())
}
