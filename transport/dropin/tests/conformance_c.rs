//! One test for each item of the XRC contract that requires the C interface.
//!
//! The C program is compiled with libibverbs' headers and linked with this crate. If there is no C compiler or the headers
//! are missing, the tests are skipped with a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use trunkline_testkit::{Folder, Process, fresh_ip};

/// Time limit of an item. It allows for a loaded machine.
const BOUND: Duration = Duration::from_secs(60);
/// Prefix of librdmacm's functions within this crate.
const INNER: &str = "trunkline_";

/// Returns the program's path, or the reason why it could not be built.
fn program() -> &'static Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/conformance.c");
        let library = library();
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (fresh, program) =
            (directory.join(std::process::id().to_string()), directory.join("conformance_c"));
        let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(&fresh)
            .arg(source)
            .args(renamed())
            .arg(library)
            .args(["-lpthread", "-ldl", "-lm"])
            .output()
            .map_err(|error| format!("no C compiler: {error}"))?;
        let output_text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            // Another test run may still be using the previous program.
            fs::rename(&fresh, &program).expect("the program can be renamed");
            Ok(program)
        } else if output_text.contains("infiniband/verbs.h: No such file")
            || output_text.contains("rdma/rdma_cma.h: No such file")
        {
            Err("the headers of libibverbs or librdmacm are not installed".to_owned())
        } else {
            panic!("the C program does not compile:\n{output_text}");
        }
    })
}

/// Returns the newest static library, which cargo has built together with this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let directory = own.parent().expect("the path has a directory");
    let libraries = fs::read_dir(directory).expect("the directory can be read").flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libtrunkline_dropin-") && name.ends_with(".a")
    });
    let newest = libraries.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo builds the static library next to the test").path()
}

fn renamed() -> Vec<String> {
    let exports = include_str!("../exports/librdmacm.map");
    let names = exports.split_whitespace().map(|word| word.trim_end_matches(';'));
    let functions = names.filter(|name| name.starts_with("rdma_"));
    functions.map(|name| format!("-D{name}={INNER}{name}")).collect()
}

fn asks(item: &str) {
    let program = match program() {
        Ok(program) => program,
        Err(why) => {
            println!("SKIPPED {item}: {why}");
            return;
        }
    };
    let runtime = Folder::new().expect("a directory for the processes");
    let mut command = Command::new(program);
    command
        .arg(item)
        .env("TRUNKLINE_RUNTIME_DIR", runtime.path())
        .env("TRUNKLINE_ADDRESS", fresh_ip().to_string())
        .env("TRUNKLINE_XRC", if item == "a9" { "off" } else { "on" });
    let mut process = Process::start(item, &mut command).expect("the program starts").with_bound(BOUND);
    assert_eq!(process.line().expect("its verdict"), "held", "{item}");
    process.finish().expect("it ends well");
}

macro_rules! items {
    ($($id:ident)*) => { $(
        #[test]
        fn $id() {
            asks(stringify!($id));
        }
    )* };
}

items! {
    a5 a7 a8 a9 a13 a14 a15
    c1 c4 c5 c10 c11 c13
    d1 d2 d6 d7
    e1 f6 h1 h5 h6
    j2
    k1 k4
}
