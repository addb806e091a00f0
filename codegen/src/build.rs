//! Generates the stubs for the services in a file and writes them to another file, for `build.rs` and the command line.

use crate::generate_counted;
use proc_macro2::LineColumn;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Reason why stubs were not written.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// A file cannot be read or written.
    File {
        /// Failed operation: `read` or `write`.
        tried: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The file does not parse, or a marked trait is not a valid service.
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// All errors, with their positions in the file.
        errors: syn::Error,
    },
    /// The file contains no trait that is marked as a service.
    NoService {
        /// Path of the file.
        path: PathBuf,
    },
    /// The output would replace the input.
    OverInput {
        /// Path of the file.
        path: PathBuf,
    },
    /// `OUT_DIR` is not set, because the program is not a build script.
    NoOutDir,
}

impl BuildError {
    /// Creates an error for a file that cannot be read or written.
    #[must_use]
    pub fn file(tried: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::File { tried, path: path.to_owned(), cause }
    }
}

/// Formats each error in a service as `file:line:column: text`. `proc-macro2` provides line numbers only with its feature
/// `span-locations`.
impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File { tried, path, cause } => write!(f, "cannot {tried} {}: {cause}", path.display()),
            Self::NoOutDir => {
                f.write_str("OUT_DIR is not set; call this from a build script, or name an output")
            }
            Self::NoService { path } => write!(
                f,
                "{}: no trait is marked `#[trunkline::service]`; an attribute of another path needs its option `crate`",
                path.display()
            ),
            Self::OverInput { path } => {
                write!(f, "the output {} is the input; choose another file or directory", path.display())
            }
            Self::Invalid { path, errors } => {
                for (at, error) in errors.into_iter().enumerate() {
                    let LineColumn { line, column } = error.span().start();
                    let newline = if at == 0 { "" } else { "\n" };
                    write!(f, "{newline}{}:{line}:{}: {error}", path.display(), column + 1)?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// Returns the stubs for the services in a file, as source text.
///
/// # Errors
/// Returns an error if the file cannot be read, is invalid, or contains no service.
pub fn generate_file(input: &Path) -> Result<String, BuildError> {
    let source = fs::read_to_string(input).map_err(|cause| BuildError::file("read", input, cause))?;
    let path = || input.to_owned();
    let (stubs, services) =
        generate_counted(&source).map_err(|errors| BuildError::Invalid { path: path(), errors })?;
    if services == 0 {
        return Err(BuildError::NoService { path: path() });
    }
    Ok(stubs)
}

/// Writes the stubs for the services in a file to another file.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if `input` is invalid or contains no service.
pub fn generate_to(input: &Path, output: &Path) -> Result<(), BuildError> {
    let stubs = generate_file(input)?;
    if let (Ok(from), Ok(to)) = (fs::canonicalize(input), fs::canonicalize(output))
        && from == to
    {
        return Err(BuildError::OverInput { path: output.to_owned() });
    }
    fs::write(output, stubs).map_err(|cause| BuildError::file("write", output, cause))
}

/// Writes the stubs for the services in `input` to a file with the same name in `OUT_DIR`, and returns its path. A
/// `build.rs` calls this function. Cargo runs the script again when the input changes. The crate includes the file:
///
/// ```ignore
/// // build.rs
/// fn main() -> Result<(), trunkline_codegen::BuildError> {
///     trunkline_codegen::build("services/kv.rs").map(drop)
/// }
/// // src/lib.rs
/// include!(concat!(env!("OUT_DIR"), "/kv.rs"));
/// ```
///
/// # Errors
/// Same as [`generate_to`]. Also fails if `OUT_DIR` is not set.
pub fn build(input: impl AsRef<Path>) -> Result<PathBuf, BuildError> {
    let directory = env::var_os("OUT_DIR").ok_or(BuildError::NoOutDir)?;
    build_into(input, Path::new(&directory))
}

/// Like [`build`], but writes to `directory` instead of `OUT_DIR`.
///
/// # Errors
/// Same as [`generate_to`].
pub fn build_into(input: impl AsRef<Path>, directory: &Path) -> Result<PathBuf, BuildError> {
    let input = input.as_ref();
    println!("cargo::rerun-if-changed={}", input.display());
    let output = directory.join(input.file_name().unwrap_or_default());
    generate_to(input, &output)?;
    Ok(output)
}
