//! `trunkline-codegen`: writes the stubs of the services in a file to another file, as the attribute macro and the helper for
//! `build.rs` make them.

#![forbid(unsafe_code)]

use clap::Parser;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};
use trunkline_codegen::{BuildError, generate_file};

/// Writes the stubs of every trait in a file that is marked `#[trunkline::service]`; all other items are passed through.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// A file of Rust with the traits.
    input: PathBuf,
    /// Output file for the stubs; standard output by default.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Writes nothing, and fails if the output differs from what would be written.
    #[arg(long, requires = "output")]
    check: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, BuildError> {
    let stubs = generate_file(&arguments.input)?;
    match &arguments.output {
        None => match io::stdout().write_all(stubs.as_bytes()) {
            // A reader such as `head` has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => {
                written.map_err(|cause| BuildError::file("write", Path::new("standard output"), cause))?
            }
        },
        Some(output) if arguments.check => return Ok(check(output, &stubs)),
        Some(output) => fs::write(output, stubs).map_err(|cause| BuildError::file("write", output, cause))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn check(output: &Path, stubs: &str) -> ExitCode {
    match fs::read_to_string(output) {
        Ok(present) if present == stubs => return ExitCode::SUCCESS,
        Ok(_) => eprintln!("{} differs from its source; write it again", output.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!("{} does not exist", output.display())
        }
        Err(error) => eprintln!("cannot read {}: {error}", output.display()),
    }
    ExitCode::FAILURE
}
