//! Options of a device.
//!
//! Owns the options and the environment variables that set them.
#![forbid(unsafe_code)]

use super::slot::Slot;
use super::tables::srqs::UnknownSrq;
use crate::host::HostError;
use crate::link::{FaultPlan, FaultPlanError, Hub, Link, LinkError, LinkObserver};
use crate::simulation::SimulatedProcess;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use trunkline_machine::Runtime;
use trunkline_roce::wire::ROCE_PORT;
use trunkline_verbs::{PathChoice, VerbsError, headroom};

/// Link that carries the packets of a device.
#[derive(Debug, Clone, Default)]
pub enum LinkChoice {
    /// Unprivileged UDP sockets, on port 4791 by default.
    #[default]
    Udp,
    /// A network inside this process.
    InProcess(Arc<Hub>),
    /// A network that the caller provides. As with `InProcess`, addresses are not shared with other
    /// processes.
    Custom(LinkFactory),
    /// The simulated network of a host. The device belongs to the given process and shares the host's addresses with
    /// other processes. Requires a simulated [`SoftOptions::runtime`]. If [`SoftOptions::addresses`] is empty, the
    /// device has all addresses of the host.
    Simulated(Arc<SimulatedProcess>),
}

/// Factory that creates a link each time a device is opened.
#[derive(Clone)]
pub struct LinkFactory(MakeLink);

type MakeLink = Arc<dyn Fn() -> io::Result<Box<dyn Link>> + Send + Sync>;

impl LinkFactory {
    /// Creates a factory that calls `make`. [`SoftDevice::open`](crate::device::SoftDevice::open) returns the errors of
    /// `make`.
    pub fn new(make: impl Fn() -> io::Result<Box<dyn Link>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    pub(super) fn make(&self) -> io::Result<Box<dyn Link>> {
        (self.0)()
    }
}

impl fmt::Debug for LinkFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkFactory")
    }
}

/// Options of a device. [`SoftOptions::from_env`] sets some of them from environment variables.
#[derive(Debug, Clone, Default)]
pub struct SoftOptions {
    /// Addresses in the GID table, in this order. If empty, the table contains the addresses of all interfaces that are
    /// up.
    pub addresses: Vec<IpAddr>,
    /// Link that carries the device's packets.
    pub link: LinkChoice,
    /// Path to QPs of other processes on the host. A capture, faults or an observer keep packets on the link, and
    /// cannot be combined with [`PathChoice::Shm`].
    pub path: PathChoice,
    /// Observer of the link's traffic, including injected faults.
    pub observer: Option<Arc<dyn LinkObserver>>,
    /// Faults to inject into the link.
    pub faults: Option<FaultPlan>,
    /// Capture file for the link's packets.
    pub capture: Option<PathBuf>,
    /// Receive buffer to request for each UDP socket, in bytes; `None` for 8 MiB. The system may grant less.
    pub receive_buffer: Option<i32>,
    /// UDP port at which the device receives; `None` for 4791. Devices on other hosts must be configured with this port
    /// to reach the device.
    pub udp_port: Option<NonZeroU16>,
    /// Response to a packet that names an unknown SRQ.
    pub unknown_srq: UnknownSrq,
    /// True if the device does not support XRC, like the kernel's rxe and many NICs. The device then does not report
    /// XRC as a capability, and refuses domains, INIs, TGTs and XRC SRQs (contract A9).
    pub without_xrc: bool,
    /// Maximum number of memory regions; `None` for the upper limit, 2^20. NICs may support fewer, and a kernel may
    /// limit the memory that a user can pin.
    pub max_regions: Option<u32>,
    /// Maximum number of shards, each of which serves one or more groups of CQs; `None` for the upper limit, 32. A
    /// device always has at least one shard.
    pub max_shards: Option<usize>,
    /// Directory through which devices on UDP find the devices of other processes. It must belong to this user with
    /// mode 0700, and is created if it does not exist. `None` means `TRUNKLINE_RUNTIME_DIR`, else `trunkline` in
    /// `XDG_RUNTIME_DIR`, else `trunkline-UID` in the directory for temporary files, or `trunkline-UID-RANDOM` if
    /// another user has taken that name.
    pub runtime_directory: Option<PathBuf>,
    /// Slot in which the device is opened; `None` for a slot that is never emptied.
    pub slot: Option<Slot>,
    /// True if [`take_away`](crate::device::take_away) may remove the device. Ignored unless the device is on UDP. The
    /// command `trunkctl device remove` calls this function.
    pub removable: bool,
    /// Seed for numbers, keys and PSNs in tests; `None` for a random seed from [`Runtime::random`]. QP and SRQ numbers
    /// of devices on UDP come from the host's registry instead.
    pub seed: Option<u64>,
    /// Clock of the device, and executor of its background machines. The default is the system's clock, with a thread
    /// per machine.
    pub runtime: Runtime,
}

