//! A peer for librdmacm's programs `rdma_client`, `rdma_server` and `rping`.

use super::link::{Area, Link};
use super::pattern::pattern;
use super::protocol::Purpose;
use super::report::Report;
use super::station::Station;
use crate::check::{Deviation, Verdict, check, equal};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_verbs::{
    CmEventKind, CmId, CompletionOpcode, ConnectParameters, IoAddress, RemoteAddress, Rkey, SendOperation,
};

/// Size of the messages from `rdma_client` and `rdma_server`, and of `rping`'s memory announcements, in bytes.
const MESSAGE: usize = 16;
/// Sizes of the READs and WRITEs that `rping` requests, in bytes.
const PING_SIZES: [usize; 5] = [64, 1023, 1025, 4097, 65_535];

/// Connects to an `rdma_server`, and exchanges one message in each direction.
pub(super) fn rdma_client(station: &Station, server: SocketAddr) -> Verdict {
    let mut link = dial(station, server)?;
    link.memory.write(Area::Source.offset(), b"hello from here\0")?;
    link.do_one(SendOperation::Send, Area::Source.offset(), MESSAGE)?;
    link.finish()?;
    message(&mut link)?;
    // The program may or may not send a DREQ before it exits.
    link.id.disconnect()?;
    station.disconnected(link.id.number())?;
    link.close()
}

/// Accepts a connection from an `rdma_client`, and exchanges one message in each direction.
pub(super) fn rdma_server(station: &Station, port: u16, report: &mut Report<'_>) -> Verdict {
    let mut link = accept(station, port, report)?;
    message(&mut link)?;
    link.memory.write(Area::Source.offset(), b"hello from there")?;
    link.do_one(SendOperation::Send, Area::Source.offset(), MESSAGE)?;
    link.finish()?;
    station.disconnected(link.id.number())?;
    link.close()
}

/// Announces memory to an `rping -s`, which READs the memory and then WRITEs the same bytes back.
pub(super) fn rping_client(station: &Station, server: SocketAddr, report: &mut Report<'_>) -> Verdict {
    let mut link = dial(station, server)?;
    for (round, size) in PING_SIZES.into_iter().enumerate() {
        // `rping` reads a C string, so it writes back only the bytes before the first zero.
        let letters = (b'A'..=b'Z').cycle().skip(round).take(size - 1);
        let text = letters.chain([0]).collect::<Vec<_>>();
        link.memory.write(Area::Offer.offset(), &text)?;
        for area in [Area::Offer, Area::Sink] {
            let place = link.own(area.offset());
            let mut offer = place.address.0.to_be_bytes().to_vec();
            offer.extend(place.rkey.0.to_be_bytes());
            offer.extend(u32::try_from(size).expect("small").to_be_bytes());
            link.memory.write(Area::Source.offset(), &offer)?;
            link.do_one(SendOperation::Send, Area::Source.offset(), MESSAGE)?;
            link.finish()?;
            // The server sends a message when it has finished.
            message(&mut link)?;
        }
        let mut back = vec![0; size];
        link.memory.read(Area::Sink.offset(), &mut back)?;
        let wrong = back.iter().zip(&text).filter(|(found, sent)| found != sent).count();
        report.count(size, wrong as u64);
        check(wrong == 0, || format!("{wrong} of {size} bytes were written back wrong"))?;
    }
    link.id.disconnect()?;
    station.disconnected(link.id.number())?;
    link.close()
}

/// Serves an `rping -c`. READs the memory that `rping` announces, and WRITEs the same bytes to the next announced
/// memory.
pub(super) fn rping_server(station: &Station, port: u16, report: &mut Report<'_>) -> Verdict {
    let mut link = accept(station, port, report)?;
    let mut rounds = 0;
    while let Some((source, size)) = named(station, &mut link)? {
        link.do_one(SendOperation::RdmaRead(source), Area::Landing.offset(), size)?;
        link.finish()?;
        go_on(&mut link)?;
        let Some((sink, again)) = named(station, &mut link)? else {
            return Err(Deviation::Failed("the client disconnected after a READ".into()));
        };
        equal("the size of the second announcement", again, size)?;
        link.do_one(SendOperation::RdmaWrite(sink), Area::Landing.offset(), size)?;
        link.finish()?;
        go_on(&mut link)?;
        report.count(2 * size, 0);
        rounds += 1;
    }
    check(rounds > 0, || "the client disconnected before the first READ".into())?;
    link.close()
}

