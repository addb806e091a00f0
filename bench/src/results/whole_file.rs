//! Atomic replacement of files, and the last line of output, which lists the written files.

use crate::meter::failure::Failure;
use nix::unistd::AccessFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;
use trunkline_testkit::output;

/// Checks that [`write()`] can write these files. Called before a measurement. Existing files are not changed.
///
/// # Errors
/// Returns an error with the first file that cannot be written, and the reason.
pub(crate) fn check<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), String> {
    paths.into_iter().try_for_each(|path| tried(path).map_err(|error| named(path, &error)))
}

fn tried(path: &Path) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&target) {
        Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        // Opening a pipe would wait for a reader.
        Ok(there) if !there.is_file() => return Ok(nix::unistd::access(&target, AccessFlags::W_OK)?),
        _ => {}
    }
    let partial = partial(&target);
    File::create(&partial)?;
    fs::remove_file(&partial)
}

/// Returns the temporary path that is used while a file is written.
fn partial(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    PathBuf::from(name)
}

/// Writes a file. An existing regular file is replaced when the new file is complete. A file of another kind, such as a
/// terminal or a pipe, is written directly. Symbolic links are followed.
///
/// # Errors
/// Returns an error with the name of the file and the reason.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<(), String> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        let written =
            OpenOptions::new().write(true).open(&target).and_then(|mut there| there.write_all(contents));
        return written.map_err(|error| named(path, &error));
    }
    let partial = partial(&target);
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, &target));
    written.map_err(|error| {
        let _absent = fs::remove_file(&partial);
        named(path, &error)
    })
}

/// Writes indented JSON like [`write()`].
///
/// # Errors
/// See [`write()`].
pub(crate) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), String> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| named(path, &error.into()))?;
    text.push(b'\n');
    write(path, &text)
}

fn named(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// Prints the last line of a successful run, unless output is quiet. The line contains short results, the elapsed time
/// and the written files.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn sum_up<'a>(
    is_quiet: bool,
    what: &str,
    began: Instant,
    written: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Failure> {
    if is_quiet {
        return Ok(());
    }
    let files = written.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let files = if files.is_empty() { files } else { format!("; wrote {files}") };
    Ok(output::out(&format!("{what}; took {:.1} s{files}", began.elapsed().as_secs_f64()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_testkit::Folder;

    #[test]
    fn file_is_replaced_without_leftovers() {
        let folder = Folder::new().unwrap();
        let path = folder.join("out.json");
        for contents in [b"one".as_slice(), b"two"] {
            write(&path, contents).unwrap();
            assert_eq!(fs::read(&path).unwrap(), contents);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"three").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"three");
        let pipe = folder.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe)
        });
        write(&pipe, b"four").unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b"four");
        assert!(!fs::metadata(&pipe).unwrap().is_file());
        let error = write(&folder.join("none/out.json"), b"").unwrap_err();
        assert!(error.contains("cannot write") && error.contains("none/out.json"), "{error}");
    }

    #[test]
    fn check_fails_like_write_without_changes() {
        let folder = Folder::new().unwrap();
        let (old, new) = (folder.join("old.json"), folder.join("new.json"));
        fs::write(&old, b"before").unwrap();
        check([&old, &new]).unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let pipe = folder.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        check([&pipe]).unwrap();
        for (path, why) in [
            (folder.join("none/out.json"), "No such file"),
            (folder.path().to_owned(), "is a directory"),
            (folder.join("old.json/out.html"), "Not a directory"),
        ] {
            let error = check([&old, &path]).unwrap_err();
            assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
        }
    }
}
