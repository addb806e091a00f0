//! Writes the datagrams of a link to a capture file.
//!
//! Records the datagrams that a link sends and receives, including those with a wrong ICRC or a forged
//! source. Several devices and processes can share the file. Each record is appended as a whole or not at
//! all, under a lock on the file, and an existing capture is continued. The first record that cannot be
//! written ends the capture for all links of the device; packets are not affected.
#![forbid(unsafe_code)]

use super::{CE, Datagram, ECT_0, Judge, ReceiveBatch, Verdict};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::geteuid;
use std::ffi::c_int;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trunkline_roce::pcap::PcapWriter;
use trunkline_roce::wire::{IpUdp, icrc};
use trunkline_verbs::descriptors::{HeldStdio, above_stdio};
use trunkline_verbs::{Clock, Counter, Time, headroom};

/// Number of first attempts to lock the file that are followed by a yield. Each of the next [`MOST_PAUSES`] attempts is
/// followed by a pause of one millisecond.
const YIELDS: u32 = 100;
const MOST_PAUSES: u32 = 200;
/// Permissions of a new capture file.
const PRIVATE: u32 = 0o600;

/// Writes the records of one link.
#[derive(Debug)]
pub(crate) struct Recorder {
    writer: PcapWriter<Appended>,
    /// Clock for the times of the records.
    clock: Clock,
    /// True after a link of the device could not write a record.
    has_ended: Arc<AtomicBool>,
    written: u64,
    lost: u64,
}

impl Recorder {
    /// Opens the file to append records, and creates it if it does not exist. The recorders of a device share
    /// `has_ended`, which is set when a record cannot be written.
    ///
    /// # Errors
    /// Returns errors of the file system, and `InvalidData` if the file exists and is not a capture that can be
    /// continued.
    pub(crate) fn open(path: &Path, clock: Clock, has_ended: Arc<AtomicBool>) -> io::Result<Self> {
        let writer = PcapWriter::appending(Appended(open_file(path)?));
        Ok(Self { writer, clock, has_ended, written: 0, lost: 0 })
    }

    /// Records sent datagrams with their identifications. The datagrams have DF set, as `IpUdp::new` assumes.
    pub(super) fn record_sent<'a>(&mut self, datagrams: impl Iterator<Item = (Datagram<'a>, u16)>) {
        let time_ns = now_ns(&self.clock);
        for (datagram, v4_identification) in datagrams {
            let headers = IpUdp { v4_identification, ..IpUdp::new(datagram.source, datagram.destination) };
            self.record(time_ns, &headers, ECT_0, datagram.bytes);
        }
    }

    /// Records the datagrams of a received batch.
    pub(super) fn record_batch(&mut self, batch: &ReceiveBatch) {
        if batch.is_empty() {
            return;
        }
        let time_ns = now_ns(&self.clock);
        for (datagram, origin) in batch.iter_with_origin() {
            self.record_received(time_ns, datagram, origin.is_marked);
        }
    }

    /// Records a received datagram that the link has dropped.
    fn record_dropped(&mut self, datagram: Datagram<'_>) {
        let time_ns = now_ns(&self.clock);
        self.record_received(time_ns, datagram, false);
    }

    /// Records a received datagram. The socket does not report the datagram's identification, so it is derived
    /// from the ICRC. Otherwise readers of the capture would find the ICRC of a foreign peer wrong. A datagram
    /// without a mark is recorded with the ECN bits that a software device sends.
    fn record_received(&mut self, time_ns: u64, datagram: Datagram<'_>, is_marked: bool) {
        let mut headers = IpUdp::new(datagram.source, datagram.destination);
        headers.v4_identification = icrc::solve_identification(&headers, datagram.bytes).unwrap_or(0);
        self.record(time_ns, &headers, if is_marked { CE } else { ECT_0 }, datagram.bytes);
    }

    fn record(&mut self, time_ns: u64, headers: &IpUdp, ecn: u8, bytes: &[u8]) {
        if self.has_ended.load(Ordering::Relaxed) {
            // Do not write later, shorter records that might fit, since readers would consider the capture complete.
            self.lost += 1;
            return;
        }
        match self.writer.write_with_ecn(time_ns, headers, ecn, bytes) {
            Ok(()) => self.written += 1,
            Err(error) => {
                self.lost += 1;
                if !self.has_ended.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        "capture file could not be written; no more datagrams are recorded"
                    );
                }
            }
        }
    }

    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        into.extend([
            Counter { name: "captured", value: self.written },
            Counter { name: "capture_lost", value: self.lost },
        ]);
    }
}

