//! Files that are replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Writes a file. One that is there already stays as it is until the new one is complete. What is there and is no file, such as
/// a terminal or a pipe, is written to; a symbolic link stays one.
///
/// # Errors
/// Why that is not possible, with the file's name.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<(), String> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&target).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        let written =
            OpenOptions::new().write(true).open(&target).and_then(|mut there| there.write_all(contents));
        return written.map_err(|error| named(path, &error));
    }
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let partial = PathBuf::from(name);
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(contents).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, &target));
    written.map_err(|error| {
        let _absent = fs::remove_file(&partial);
        named(path, &error)
    })
}

/// Writes JSON in the same way, over several lines.
///
/// # Errors
/// Those of [`write()`].
pub(crate) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), String> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| named(path, &error.into()))?;
    text.push(b'\n');
    write(path, &text)
}

fn named(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_testkit::Folder;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
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
}
