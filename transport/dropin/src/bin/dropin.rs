//! `cargo dropin`: builds `libibverbs.so.1` and `librdmacm.so.1` in `target/dropin/`.
//!
//! The C compiler links this crate's static library with the version script of each shared library. Rustc cannot do this,
//! because it passes its own version script and the linker accepts only one. All code is in `libibverbs.so.1`, so that both
//! libraries share one device. For each symbol, `librdmacm.so.1` contains a jump. `--library FILE` links an existing static
//! library.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, io};

const VERBS_MAP: &str = include_str!("../../exports/libibverbs.map");
const CM_MAP: &str = include_str!("../../exports/librdmacm.map");
/// Prefix of librdmacm's functions in `libibverbs.so.1`.
const INNER: &str = "trunkline_";

fn main() -> ExitCode {
    match make() {
        Ok(directory) => {
            println!("{}", directory.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _unwritten = writeln!(io::stderr(), "cargo dropin: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let profile = program.parent().ok_or("this program's path has no directory")?;
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let library = match &arguments[..] {
        [] => static_library(profile)?,
        [option, library] if option == "--library" => library.into(),
        _ => return Err("expected no arguments, or --library FILE".to_owned()),
    };
    let directory = profile.parent().ok_or("the target directory has no parent")?.join("dropin");
    let failed = |error: io::Error| format!("cannot write to {}: {error}", directory.display());
    fs::create_dir_all(&directory).map_err(failed)?;
    let cm = symbols(CM_MAP);

    let verbs_map = directory.join("libibverbs.map");
    // The targets of librdmacm's jumps have a separate symbol version.
    let inner: String = cm.iter().map(|symbol| format!("        {INNER}{symbol};\n")).collect();
    let script = format!("{VERBS_MAP}\nTRUNKLINE_1 {{\n    global:\n{inner}}};\n");
    fs::write(&verbs_map, script).map_err(failed)?;
    let mut link = linker("libibverbs.so.1", &directory, &verbs_map);
    for symbol in symbols(VERBS_MAP) {
        link.arg(format!("-Wl,-u,{symbol}"));
    }
    for symbol in &cm {
        link.arg(format!("-Wl,-u,{INNER}{symbol}"));
    }
    link.args(["-Wl,--gc-sections", "-Wl,-z,defs"]).arg(&library).args(["-lpthread", "-ldl", "-lm"]);
    run(link)?;

    let assembly = directory.join("librdmacm.s");
    fs::write(&assembly, jumps(&cm)).map_err(failed)?;
    let cm_map = directory.join("librdmacm.map");
    fs::write(&cm_map, CM_MAP).map_err(failed)?;
    let mut link = linker("librdmacm.so.1", &directory, &cm_map);
    link.arg(&assembly).arg(directory.join("libibverbs.so.1")).arg("-Wl,-z,defs");
    run(link)?;

    for (name, of) in [("libibverbs.so", "libibverbs.so.1"), ("librdmacm.so", "librdmacm.so.1")] {
        let link = directory.join(name);
        // Programs are linked with the unversioned name. The link may already exist from an earlier build.
        let _from_before = fs::remove_file(&link);
        std::os::unix::fs::symlink(of, &link).map_err(failed)?;
    }
    for temporary in [verbs_map, cm_map, assembly] {
        fs::remove_file(temporary).map_err(failed)?;
    }
    Ok(directory)
}

/// Builds the static library with the profile of this program. Returns the library's path.
fn static_library(profile: &Path) -> Result<PathBuf, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let name =
        if profile.ends_with("debug") { OsStr::new("dev") } else { profile.file_name().unwrap_or_default() };
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "trunkline-dropin", "--lib", "--profile"]).arg(name);
    run(build)?;
    let library = profile.join("libtrunkline_dropin.a");
    if library.exists() { Ok(library) } else { Err(format!("{} was not built", library.display())) }
}

fn linker(soname: &str, directory: &Path, map: &Path) -> Command {
    let mut link = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    link.args(["-shared", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack"])
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", map.display()))
        .arg("-o")
        .arg(directory.join(soname));
    link
}

fn run(mut command: Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| {
        format!("cannot run {program}: {error}; a C compiler is needed: set CC if it is not called cc")
    })?;
    if status.success() { Ok(()) } else { Err(format!("{program} failed: {status}")) }
}

/// Returns the symbols that a version script exports.
fn symbols(map: &str) -> Vec<&str> {
    map.lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        .collect()
}

/// Returns assembly code with a jump for each function, through the procedure linkage table.
fn jumps(cm: &[&str]) -> String {
    let jump = if cfg!(target_arch = "aarch64") { "b" } else { "jmp" };
    let place = if cfg!(target_arch = "aarch64") { "" } else { "@PLT" };
    let functions: String = cm
        .iter()
        .map(|symbol| {
            format!(
                "    .globl {symbol}\n    .type {symbol}, %function\n{symbol}:\n    {jump} \
                 {INNER}{symbol}{place}\n    .size {symbol}, . - {symbol}\n"
            )
        })
        .collect();
    format!("    .text\n{functions}    .section .note.GNU-stack, \"\", %progbits\n")
}
