//! Command `trunkline-codegen`, which reads the services in a file and writes their stubs to another file. The attribute
//! macro and the `build.rs` helper generate the same stubs.

#![forbid(unsafe_code)]

use clap::Parser;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fmt, fs, io};
use trunkline_codegen::{BuildError, generate_file, generate_to};

/// Text printed below the options in the help.
const EXAMPLES: &str = "\
A service is a trait with an attribute:

  #[trunkline::service]
  pub trait Kv {
      async fn get(&self, key: String) -> Result<Option<String>, trunkline::Status>;
  }

The output has the trait, `KvServer`, `KvClient` and `KvLocal`. It is what the attribute expands to, so a crate uses
either the attribute or the output, which needs no macro.

Examples:
  trunkline-codegen services/kv.rs                            read the code of the stubs
  trunkline-codegen services/kv.rs --output src/kv.rs         write it to a file of the crate
  trunkline-codegen services/kv.rs --output src/kv.rs --check fail in CI if the file is stale

A build script does the same by `trunkline_codegen::build(\"services/kv.rs\")`.

Exit status: 0 if all went well, 1 after an error or a failed check, 2 for wrong arguments. Errors of a service are
`file:line:column: text`, all at once.";

/// Writes the stubs of every trait in a file that is marked `#[trunkline::service]`, and copies all other items unchanged.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// Rust file with the traits.
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
            warn(error);
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error. Write errors are ignored, because the exit status carries the result. `eprintln!` would
/// panic.
fn warn(text: impl fmt::Display) {
    let _unwritten = writeln!(io::stderr(), "{text}");
}

fn run(arguments: &Arguments) -> Result<ExitCode, BuildError> {
    let input = &arguments.input;
    match &arguments.output {
        None => match io::stdout().write_all(generate_file(input)?.as_bytes()) {
            // A reader such as `head` has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => {
                written.map_err(|cause| BuildError::file("write", Path::new("standard output"), cause))?
            }
        },
        Some(output) if arguments.check => return Ok(check(output, &generate_file(input)?)),
        Some(output) => generate_to(input, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn check(output: &Path, stubs: &str) -> ExitCode {
    match fs::read_to_string(output) {
        Ok(present) if present == stubs => return ExitCode::SUCCESS,
        Ok(_) => {
            warn(format_args!("{} differs from its source; write it again without --check", output.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            warn(format_args!("{} does not exist; write it without --check", output.display()))
        }
        Err(error) => warn(format_args!("cannot read {}: {error}", output.display())),
    }
    ExitCode::FAILURE
}
