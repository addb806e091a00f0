//! Check of one capture file.

use super::output::Output;
use super::progress::Progress;
use super::{FileSummary, PacketReport};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use trunkline_roce::pcap::{Datagram, PcapError, PcapReader, RoceFilter};
use trunkline_transport::open_without_waiting;

/// Number of frames between two readings of the clock.
const FRAMES_PER_TICK: u64 = 1024;

/// Reason why the check of a file ended early.
enum Stop {
    /// The file is malformed.
    File(PcapError),
    /// The output failed, which ends the program.
    Output(io::Error),
}

impl From<PcapError> for Stop {
    fn from(error: PcapError) -> Self {
        Self::File(error)
    }
}

/// Prints and checks each packet. The outer error is a failed output; the inner error is an unreadable file. If the file
/// is malformed, the summary contains the error.
pub(super) fn check<W: Write>(
    path: &Path,
    output: &mut Output<W>,
    progress: &Progress,
) -> io::Result<io::Result<FileSummary>> {
    let name = path.display().to_string();
    let mut summary = FileSummary::new(name.clone());
    let outcome = match open(path) {
        Ok((input, length)) => {
            let input = BufReader::with_capacity(1 << 16, progress.watch(input, &name, length));
            check_input(input, &mut summary, output, progress)
        }
        Err(error) => Err(Stop::File(error.into())),
    };
    match outcome {
        Ok(()) => {}
        Err(Stop::File(PcapError::Io(error))) => return Ok(Err(error)),
        Err(Stop::File(error)) => summary.error = Some(error.to_string()),
        Err(Stop::Output(error)) => return Err(error),
    }
    Ok(Ok(summary))
}

/// Opens a file and returns its length. `-` opens standard input, whose length is unknown.
fn open(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = open_without_waiting(path)?;
    let found = file.metadata()?;
    if found.file_type().is_fifo() {
        return Err(io::Error::other("a FIFO: pass it as standard input, with `-` as the file"));
    }
    let length = found.len();
    Ok((Box::new(file), Some(length)))
}

fn check_input<R: Read, W: Write>(
    input: R,
    summary: &mut FileSummary,
    output: &mut Output<W>,
    progress: &Progress,
) -> Result<(), Stop> {
    let mut reader = PcapReader::new(input)?;
    let mut filter = RoceFilter::default();
    let mut start_ns = None;
    while let Some(frame) = reader.next_frame()? {
        summary.frames += 1;
        if summary.frames.is_multiple_of(FRAMES_PER_TICK) {
            progress.tick();
        }
        let start_ns = *start_ns.get_or_insert(frame.time_ns);
        match Datagram::from_frame(&frame) {
            Ok(datagram) if filter.takes(&datagram) => {
                let packet = PacketReport::new(&frame, &datagram, start_ns);
                summary.packets += 1;
                summary.faulty += u64::from(!packet.faults.is_empty());
                output.packet(&summary.file, &packet).map_err(Stop::Output)?;
            }
            Ok(_) => summary.other_udp += 1,
            Err(skip) => summary.skip(skip),
        }
    }
    Ok(())
}