/// Returns the memory that the client announces next, or `None` if the client disconnects.
fn named(station: &Station, link: &mut Link) -> Verdict<Option<(RemoteAddress, usize)>> {
    let mut deadline = super::station::Deadline::new();
    loop {
        match station.event_now().map(|event| event.kind) {
            Some(CmEventKind::Disconnected { .. }) => return Ok(None),
            Some(CmEventKind::Established) | None => {}
            Some(kind) => return Err(Deviation::Failed(format!("{kind:?} in the middle of the exchange"))),
        }
        // When the connection ends, receives are flushed. An event reports the end too.
        let _ = link.pump();
        if let Some(arrival) = link.arrival_now() {
            equal("size of a message", arrival.length, MESSAGE)?;
            let bytes: [u8; MESSAGE] = link.bytes_of(arrival)?;
            link.release(arrival)?;
            let number = |range: std::ops::Range<usize>| {
                bytes[range].iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
            };
            let size = usize::try_from(number(12..16)).unwrap_or(usize::MAX);
            check(size <= super::link::LARGEST, || format!("the client offers {size} bytes"))?;
            let rkey = Rkey(u32::try_from(number(8..12)).expect("four bytes"));
            return Ok(Some((RemoteAddress { address: IoAddress(number(0..8)), rkey }, size)));
        }
        deadline.wait(|| "the client announced no memory".into())?;
    }
}

fn go_on(link: &mut Link) -> Verdict {
    link.memory.write(Area::Source.offset(), &pattern(0, MESSAGE))?;
    link.do_one(SendOperation::Send, Area::Source.offset(), MESSAGE)?;
    link.finish()
}

/// Waits for a message of [`MESSAGE`] bytes.
fn message(link: &mut Link) -> Verdict {
    let arrival = link.arrival()?;
    equal("opcode of a receive", arrival.opcode, CompletionOpcode::Receive)?;
    equal("size of a message", arrival.length, MESSAGE)?;
    link.release(arrival)
}

fn dial(station: &Station, server: SocketAddr) -> Verdict<Link> {
    let id = station.active(server)?;
    let link = Link::new(station, id, Purpose::Queue)?;
    link.id.connect(&plain(&link))?;
    let event = station.event(link.id.number())?;
    match event.kind {
        CmEventKind::Established => Ok(link),
        kind => Err(Deviation::Failed(format!("{kind:?} instead of a connection"))),
    }
}

/// Returns the connection parameters for these programs: one outstanding READ and no private data.
fn plain(link: &Link) -> ConnectParameters {
    ConnectParameters { responder_resources: 1, initiator_depth: 1, ..link.parameters(Vec::new()) }
}

fn accept(station: &Station, port: u16, report: &mut Report<'_>) -> Verdict<Link> {
    let listener = station.listen(port)?;
    report.note("listening");
    let event = station.event(listener.number())?;
    let CmEventKind::ConnectRequest { id, parameters } = event.kind else {
        return Err(Deviation::Failed(format!("{:?} instead of a request", event.kind)));
    };
    let id: Arc<dyn CmId> = id;
    let link = Link::new(station, id, Purpose::Queue)?;
    link.id.accept(&ConnectParameters { private_data: Vec::new(), ..parameters })?;
    let event = station.event(link.id.number())?;
    match event.kind {
        CmEventKind::Established => Ok(link),
        kind => Err(Deviation::Failed(format!("{kind:?} instead of a connection"))),
    }
}
