//! Running the demo's halves as processes.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What happens to a peer must be told within this time.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(3);

/// A bound for everything that has no time of its own, on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a small tree; removed at the end.
pub(crate) struct Scene {
    root: PathBuf,
    net: String,
    /// The client has an address of its own.
    apart: bool,
    /// The device has no XRC.
    without_xrc: bool,
}

impl Scene {
    /// A scene with one address for both halves. `test` is a number of the test's own, from which the
    /// scene has its addresses.
    pub(crate) fn new(test: u8) -> Self {
        let id = std::process::id();
        let root = std::env::temp_dir().join(format!("trunkline-demo-{id}-{test}"));
        std::fs::create_dir_all(root.join("tree/below")).expect("a directory");
        let bytes: Vec<u8> =
            (0..3_000_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for (name, length) in [("empty", 0), ("small", 7), ("below/page", 4096), ("below/large", bytes.len())]
        {
            std::fs::write(root.join("tree").join(name), &bytes[..length]).expect("a file");
        }
        let [_, _, high, low] = id.to_be_bytes();
        Self {
            root,
            net: format!("127.{}.{low}.{}", 128 + high % 64, test * 8),
            apart: false,
            without_xrc: false,
        }
    }

    /// A scene with two addresses.
    pub(crate) fn apart(test: u8) -> Self {
        let mut scene = Self::new(test);
        scene.apart = true;
        scene
    }

    /// A scene with two addresses, on a device without XRC.
    pub(crate) fn without_xrc(test: u8) -> Self {
        let mut scene = Self::apart(test);
        scene.without_xrc = true;
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn address(&self, plus: u8) -> String {
        let (net, last) = self.net.rsplit_once('.').expect("an address");
        format!("{net}.{}", last.parse::<u8>().expect("a byte") + plus)
    }

    /// The demo with this scene's tree and addresses, and `more` arguments.
    pub(crate) fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-demo"));
        command
            .args(["--tree", path_text(&self.root.join("tree"))])
            .args(["--server-address", &self.address(1)])
            .args(["--client-address", &self.address(if self.apart { 2 } else { 1 })])
            .args(more)
            .env("TRUNKLINE_LOG", "info")
            .env("TRUNKLINE_XRC", if self.without_xrc { "off" } else { "on" })
            .stdin(Stdio::null());
        command
    }

    /// Starts the server half.
    pub(crate) fn server(&self) -> Process {
        let mut process = Process::start(&mut self.command(&["server"]));
        let line = process.line(PATIENCE, |line| line.starts_with("listening ")).expect("the server listens");
        process.address = line.trim_start_matches("listening ").to_owned();
        process
    }

    /// Starts the client half.
    pub(crate) fn client(&self, server: &Process, calls: u64) -> Process {
        let calls = calls.to_string();
        Process::start(&mut self.command(&["--calls", &calls, "client", "--server", &server.address]))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

pub(crate) fn path_text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// A child whose output lines can be waited for; killed at the end.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Where a server listens.
    pub(crate) address: String,
    lines: Receiver<String>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (sender, lines) = channel();
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        for reader in [Box::new(out) as Box<dyn std::io::Read + Send>, Box::new(err)] {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(reader).lines().map_while(Result::ok) {
                    eprintln!("| {line}");
                    let _ = sender.send(line);
                }
            });
        }
        Self { child, address: String::new(), lines }
    }

    /// The first line from now on that `wanted` accepts, if one comes in time.
    pub(crate) fn line(&self, within: Duration, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let end = Instant::now() + within;
        loop {
            let line = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())).ok()?;
            if wanted(&line) {
                return Some(line);
            }
        }
    }

    /// Its exit code, if it ends in time.
    pub(crate) fn end(&mut self, within: Duration) -> Option<Option<i32>> {
        let end = Instant::now() + within;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return Some(status.code());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        nix::sys::signal::kill(pid, signal).expect("it is ours");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
