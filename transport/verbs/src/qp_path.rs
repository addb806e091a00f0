//! Paths of QPs' packets to their peers.

/// The current path of a QP's packets, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QpPath {
    /// Name of the path: [`QpPath::MEMORY`] for memory shared with the peer's process, [`QpPath::NONE`] if the device is
    /// limited to shared memory and cannot use it here, else the device's link, such as `udp`.
    pub name: &'static str,
    /// Reason why the path is not shared memory; empty if not applicable.
    pub why: &'static str,
}

impl QpPath {
    /// Name of the path through memory shared with the peer's process. The device detects the end of that process
    /// immediately.
    pub const MEMORY: &str = "shm";
    /// Path name of a QP without a path. All its packets are lost.
    pub const NONE: &str = "none";
}

/// Choice of a software device's path to QPs of other processes on its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathChoice {
    /// Shared memory where both processes support it, else UDP.
    #[default]
    Auto,
    /// UDP only.
    Udp,
    /// Shared memory only. Peers that cannot use it are refused.
    Shm,
}

impl std::str::FromStr for PathChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "udp" => Ok(Self::Udp),
            "shm" => Ok(Self::Shm),
            other => Err(format!("invalid link {other:?}: expected `auto`, `udp` or `shm`")),
        }
    }
}