/// Error that occurred while opening a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// `TRUNKLINE_ADDRESS` is invalid.
    #[error("invalid TRUNKLINE_ADDRESS {0:?}: expected IP addresses, such as 10.0.0.1,fd00::1")]
    BadAddress(String),
    /// More addresses are named than a device supports.
    #[error("{named} addresses are named, and a device has at most {most}: name fewer in TRUNKLINE_ADDRESS")]
    TooManyAddresses {
        /// Number of named addresses.
        named: usize,
        /// Maximum number of addresses of a device.
        most: usize,
    },
    /// An environment variable is not valid UTF-8.
    #[error("invalid {variable} {value:?}: expected text in UTF-8")]
    NotText {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: OsString,
    },
    /// `TRUNKLINE_FAULTS` is invalid.
    #[error("invalid TRUNKLINE_FAULTS: {0}")]
    BadFaults(#[from] FaultPlanError),
    /// `TRUNKLINE_RECEIVE_BUFFER` is invalid.
    #[error("invalid TRUNKLINE_RECEIVE_BUFFER {0:?}: expected a number of bytes")]
    BadReceiveBuffer(String),
    /// `TRUNKLINE_PORT` is invalid.
    #[error("invalid TRUNKLINE_PORT {0:?}: expected a UDP port, 1 to 65535")]
    BadPort(String),
    /// `TRUNKLINE_UNKNOWN_SRQ` is invalid.
    #[error("invalid TRUNKLINE_UNKNOWN_SRQ {0:?}: expected `nak64`, `nak62` or `drop`")]
    BadUnknownSrq(String),
    /// `TRUNKLINE_LINK` is invalid.
    #[error("invalid TRUNKLINE_LINK {0:?}: expected `auto`, `udp` or `shm`")]
    BadLink(String),
    /// `TRUNKLINE_LINK=shm` is combined with an option that needs packets on the link.
    #[error("TRUNKLINE_LINK=shm (or setting link): {0}, which keeps packets out of shared memory")]
    OnlyOnLink(&'static str),
    /// `TRUNKLINE_XRC` is invalid.
    #[error("invalid TRUNKLINE_XRC {0:?}: expected `on` or `off`")]
    BadXrc(String),
    /// `TRUNKLINE_REMOVABLE` is invalid.
    #[error("invalid TRUNKLINE_REMOVABLE {0:?}: expected `on` or `off`")]
    BadRemovable(String),
    /// The device was removed from its slot.
    #[error("the device was taken away; put it back (`trunkctl device restore`)")]
    Removed,
    /// A named address does not exist on the host, or cannot be opened.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The capture file cannot be written.
    #[error("cannot write the capture {path:?}: {source}{}", capture_remedy(source))]
    Capture {
        /// Path of the capture file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The host does not have a usable address.
    #[error("no interface of this host is up with an IP address, not even the loopback")]
    NoAddress,
    /// The registry that the processes of this host share cannot be used.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The operating system refused an operation.
    #[error("cannot {doing}: {source}{}", headroom::remedy(source.raw_os_error()))]
    Os {
        /// The attempted operation.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns the remedy for a capture file that cannot be written. Trunkline's own errors state the remedy in their text.
fn capture_remedy(error: &io::Error) -> String {
    let errno = error.raw_os_error();
    let limit = headroom::remedy(errno).to_string();
    match errno {
        Some(_) if limit.is_empty() => "; name another file in TRUNKLINE_PCAP, or unset it".to_owned(),
        _ => limit,
    }
}

impl From<OpenError> for VerbsError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::BadAddress(_) => Self::Invalid("invalid TRUNKLINE_ADDRESS: expected IP addresses"),
            OpenError::NotText { .. } => {
                Self::Invalid("invalid variable of the environment: expected text in UTF-8")
            }
            OpenError::BadFaults(_) => {
                Self::Invalid("invalid TRUNKLINE_FAULTS: expected key=value, such as drop=0.01")
            }
            OpenError::BadReceiveBuffer(_) => {
                Self::Invalid("invalid TRUNKLINE_RECEIVE_BUFFER: expected a number of bytes")
            }
            OpenError::BadPort(_) => Self::Invalid("invalid TRUNKLINE_PORT: expected a UDP port"),
            OpenError::BadUnknownSrq(_) => {
                Self::Invalid("invalid TRUNKLINE_UNKNOWN_SRQ: expected `nak64`, `nak62` or `drop`")
            }
            OpenError::BadLink(_) => Self::Invalid("invalid TRUNKLINE_LINK: expected `auto`, `udp` or `shm`"),
            OpenError::OnlyOnLink(_) => Self::Invalid(
                "TRUNKLINE_LINK=shm (or setting link) does not go with faults, captures or another link around the device's",
            ),
            OpenError::BadXrc(_) => Self::Invalid("invalid TRUNKLINE_XRC: expected `on` or `off`"),
            OpenError::BadRemovable(_) => {
                Self::Invalid("invalid TRUNKLINE_REMOVABLE: expected `on` or `off`")
            }
            OpenError::Removed => Self::NoDevice,
            OpenError::Link(error) => error.into(),
            OpenError::Host(error) => error.into(),
            OpenError::Capture { source, .. } | OpenError::Os { source, .. } => source.into(),
            OpenError::TooManyAddresses { .. } => Self::Invalid("a device has at most 256 addresses"),
            OpenError::NoAddress => Self::AddressNotAvailable("no interface of this host is up"),
        }
    }
}

impl SoftOptions {
    /// Returns the UDP port at which the device receives.
    #[must_use]
    pub fn receiving_port(&self) -> u16 {
        self.udp_port.map_or(ROCE_PORT, NonZeroU16::get)
    }

    /// Returns the options set by the environment: `TRUNKLINE_ADDRESS` (`a,b`), `TRUNKLINE_FAULTS`
    /// (`drop=0.01,seed=7`), `TRUNKLINE_PCAP` (a file; `%p` is replaced by the process id), `TRUNKLINE_RECEIVE_BUFFER`
    /// (bytes per UDP socket), `TRUNKLINE_PORT` (a UDP port), `TRUNKLINE_LINK` (`auto`, `udp`, `shm`),
    /// `TRUNKLINE_UNKNOWN_SRQ` (`nak64`, `nak62`, `drop`), `TRUNKLINE_XRC` (`on`, `off`), `TRUNKLINE_RUNTIME_DIR` (a
    /// directory), `TRUNKLINE_REMOVABLE` (`on`, `off`).
    ///
    /// # Errors
    /// Returns an error if a variable has an invalid value.
    pub fn from_env() -> Result<Self, OpenError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    fn from_lookup(value: impl Fn(&str) -> Option<OsString>) -> Result<Self, OpenError> {
        let value = |name: &str| value(name).filter(|value| !value.is_empty());
        let text = |variable| {
            let not_text = |value| OpenError::NotText { variable, value };
            value(variable).map(|value| value.into_string().map_err(not_text)).transpose()
        };
        let mut options = Self::default();
        for part in text("TRUNKLINE_ADDRESS")?.unwrap_or_default().split(',') {
            let part = part.trim();
            // Report a link-local address with its interface, such as `fe80::1%eth0`, as a link-local address.
            if let Some(Ok(address)) = part.split_once('%').map(|(address, _)| address.parse()) {
                VerbsError::check_scope(address).map_err(|why| LinkError::Scoped { address, why })?;
            }
            if !part.is_empty() {
                let address = part.parse::<IpAddr>().map_err(|_| OpenError::BadAddress(part.to_owned()))?;
                options.addresses.push(address.to_canonical());
            }
        }
        if let Some(text) = text("TRUNKLINE_FAULTS")? {
            options.faults = Some(text.parse()?);
        }
        options.capture = value("TRUNKLINE_PCAP").map(|path| with_process_id(&path));
        if let Some(text) = text("TRUNKLINE_RECEIVE_BUFFER")? {
            let bytes = text.parse().ok().filter(|bytes| *bytes > 0);
            options.receive_buffer = Some(bytes.ok_or(OpenError::BadReceiveBuffer(text))?);
        }
        if let Some(text) = text("TRUNKLINE_PORT")? {
            options.udp_port = Some(text.parse().map_err(|_| OpenError::BadPort(text))?);
        }
        options.runtime_directory = value("TRUNKLINE_RUNTIME_DIR").map(PathBuf::from);
        options.removable = match text("TRUNKLINE_REMOVABLE")?.as_deref() {
            None | Some("off") => false,
            Some("on") => true,
            Some(other) => return Err(OpenError::BadRemovable(other.to_owned())),
        };
        options.unknown_srq = match text("TRUNKLINE_UNKNOWN_SRQ")?.as_deref() {
            None | Some("nak64") => UnknownSrq::Nak64,
            Some("nak62") => UnknownSrq::Nak62,
            Some("drop") => UnknownSrq::Drop,
            Some(other) => return Err(OpenError::BadUnknownSrq(other.to_owned())),
        };
        if let Some(text) = text("TRUNKLINE_LINK")? {
            options.path = text.parse().map_err(|_| OpenError::BadLink(text))?;
        }
        options.without_xrc = match text("TRUNKLINE_XRC")?.as_deref() {
            None | Some("on") => false,
            Some("off") => true,
            Some(other) => return Err(OpenError::BadXrc(other.to_owned())),
        };
        Ok(options)
    }
}

/// Returns the path with this process's id in place of each `%p`.
fn with_process_id(path: &OsStr) -> PathBuf {
    let process = std::process::id().to_string();
    let mut rest = path.as_bytes();
    let mut named = Vec::with_capacity(rest.len() + process.len());
    while let Some(at) = rest.windows(2).position(|two| two == b"%p") {
        named.extend_from_slice(&rest[..at]);
        named.extend_from_slice(process.as_bytes());
        rest = &rest[at + 2..];
    }
    named.extend_from_slice(rest);
    OsString::from_vec(named).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<SoftOptions, OpenError> {
        SoftOptions::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn environment_is_read() {
        let options = read(&[
            ("TRUNKLINE_ADDRESS", "::ffff:127.0.0.9, fd00::1"),
            ("TRUNKLINE_FAULTS", "drop=0.5,seed=7"),
            ("TRUNKLINE_PCAP", "/tmp/x-%p.pcap"),
            ("TRUNKLINE_RECEIVE_BUFFER", "212992"),
            ("TRUNKLINE_UNKNOWN_SRQ", "drop"),
            ("TRUNKLINE_PORT", "5000"),
            ("TRUNKLINE_RUNTIME_DIR", "/tmp/meet"),
            ("TRUNKLINE_XRC", "off"),
            ("TRUNKLINE_LINK", "shm"),
        ])
        .unwrap();
        assert_eq!(options.addresses, ["127.0.0.9".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
        assert_eq!(options.faults, Some("drop=0.5,seed=7".parse().unwrap()));
        assert_eq!(options.capture, Some(format!("/tmp/x-{}.pcap", std::process::id()).into()));
        assert_eq!(options.unknown_srq, UnknownSrq::Drop);
        assert_eq!(options.udp_port.map(NonZeroU16::get), Some(5000));
        assert_eq!(options.receive_buffer, Some(212_992));
        assert_eq!(options.runtime_directory, Some("/tmp/meet".into()));
        assert!(options.without_xrc && options.path == PathChoice::Shm);
        let unconfigured = read(&[]).unwrap();
        assert!(unconfigured.addresses.is_empty() && !unconfigured.without_xrc);
    }

    #[test]
    fn invalid_values_are_refused() {
        assert!(matches!(
            read(&[("TRUNKLINE_ADDRESS", "10.0.0.1,fe80::1%eth0")]),
            Err(OpenError::Link(LinkError::Scoped { .. }))
        ));
        assert!(matches!(read(&[("TRUNKLINE_ADDRESS", "localhost")]), Err(OpenError::BadAddress(_))));
        for bytes in ["8M", "0", "-1"] {
            let error = read(&[("TRUNKLINE_RECEIVE_BUFFER", bytes)]).unwrap_err();
            assert!(matches!(error, OpenError::BadReceiveBuffer(_)), "{error}");
        }
        let faults = read(&[("TRUNKLINE_FAULTS", "drop=2")]).unwrap_err();
        assert!(
            faults.to_string().starts_with("invalid TRUNKLINE_FAULTS: `2` does not fit drop"),
            "{faults}"
        );
        assert!(matches!(read(&[("TRUNKLINE_UNKNOWN_SRQ", "65")]), Err(OpenError::BadUnknownSrq(_))));
        for port in ["0", "65536", "http"] {
            assert!(matches!(read(&[("TRUNKLINE_PORT", port)]), Err(OpenError::BadPort(_))));
        }
        assert!(matches!(read(&[("TRUNKLINE_LINK", "tcp")]), Err(OpenError::BadLink(_))));
        assert!(matches!(read(&[("TRUNKLINE_XRC", "no")]), Err(OpenError::BadXrc(_))));
    }

    #[test]
    fn non_utf8_value_is_accepted_only_for_paths() {
        let bytes = || OsString::from_vec(b"/tmp/\xff-%p%p.pcap".to_vec());
        let set = |set: &'static str| {
            SoftOptions::from_lookup(move |name| (name == set).then(bytes)).map_err(|error| error.to_string())
        };
        for name in [
            "TRUNKLINE_ADDRESS",
            "TRUNKLINE_FAULTS",
            "TRUNKLINE_LINK",
            "TRUNKLINE_PORT",
            "TRUNKLINE_RECEIVE_BUFFER",
            "TRUNKLINE_REMOVABLE",
            "TRUNKLINE_UNKNOWN_SRQ",
            "TRUNKLINE_XRC",
        ] {
            let text = set(name).unwrap_err();
            assert!(text.starts_with(&format!("invalid {name} ")) && text.contains("in UTF-8"), "{text}");
        }
        assert_eq!(set("TRUNKLINE_RUNTIME_DIR").unwrap().runtime_directory, Some(bytes().into()));
        let named = [b"/tmp/\xff-", format!("{0}{0}", std::process::id()).as_bytes(), b".pcap"].concat();
        assert_eq!(set("TRUNKLINE_PCAP").unwrap().capture, Some(OsString::from_vec(named).into()));
    }
}
