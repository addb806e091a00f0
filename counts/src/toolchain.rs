//! Versions that affect instruction counts, in addition to the version of the code.

use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::process::Command;

/// Toolchain and processor. Instruction counts are comparable only if these are equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Toolchain {
    /// Compiler that built the program.
    pub(crate) rustc: String,
    pub(crate) valgrind: String,
    /// C library, which provides `memcpy` and the allocator.
    pub(crate) libc: String,
    /// Architecture, and the widest vectors that the C library may use on this machine.
    pub(crate) processor: String,
}

impl Toolchain {
    /// Returns the toolchain of this machine and this build.
    ///
    /// Returns an error with installation instructions if valgrind is missing.
    pub(crate) fn here() -> Result<Self, String> {
        let valgrind = match Command::new("valgrind").arg("--version").output() {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            }
            Ok(output) => return Err(format!("`valgrind --version` fails: {}", output.status)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err("valgrind is not installed; install the package `valgrind`, on Debian by `apt-get install valgrind`"
                    .to_owned());
            }
            Err(error) => return Err(format!("cannot run valgrind: {error}")),
        };
        let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
        let libc = libc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Ok(Self {
            rustc: env!("COUNTS_RUSTC").to_owned(),
            valgrind,
            libc: libc.unwrap_or_else(|_| "unknown".to_owned()),
            processor: processor(),
        })
    }

    /// Describes the differences between two toolchains. The result is empty if they are equal.
    pub(crate) fn differences(&self, other: &Self) -> String {
        let all = [
            (&self.rustc, &other.rustc),
            (&self.valgrind, &other.valgrind),
            (&self.libc, &other.libc),
            (&self.processor, &other.processor),
        ];
        let different = all.into_iter().filter(|(one, other)| one != other);
        different.map(|(one, other)| format!("{one} instead of {other}")).collect::<Vec<_>>().join(", ")
    }
}

fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    let vectors = if std::arch::is_x86_feature_detected!("avx2") { " with AVX2" } else { "" };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "";
    format!("{}{vectors}", std::env::consts::ARCH)
}
