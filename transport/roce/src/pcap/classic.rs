//! Classic pcap files, which consist of a file header of 24 bytes and records.

use super::source::{Order, Source};
use super::{Frame, LinkType, PcapError};
use std::io::Read;

/// Magic numbers in the byte order of the writer.
const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;

/// The fields of the file header that the reader uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Classic {
    order: Order,
    link: LinkType,
    /// Nanoseconds per unit of a time stamp's fraction, 1,000 or 1.
    fraction_ns: u64,
}

impl Classic {
    /// Returns the byte order and the time stamp's unit in nanoseconds if these four bytes start a pcap file.
    pub(super) fn recognise(magic: [u8; 4]) -> Option<(Order, u64)> {
        [Order::Little, Order::Big].into_iter().find_map(|order| match order.u32(magic) {
            MAGIC_US => Some((order, 1000)),
            MAGIC_NS => Some((order, 1)),
            _ => None,
        })
    }

    pub(super) fn open<R: Read>(
        (order, fraction_ns): (Order, u64),
        source: &mut Source<R>,
    ) -> Result<Self, PcapError> {
        let inside = "the file header";
        let cut_off = PcapError::CutOff { offset: source.offset(), inside };
        let header: [u8; 20] = source.array(inside)?.ok_or(cut_off)?;
        if order.u16([header[0], header[1]]) != 2 {
            return Err(PcapError::Malformed { offset: 4, what: "the pcap version is not 2" });
        }
        // The upper half describes frame check sequences, which the device's captures do not contain.
        let link = order.u32([header[16], header[17], header[18], header[19]]) & 0xffff;
        let link = LinkType(u16::try_from(link).unwrap_or(u16::MAX));
        Ok(Self { order, link, fraction_ns })
    }

    pub(super) fn next<'b, R: Read>(
        &self,
        source: &mut Source<R>,
        number: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<Frame<'b>>, PcapError> {
        let Some(header) = source.array::<16>("the header of a record")? else { return Ok(None) };
        let [seconds, fraction, captured, original_length] = [0, 4, 8, 12]
            .map(|at| self.order.u32([header[at], header[at + 1], header[at + 2], header[at + 3]]));
        source.piece(u64::from(captured), "a record", buffer)?;
        let fraction_ns = u64::from(fraction) * self.fraction_ns;
        let time_ns = u64::from(seconds) * 1_000_000_000 + fraction_ns;
        Ok(Some(Frame { number, time_ns, link: self.link, original_length, bytes: buffer }))
    }
}
