//! Items of the XRC contract that only the C interface can be asked, one test for each.
//!
//! The program in C is compiled against the headers of libibverbs and linked with this crate. Where
//! there is no C compiler, or no headers, the tests say so and are skipped.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than any item takes on a loaded machine.
const BOUND: Duration = Duration::from_secs(60);
/// The functions of librdmacm have other names inside of this crate.
const INNER: &str = "trunkline_";

/// The program, or why there is none.
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
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            // Another run may be using the one from before.
            fs::rename(&fresh, &program).expect("the program takes its name");
            Ok(program)
        } else if said.contains("infiniband/verbs.h: No such file")
            || said.contains("rdma/rdma_cma.h: No such file")
        {
            Err("the headers of libibverbs or librdmacm are not installed".to_owned())
        } else {
            panic!("the program in C does not compile:\n{said}");
        }
    })
}

/// The static library that cargo built together with this test: the newest one.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    let directory = own.parent().expect("and a directory");
    let libraries = fs::read_dir(directory).expect("which can be read").flatten().filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libtrunkline_dropin-") && name.ends_with(".a")
    });
    let newest = libraries.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("cargo builds the static library beside the test").path()
}

fn renamed() -> Vec<String> {
    let exports = include_str!("../exports/librdmacm.map");
    let names = exports.split_whitespace().map(|word| word.trim_end_matches(';'));
    let functions = names.filter(|name| name.starts_with("rdma_"));
    functions.map(|name| format!("-D{name}={INNER}{name}")).collect()
}

/// An address that no other test has.
fn address() -> String {
    let [a, b, c, ..] = RandomState::new().hash_one(Instant::now()).to_le_bytes();
    format!("127.{}.{b}.{}", a | 0x40, c.clamp(1, 254))
}

/// Where the processes of one item meet; goes with it.
struct Meeting(PathBuf);

impl Meeting {
    fn new(item: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trunkline-c{}-{item}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).expect("a directory for the processes");
        Self(path)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn asks(item: &str) {
    let program = match program() {
        Ok(program) => program,
        Err(why) => {
            println!("SKIPPED {item}: {why}");
            return;
        }
    };
    let meeting = Meeting::new(item);
    let mut child = Command::new(program)
        .env("TRUNKLINE_RUNTIME_DIR", &meeting.0)
        .arg(item)
        .env("TRUNKLINE_ADDRESS", address())
        .env("TRUNKLINE_XRC", if item == "a9" { "off" } else { "on" })
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let until = Instant::now() + BOUND;
    let status = loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            break status;
        }
        if Instant::now() > until {
            let _ended = child.kill();
            let _status = child.wait();
            panic!("{item} still runs after {BOUND:?}");
        }
        sleep(Duration::from_millis(2));
    };
    let mut said = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(status.success() && said == "held\n", "{item}: {status}: {said}");
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
