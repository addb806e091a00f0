//! Records the version of the compiler, because instruction counts are compared only between equal compilers.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-V").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo:rustc-env=COUNTS_RUSTC={}", version.unwrap_or_else(|_| "unknown".to_owned()));
    println!("cargo:rerun-if-changed=build.rs");
}