/// Judge of a link that also records the datagrams that the link drops.
pub(super) struct RecordingJudge<'a> {
    pub(super) judge: &'a mut dyn Judge,
    pub(super) recorder: &'a mut Recorder,
}

impl Judge for RecordingJudge<'_> {
    fn now(&self) -> Time {
        self.judge.now()
    }

    fn judge(&mut self, datagram: Datagram<'_>) -> Option<Verdict> {
        self.judge.judge(datagram)
    }

    fn dropped(&mut self, datagram: Datagram<'_>) {
        self.judge.dropped(datagram);
        self.recorder.record_dropped(datagram);
    }
}

/// A file to which each `write_all` appends either all bytes, with one system call, or none.
#[derive(Debug)]
struct Appended(File);

impl Write for Appended {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut file = &self.0;
        let _locked = Locked::take(file)?;
        may_append(file, bytes.len())?;
        loop {
            match file.write(bytes) {
                Ok(written) if written == bytes.len() => return Ok(()),
                // The disk is full. Remove the partial record, which readers would consider damage.
                Ok(written) => {
                    let end = file.stream_position()?;
                    file.set_len(end - written as u64)?;
                    let text = "there was room for a part of a record";
                    return Err(io::Error::new(ErrorKind::WriteZero, text));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Lock on a capture file, held while one record is written. It prevents other processes from appending between
/// the check for room and the write. The kernel truncates a write that crosses the process's limit on file
/// sizes, and ends the process with SIGXFSZ at the next attempt.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    /// Takes the lock, which other processes hold while they write one record. Returns without a lock if the
    /// file system does not support locks.
    ///
    /// # Errors
    /// Fails if another process holds the lock for longer than [`MOST_PAUSES`] milliseconds. Any user who can
    /// read the file can lock it, and the packets of this device must not wait for that user.
    fn take(file: &'a File) -> io::Result<Self> {
        let lock = whole_file(libc::F_WRLCK);
        let mut tries = 0;
        while let Err(Errno::EAGAIN | Errno::EACCES | Errno::EINTR) =
            fcntl(file, FcntlArg::F_OFD_SETLK(&lock))
        {
            match tries {
                0..YIELDS => std::thread::yield_now(),
                _ if tries < YIELDS + MOST_PAUSES => pause(),
                _ => {
                    let text = "another process keeps the file locked: it is stopped, or belongs to another user, who should not be able to read the file";
                    return Err(io::Error::new(ErrorKind::TimedOut, text));
                }
            }
            tries += 1;
        }
        Ok(Self(file))
    }
}

#[expect(clippy::disallowed_methods, reason = "the lock belongs to another process, which runs in real time")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _unlocked = fcntl(self.0, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)));
    }
}

/// Returns a lock on a whole file of any length.
fn whole_file(kind: c_int) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Opens a capture file to append to. A new file gets its name only after its header is written, so that two processes
/// that start simultaneously do not both write a header. Only its user may access it, since packets contain the data of
/// calls, and any user who can read the file can lock it.
fn open_file(path: &Path) -> io::Result<File> {
    let header = PcapWriter::new(Vec::new())?.into_inner();
    if !path.exists() {
        match write_then(path, &header, |fresh| fs::hard_link(fresh, path)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    continue_file(path, &header)
}

/// Checks that a device can open this capture file. A file that does not exist is not created.
///
/// # Errors
/// Returns the error that a device would return.
pub fn check_capture(path: &Path) -> io::Result<()> {
    let header = PcapWriter::new(Vec::new())?.into_inner();
    if path.exists() { continue_file(path, &header).map(drop) } else { write_then(path, &header, |_| Ok(())) }
}

/// Writes a new temporary file beside a capture file, calls `publish` with its path, and removes it.
fn write_then(path: &Path, header: &[u8], publish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let fresh = fresh_path(path);
    headroom::check_file(header.len() as u64)?;
    let held = HeldStdio::take()?;
    write_fresh(&fresh, header)?;
    drop(held);
    let published = publish(&fresh);
    fs::remove_file(&fresh)?;
    published
}

/// Opens an existing capture file to append to.
fn continue_file(path: &Path, header: &[u8]) -> io::Result<File> {
    let mut file = above_stdio(|| File::options().read(true).append(true).open(path))?;
    let found = file.metadata()?;
    if found.uid() != geteuid().as_raw() && is_open_to_all(path) {
        let text =
            "the file belongs to another user, in a folder that all users can write to; choose another name";
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    let mut start = vec![0; header.len()];
    // Do not read a pipe, since reading would wait for a writer.
    let is_ours = found.is_file() && file.read_exact(&mut start).is_ok() && start == header;
    if !is_ours {
        let text =
            "the file exists and is not a capture that can be continued; remove it or choose another name";
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    Ok(file)
}

/// Returns the name of the temporary file for a capture that this thread creates.
fn fresh_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}-{:?}", std::process::id(), std::thread::current().id()));
    path.with_file_name(name)
}

/// Writes a new file. Never writes to an existing file or link with this name. A dead process may have left it,
/// or another user may have guessed the name.
fn write_fresh(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let create = || File::options().write(true).create_new(true).mode(PRIVATE).open(path);
    let mut file = match create() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create()?
        }
        created => created?,
    };
    // Set the permissions regardless of the umask, so that the user can continue the capture.
    file.set_permissions(Permissions::from_mode(PRIVATE))?;
    file.write_all(bytes)
}

/// Returns true if all users can create files in the folder of this file.
fn is_open_to_all(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::metadata(folder).is_ok_and(|folder| folder.mode() & 0o002 != 0)
}

/// Fails if the process's limit on file sizes does not leave room for a record.
fn may_append(file: &File, bytes: usize) -> io::Result<()> {
    headroom::check_file(u64::MAX).or_else(|_limited| {
        let length = file.metadata()?.len();
        Ok(headroom::check_file(length + bytes as u64)?)
    })
}

/// Returns the time since the Unix epoch, in nanoseconds. A simulation's clock starts at the epoch.
#[expect(clippy::disallowed_methods, reason = "a simulation has its own calendar")]
fn now_ns(clock: &Clock) -> u64 {
    if let Some(clock) = clock.as_virtual() {
        return clock.now().0;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Hub, Link, LinkError, Origin, SendBatch, Tap};
    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::stat::Mode;
    use nix::unistd::{Uid, chown, mkfifo};
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::BorrowedFd;
    use std::sync::{Barrier, mpsc};
    use trunkline_roce::pcap::{Datagram as Captured, PcapReader};
    use trunkline_testkit::Folder;
    use trunkline_testkit::{on_small_file_system, run, runs_alone, same_test};

    /// Path of a capture, and the folder that contains it.
    struct Scratch(PathBuf, #[expect(dead_code, reason = "it is removed when dropped")] Folder);

    impl Scratch {
        fn new() -> Self {
            let folder = Folder::new().unwrap();
            Self(folder.join("capture.pcap"), folder)
        }
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 0, 0, last]), super::super::ROCE_PORT)
    }

    #[test]
    fn sent_and_received_datagrams_are_recorded_with_good_icrc_and_marks() {
        let scratch = Scratch::new();
        let hub = Hub::new();
        let open = |last| {
            let mut link = open_captured(Box::new(hub.link().unwrap()), &scratch.0);
            link.wire.link.open(address(last).ip()).unwrap();
            link
        };
        let (mut a, mut b) = (open(1), open(2));
        let headers = IpUdp::new(address(1), address(2));
        // An acknowledgement, the shortest packet: BTH and AETH.
        let mut packet = vec![0x11, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0x1f, 0, 0, 0];
        icrc::append(&headers, &mut packet);
        let mut batch = SendBatch::new();
        for _ in 0..3 {
            batch.push(Datagram { source: address(1), destination: address(2), bytes: &packet });
        }
        a.send(&mut batch, Time(0));
        let mut got = ReceiveBatch::new(8);
        assert_eq!(b.receive(&mut got), 3);
        got.clear();
        let marked = Origin { is_marked: true, ..Origin::default() };
        got.push_from(Datagram { source: address(1), destination: address(2), bytes: &packet }, marked);
        b.wire.recorder.as_mut().unwrap().record_batch(&got);
        let mut reader = PcapReader::new(File::open(&scratch.0).unwrap()).unwrap();
        for ecn in [[ECT_0; 6].as_slice(), &[CE]].concat() {
            let frame = reader.next_frame().unwrap().expect("seven records");
            assert_eq!(frame.bytes[15], ecn, "the byte of ECN behind the header of Ethernet");
            let datagram = Captured::from_frame(&frame).unwrap();
            assert_eq!(datagram, Captured { headers, payload: &packet });
            assert!(icrc::check(&datagram.headers, datagram.payload));
        }
        assert!(reader.next_frame().unwrap().is_none());
    }

    #[test]
    fn identification_of_foreign_peer_is_recorded() {
        let scratch = Scratch::new();
        let hub = Hub::new();
        let mut foreign = hub.link().unwrap();
        foreign.open(address(1).ip()).unwrap();
        let mut link = open_captured(Box::new(hub.link().unwrap()), &scratch.0);
        link.wire.link.open(address(2).ip()).unwrap();
        let headers = IpUdp { v4_identification: 0x8d29, ..IpUdp::new(address(1), address(2)) };
        let mut packet = vec![0x11, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0x1f, 0, 0, 0];
        icrc::append(&headers, &mut packet);
        let mut batch = SendBatch::new();
        batch.push(Datagram { source: address(1), destination: address(2), bytes: &packet });
        foreign.send(&mut batch, Time(0));
        assert_eq!(link.receive(&mut ReceiveBatch::new(8)), 1);
        let mut reader = PcapReader::new(File::open(&scratch.0).unwrap()).unwrap();
        let frame = reader.next_frame().unwrap().expect("a record");
        assert_eq!(Captured::from_frame(&frame).unwrap(), Captured { headers, payload: &packet });
    }

    #[test]
    fn datagrams_dropped_on_receipt_are_captured() {
        let scratch = Scratch::new();
        let mut link = open_captured(Box::new(Full { room: 0 }), &scratch.0);
        link.receive_judged(&mut ReceiveBatch::new(8), &mut Refusing);
        let mut reader = PcapReader::new(File::open(&scratch.0).unwrap()).unwrap();
        let frame = reader.next_frame().unwrap().expect("a record");
        assert_eq!(Captured::from_frame(&frame).unwrap().payload, b"forged one");
        assert!(reader.next_frame().unwrap().is_none());
    }

    #[test]
    fn links_stop_capturing_after_oversized_record() {
        let scratch = Scratch::new();
        let has_ended = Arc::default();
        let open = || {
            let inner: Box<dyn Link> = Box::new(Full { room: 9 });
            let recorder = Recorder::open(&scratch.0, Clock::default(), Arc::clone(&has_ended)).unwrap();
            recorded(inner, recorder)
        };
        let (mut link, mut other) = (open(), open());
        record(&mut link, &[0; 70_000]);
        // The capture has ended, so a second line is not logged.
        for link in [&mut link, &mut other] {
            record(link, &[1]);
            record(link, &[2]);
        }
        let counts = |link: &Tap| (recorder(link).written, recorder(link).lost);
        assert_eq!((counts(&link), counts(&other)), ((0, 3), (0, 2)));
    }

    /// Each link stands for a process, since it opens the file separately.
    #[test]
    fn concurrent_links_at_file_size_limit_leave_whole_records() {
        if !runs_alone(module_path!(), "concurrent_links_at_file_size_limit_leave_whole_records") {
            return;
        }
        setrlimit(Resource::RLIMIT_FSIZE, 8 << 10, 8 << 10).unwrap();
        for _ in 0..200 {
            let scratch = Scratch::new();
            let mut links = [(); 2].map(|()| open_captured(Box::new(Full { room: 1 }), &scratch.0));
            let start = Barrier::new(links.len());
            #[expect(clippy::disallowed_methods, reason = "real threads")]
            std::thread::scope(|scope| {
                for link in &mut links {
                    scope.spawn(|| {
                        start.wait();
                        while recorder(link).lost == 0 {
                            record(link, &[0; 300]);
                        }
                    });
                }
            });
            let written = links.iter().map(|link| recorder(link).written).sum::<u64>();
            assert_eq!(count_records(&scratch.0), written);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the lock of a real thread is tested")]
    fn lock_of_reader_ends_capture_without_delaying_packets() {
        let scratch = Scratch::new();
        let mut link = open_captured(Box::new(Full { room: 1 }), &scratch.0);
        record(&mut link, &[1]);
        // Any user who can read the file can do this.
        let reader = File::open(&scratch.0).unwrap();
        fcntl(&reader, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))).unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            record(&mut link, &[2]);
            record(&mut link, &[3]);
            sender.send((recorder(&link).written, recorder(&link).lost)).unwrap();
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok((1, 2)));
        assert_eq!(count_records(&scratch.0), 1);
    }

    #[test]
    fn full_disk_ends_capture_with_whole_record() {
        const PATH: &str = "TRUNKLINE_TEST_CAPTURE";
        const TEST: &str = "full_disk_ends_capture_with_whole_record";
        if let Some(path) = std::env::var_os(PATH) {
            let mut link = open_captured(Box::new(Full { room: 1 }), Path::new(&path));
            while recorder(&link).lost == 0 {
                record(&mut link, &[0; 3000]);
            }
            assert_eq!(count_records(Path::new(&path)), recorder(&link).written);
            return;
        }
        let scratch = Scratch::new();
        let test = same_test(module_path!(), TEST);
        let Some(mut again) = on_small_file_system(scratch.0.parent().unwrap(), 64, &test) else {
            println!("skipped: this process may not mount a file system");
            return;
        };
        let output = run(again.env(PATH, &scratch.0), &[]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }

    fn open_captured(link: Box<dyn Link>, path: &Path) -> Tap {
        let recorder = Recorder::open(path, Clock::default(), Arc::default()).unwrap();
        recorded(link, recorder)
    }

    fn recorded(link: Box<dyn Link>, recorder: Recorder) -> Tap {
        let mut tap = Tap::new(link);
        tap.wire.recorder = Some(recorder);
        tap
    }

    fn recorder(tap: &Tap) -> &Recorder {
        tap.wire.recorder.as_ref().unwrap()
    }

    fn record(link: &mut Tap, bytes: &[u8]) {
        let mut batch = SendBatch::new();
        batch.push(Datagram { source: address(1), destination: address(2), bytes });
        link.send(&mut batch, Time(0));
    }

    fn count_records(path: &Path) -> u64 {
        let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
        let mut count = 0;
        while reader.next_frame().unwrap().is_some() {
            count += 1;
        }
        count
    }

    /// Judges the ICRCs of all datagrams as wrong.
    struct Refusing;

    impl Judge for Refusing {
        fn now(&self) -> Time {
            Time(0)
        }
        fn judge(&mut self, _datagram: Datagram<'_>) -> Option<Verdict> {
            None
        }
    }

    #[test]
    fn non_capture_file_is_refused_unchanged() {
        let scratch = Scratch::new();
        fs::write(&scratch.0, b"another file's notes, longer than the header of a capture").unwrap();
        let error = Recorder::open(&scratch.0, Clock::default(), Arc::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(fs::read(&scratch.0).unwrap().starts_with(b"another file's notes"));
    }

    #[test]
    fn new_capture_is_private_and_does_not_follow_link() {
        let scratch = Scratch::new();
        let folder = scratch.0.parent().unwrap();
        let notes = folder.join("notes");
        fs::write(&notes, b"precious").unwrap();
        // Another user can guess the name.
        std::os::unix::fs::symlink(&notes, fresh_path(&scratch.0)).unwrap();
        let mut link = open_captured(Box::new(Full { room: 1 }), &scratch.0);
        record(&mut link, &[1]);
        assert_eq!(fs::read(&notes).unwrap(), b"precious");
        assert_eq!(count_records(&scratch.0), 1);
        assert_eq!(fs::metadata(&scratch.0).unwrap().mode() & 0o777, 0o600);
        assert!(!fresh_path(&scratch.0).exists());
    }

    #[test]
    fn pipe_is_refused_without_waiting() {
        let scratch = Scratch::new();
        mkfifo(&scratch.0, Mode::S_IRWXU).unwrap();
        assert_eq!(open_file(&scratch.0).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn capture_file_of_another_user_in_sticky_directory_is_refused() {
        let scratch = Scratch::new();
        drop(open_file(&scratch.0).unwrap());
        if chown(&scratch.0, Some(Uid::from_raw(65534)), None).is_err() {
            println!("skipped: this process may not give a file to another user");
            return;
        }
        let folder = scratch.0.parent().unwrap();
        assert!(open_file(&scratch.0).is_ok(), "nobody else could make it here");
        fs::set_permissions(folder, Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(open_file(&scratch.0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn datagram_left_in_batch_is_captured_once() {
        let scratch = Scratch::new();
        let mut link = open_captured(Box::new(Full { room: 1 }), &scratch.0);
        let mut batch = SendBatch::new();
        for number in 0..3u8 {
            batch.push(Datagram { source: address(1), destination: address(2), bytes: &[number] });
        }
        while !batch.is_empty() {
            link.send(&mut batch, Time(0));
        }
        let mut counters = Vec::new();
        link.counters(&mut counters);
        assert_eq!(counters[0], Counter { name: "captured", value: 3 });
    }

    /// A link that accepts only some datagrams in each call, and receives a forged one.
    #[derive(Debug)]
    struct Full {
        room: usize,
    }

    impl Link for Full {
        fn name(&self) -> &'static str {
            "full"
        }
        fn open(&mut self, _address: IpAddr) -> Result<(), LinkError> {
            Ok(())
        }
        fn close(&mut self, _address: IpAddr) {}
        fn mtu(&self, _address: IpAddr) -> Result<u32, LinkError> {
            Ok(1500)
        }
        fn send(&mut self, batch: &mut SendBatch, _now: Time) {
            batch.remove_first(self.room);
        }
        fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
            batch.clear();
            0
        }
        fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
            let datagram = |bytes| Datagram { source: address(1), destination: address(2), bytes };
            judge.dropped(datagram(b"forged one"));
            self.receive(batch)
        }
        fn arm(&mut self) -> bool {
            false
        }
        fn fds(&self) -> Vec<BorrowedFd<'_>> {
            Vec::new()
        }
        fn counters(&self, _into: &mut Vec<Counter>) {}
    }
}
