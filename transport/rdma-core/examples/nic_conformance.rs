//! Tests the XRC contract, item by item, on a device of the host through libibverbs and librdmacm.
//!
//! ```text
//! cargo run -p trunkline-rdma-core --features rdma-core --example nic_conformance -- \
//!     [--device NAME] [--address IP]... [--json] [ITEM...]
//! ```
//!
//! The device is named by `TRUNKLINE_DEVICE`; by default it is the host's first device. The two sides use its first two
//! RoCE v2 addresses of one family, or the same address if there is only one. Items that the device does not support are
//! skipped with the reason. The drop-in libraries of the software device support XRC, so they also run the items that
//! involve several processes, with this program as the other process. Exits with status 1 if an item fails, and with 2 if
//! an argument is invalid or there is no device.

#[path = "../tests/common/mod.rs"]
mod common;

use common::OnHost;
use std::io::{self, BufReader};
use std::net::IpAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use trunkline_conformance::{Bench, Port, ProcessBench, Wanted, run_program, serve_puppet};
use trunkline_verbs::{CompletionStatus, VerbsError};

const USAGE: &str = "usage: nic_conformance [--device NAME] [--address IP]... [--json] [ITEM...]";
/// Environment variable that makes this program the other process. Its value is the address for that process.
const PUPPET: &str = "TRUNKLINE_TEST_PUPPET";
/// Environment variable with the device's name.
const DEVICE: &str = "TRUNKLINE_DEVICE";

fn main() -> ExitCode {
    if let Some(address) = std::env::var(PUPPET).ok().and_then(|text| text.parse().ok()) {
        return match serve(address) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("puppet: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let asked = read(std::env::args().skip(1)).map_err(|error| format!("{error}; {USAGE}"));
    let found = asked.and_then(|(asked, wanted)| Ok((Sides::find(&asked)?, wanted)));
    let (sides, wanted) = match found {
        Ok(found) => found,
        Err(error) => {
            eprintln!("nic_conformance: {error}");
            return ExitCode::from(2);
        }
    };
    eprintln!("{} at {} and {}", sides.near.device, sides.near.gid.gid.ip(), sides.far.gid.gid.ip());
    let processes: Arc<dyn ProcessBench> = Arc::new(sides.clone());
    run_program(&wanted, &[Arc::new(sides)], &processes)
}

/// The device and its addresses, as given by the arguments.
#[derive(Debug, Default)]
struct Asked {
    device: Option<String>,
    addresses: Vec<IpAddr>,
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<(Asked, Wanted), String> {
    let mut asked = Asked { device: std::env::var(DEVICE).ok(), addresses: Vec::new() };
    let mut rest = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--device" => asked.device = Some(arguments.next().ok_or("--device takes a name")?),
            "--address" => {
                let text = arguments.next().unwrap_or_default();
                asked.addresses.push(text.parse().map_err(|_| format!("{text:?} is not an IP address"))?);
            }
            _ => rest.push(argument),
        }
    }
    let wanted = Wanted::read(rest.into_iter()).map_err(|unknown| format!("unknown argument {unknown}"))?;
    Ok((asked, wanted))
}

fn serve(address: IpAddr) -> io::Result<()> {
    let asked = Asked { device: std::env::var(DEVICE).ok(), addresses: vec![address] };
    let sides = Sides::find(&asked).map_err(io::Error::other)?;
    let port = sides.near.port().map_err(io::Error::other)?;
    serve_puppet(port, BufReader::new(io::stdin()), io::stdout())
}

/// The two sides of a test, on one device.
#[derive(Debug, Clone)]
struct Sides {
    near: OnHost,
    far: OnHost,
}

impl Sides {
    fn find(asked: &Asked) -> Result<Self, String> {
        let all = OnHost::all(asked.device.as_deref())?;
        let ip = |one: &OnHost| one.gid.gid.ip();
        let at = |address: &IpAddr| {
            all.iter().find(|one| ip(one) == *address).ok_or_else(|| {
                let there = all.iter().map(|one| ip(one).to_string()).collect::<Vec<_>>().join(", ");
                format!("{} does not have {address}; it has {there}", all[0].device)
            })
        };
        let near = asked.addresses.first().map_or(Ok(&all[0]), at)?;
        let other = all.iter().find(|one| ip(one) != ip(near) && ip(one).is_ipv4() == ip(near).is_ipv4());
        let far = asked.addresses.get(1).map_or(Ok(other.unwrap_or(near)), at)?;
        Ok(Self { near: near.clone(), far: far.clone() })
    }
}

impl Bench for Sides {
    fn provider(&self) -> &str {
        self.near.provider()
    }

    fn link(&self) -> &str {
        self.near.link()
    }

    fn open_pair(&self) -> Result<[Port; 2], VerbsError> {
        Ok([self.near.port()?, self.far.port()?])
    }

    fn is_one_device(&self) -> bool {
        self.near.is_one_device()
    }

    fn shows_solicited(&self) -> bool {
        self.near.shows_solicited()
    }

    fn flushes_late_receives(&self) -> bool {
        self.near.flushes_late_receives()
    }

    fn length_violation(&self) -> &[CompletionStatus] {
        self.near.length_violation()
    }

    fn excuse(&self, id: &str) -> Option<&str> {
        self.near.excuse(id)
    }
}

impl ProcessBench for Sides {
    fn open_near(&self) -> Result<Port, VerbsError> {
        self.near.port()
    }

    fn far_address(&self) -> IpAddr {
        self.far.gid.gid.ip()
    }

    fn start_puppet(&self, address: IpAddr) -> io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .env(PUPPET, address.to_string())
            .env(DEVICE, &self.near.device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    }
}
