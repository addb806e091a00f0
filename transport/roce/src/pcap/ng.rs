//! pcapng files, which consist of sections that contain blocks. An interface is described before its packets.

use super::source::{Order, Source};
use super::{Frame, LinkType, PcapError};
use std::io::Read;

/// Type of a section header block, which is the same in both byte orders.
pub(super) const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const INTERFACE: u32 = 1;
const PACKET_OBSOLETE: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Length in bytes of the fields around a block's body, which are the type, the length, and the length again.
const FRAMING: u64 = 12;
/// Maximum number of interfaces in a section. A file with more is refused.
const INTERFACES_MAX: usize = 4096;

const OPTION_END: u16 = 0;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_OFFSET: u16 = 14;

#[derive(Debug, Clone, Copy)]
struct Interface {
    link: LinkType,
    snap_length: u32,
    /// Unit of time stamps. Bit 7 selects base 2 instead of 10, and bits 6:0 are the negated exponent, in seconds.
    resolution: u8,
    offset_seconds: u64,
}

/// State of the section being read.
#[derive(Debug)]
pub(super) struct Ng {
    order: Order,
    interfaces: Vec<Interface>,
}

/// The fields of a packet block that precede the packet's bytes.
struct PacketHead {
    interface: u32,
    ticks: Option<u64>,
    captured: usize,
    original_length: u32,
    /// Offset of the packet's bytes in the block's body.
    skip: usize,
}

impl Ng {
    /// Reads the first section header. The caller has read its type.
    pub(super) fn open<R: Read>(source: &mut Source<R>) -> Result<Self, PcapError> {
        let mut ng = Self { order: Order::Little, interfaces: Vec::new() };
        ng.section(source)?;
        Ok(ng)
    }

