//! Cores of the client and the server.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::str::FromStr;

/// Cores of client and server. All threads of a side run on its core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

impl Cores {
    /// Returns both cores in the order used in JSON, client first.
    pub(crate) const fn pair(self) -> [usize; 2] {
        [self.client, self.server]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pin {
    /// Pins client and server to these cores.
    To(Cores),
    /// Leaves the placement of threads to the kernel.
    Off,
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let cores = text.split_once(',').and_then(|(client, server)| {
            Some(Cores { client: client.trim().parse().ok()?, server: server.trim().parse().ok()? })
        });
        cores
            .map(Self::To)
            .ok_or_else(|| format!("invalid cores `{text}`: expected two, such as 0,1, or `off`"))
    }
}

impl Pin {
    /// Checks the chosen cores and returns them. The default is the first two cores that the process may use, if there
    /// are two.
    ///
    /// # Errors
    /// Returns an error if the process may not use one of the cores.
    pub(crate) fn cores(choice: Option<Self>) -> Result<Option<Cores>, String> {
        let usable = usable()?;
        match choice {
            Some(Self::Off) => Ok(None),
            None => Ok(match usable[..] {
                [client, server, ..] => Some(Cores { client, server }),
                _ => None,
            }),
            Some(Self::To(cores)) => {
                match [cores.client, cores.server].into_iter().find(|core| !usable.contains(core)) {
                    Some(core) => {
                        Err(format!("--pin: this process may not use core {core}, only {usable:?}"))
                    }
                    None => Ok(Some(cores)),
                }
            }
        }
    }
}

fn usable() -> Result<Vec<usize>, String> {
    let set =
        sched_getaffinity(Pid::from_raw(0)).map_err(|error| format!("cannot list the cores: {error}"))?;
    Ok((0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).collect())
}

/// Pins the calling thread. Threads that it starts later are pinned too.
///
/// # Errors
/// Returns an error from the operating system.
pub(crate) fn to(core: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| format!("cannot pin a thread to core {core}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_option_accepts_two_cores_or_off() {
        assert_eq!("0, 3".parse(), Ok(Pin::To(Cores { client: 0, server: 3 })));
        assert_eq!("off".parse(), Ok(Pin::Off));
        for text in ["", "1", "a,b", "0,1,2"] {
            assert!(text.parse::<Pin>().unwrap_err().contains("such as 0,1"), "{text}");
        }
    }

    #[test]
    fn unusable_core_is_named() {
        let far = Pin::To(Cores { client: usable().unwrap()[0], server: 100_000 });
        assert!(Pin::cores(Some(far)).unwrap_err().contains("100000"));
    }
}