    /// Reads a section header after its type.
    fn section<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), PcapError> {
        let offset = source.offset();
        let inside = "a section header";
        let cut_off = PcapError::CutOff { offset, inside };
        let head: [u8; 8] = source.array(inside)?.ok_or(cut_off)?;
        let [length, magic] = [[head[0], head[1], head[2], head[3]], [head[4], head[5], head[6], head[7]]];
        self.order = match magic {
            [0x4d, 0x3c, 0x2b, 0x1a] => Order::Little,
            [0x1a, 0x2b, 0x3c, 0x4d] => Order::Big,
            _ => return Err(PcapError::Malformed { offset, what: "the byte-order magic is wrong" }),
        };
        self.interfaces.clear();
        let length = u64::from(self.order.u32(length));
        if length < FRAMING + 16 || !length.is_multiple_of(4) {
            return Err(PcapError::Malformed { offset, what: "a section header has a wrong length" });
        }
        // The type, the length and the magic have been read. Skip the rest of the block.
        source.skip(length - 12, inside)
    }

    /// Reads up to and including the next packet, whose block is stored in `buffer`.
    pub(super) fn next<'b, R: Read>(
        &mut self,
        source: &mut Source<R>,
        number: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<Frame<'b>>, PcapError> {
        loop {
            let offset = source.offset();
            let Some(kind) = source.array("the type of a block")? else { return Ok(None) };
            if kind == SECTION {
                self.section(source)?;
                continue;
            }
            let kind = self.order.u32(kind);
            let body = self.body_length(source, offset)?;
            match kind {
                INTERFACE => {
                    source.piece(body, "an interface description", buffer)?;
                    self.interface(offset, buffer)?;
                }
                ENHANCED_PACKET | SIMPLE_PACKET | PACKET_OBSOLETE => {
                    source.piece(body, "a packet block", buffer)?;
                    self.trailer(source, offset, body)?;
                    return self.packet(kind, offset, number, buffer).map(Some);
                }
                _ => source.skip(body, "a block")?,
            }
            self.trailer(source, offset, body)?;
        }
    }

    /// Reads a block's length, and returns the length of the block's body.
    fn body_length<R: Read>(&self, source: &mut Source<R>, offset: u64) -> Result<u64, PcapError> {
        let inside = "the length of a block";
        let cut_off = PcapError::CutOff { offset: source.offset(), inside };
        let length = u64::from(self.order.u32(source.array(inside)?.ok_or(cut_off)?));
        if length < FRAMING || !length.is_multiple_of(4) {
            return Err(PcapError::Malformed { offset, what: "a block has a wrong length" });
        }
        Ok(length - FRAMING)
    }

    /// Reads the length after a block's body. It must equal the length before the body.
    fn trailer<R: Read>(&self, source: &mut Source<R>, offset: u64, body: u64) -> Result<(), PcapError> {
        let inside = "the end of a block";
        let cut_off = PcapError::CutOff { offset: source.offset(), inside };
        let length = self.order.u32(source.array(inside)?.ok_or(cut_off)?);
        if u64::from(length) != body + FRAMING {
            return Err(PcapError::Malformed { offset, what: "a block's two lengths differ" });
        }
        Ok(())
    }

    fn interface(&mut self, offset: u64, body: &[u8]) -> Result<(), PcapError> {
        let short = PcapError::Malformed { offset, what: "an interface description is too short" };
        let link = self.order.u16_at(body, 0).map(LinkType);
        let (Some(link), Some(snap_length)) = (link, self.order.u32_at(body, 4)) else { return Err(short) };
        if self.interfaces.len() >= INTERFACES_MAX {
            return Err(PcapError::Malformed { offset, what: "a section has more than 4096 interfaces" });
        }
        let mut interface = Interface { link, snap_length, resolution: 6, offset_seconds: 0 };
        let mut options = body.get(8..).unwrap_or_default();
        while let (Some(code), Some(length)) = (self.order.u16_at(options, 0), self.order.u16_at(options, 2))
        {
            let Some(value) = options.get(4..4 + usize::from(length)) else { break };
            match (code, value) {
                (OPTION_END, _) => break,
                (OPTION_RESOLUTION, [resolution]) => interface.resolution = *resolution,
                (OPTION_OFFSET, value) => {
                    if let Ok(bytes) = <[u8; 8]>::try_from(value) {
                        interface.offset_seconds = self.u64(bytes);
                    }
                }
                _ => {}
            }
            options = options.get(4 + usize::from(length).next_multiple_of(4)..).unwrap_or_default();
        }
        self.interfaces.push(interface);
        Ok(())
    }

    const fn u64(&self, bytes: [u8; 8]) -> u64 {
        match self.order {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        }
    }

    fn packet<'b>(
        &self,
        kind: u32,
        offset: u64,
        number: u64,
        body: &'b [u8],
    ) -> Result<Frame<'b>, PcapError> {
        let malformed = |what| PcapError::Malformed { offset, what };
        let head = self.head(kind, body).ok_or_else(|| malformed("a packet block is too short"))?;
        let interface = usize::try_from(head.interface).ok().and_then(|index| self.interfaces.get(index));
        let interface =
            interface.ok_or_else(|| malformed("a packet names an interface that was not described"))?;
        let captured = match kind {
            SIMPLE_PACKET if interface.snap_length != 0 => {
                head.captured.min(usize::try_from(interface.snap_length).unwrap_or(usize::MAX))
            }
            _ => head.captured,
        };
        let bytes = body.get(head.skip..).and_then(|rest| rest.get(..captured));
        Ok(Frame {
            number,
            time_ns: head.ticks.map_or(0, |ticks| interface.nanoseconds(ticks)),
            link: interface.link,
            original_length: head.original_length,
            bytes: bytes.ok_or_else(|| malformed("a packet is longer than its block"))?,
        })
    }

    fn head(&self, kind: u32, body: &[u8]) -> Option<PacketHead> {
        let word = |at| self.order.u32_at(body, at);
        if kind == SIMPLE_PACKET {
            let original_length = word(0)?;
            // An interface without a snap length captures whole packets.
            let captured = usize::try_from(original_length).ok()?;
            return Some(PacketHead { interface: 0, ticks: None, captured, original_length, skip: 4 });
        }
        let interface = match kind {
            PACKET_OBSOLETE => u32::from(self.order.u16_at(body, 0)?),
            _ => word(0)?,
        };
        Some(PacketHead {
            interface,
            ticks: Some(u64::from(word(4)?) << 32 | u64::from(word(8)?)),
            captured: usize::try_from(word(12)?).ok()?,
            original_length: word(16)?,
            skip: 20,
        })
    }
}

impl Interface {
    /// Converts a time stamp to nanoseconds since 1970, saturating.
    fn nanoseconds(&self, ticks: u64) -> u64 {
        let scaled = u128::from(ticks) * 1_000_000_000;
        let exponent = u32::from(self.resolution & 0x7f);
        let since_offset = if self.resolution & 0x80 != 0 {
            scaled >> exponent
        } else {
            10_u128.checked_pow(exponent).map_or(0, |unit| scaled / unit)
        };
        let offset = u128::from(self.offset_seconds) * 1_000_000_000;
        u64::try_from(since_offset.saturating_add(offset)).unwrap_or(u64::MAX)
    }
}
