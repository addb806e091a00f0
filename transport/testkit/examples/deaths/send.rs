//! A process that sends through any number of INIs.
//!
//! | command | action | answer |
//! |---|---|---|
//! | `ini` | an INI for a new stream | `INI stream qpn` |
//! | `connect STREAM ADDRESS TGT SRQ` | moves it to RTS and begins to send | `CONNECT` |
//! | `mark` | starts to measure the longest gaps | `MARK` |
//! | `stream N` | | `STREAM completed=.. gap_ms=.. failed=.. failed_ms=..` |
//!
//! `completed` counts messages that were acknowledged; `gap_ms` is the longest time without one since the
//! mark, the current one included; `failed` is the status of the completion that ended the stream, 0 while it
//! works; `failed_ms` when that was, after the mark.

use crate::Outcome;
use crate::qp::{LONGEST, bring_up, message};
use crate::role::{Endpoint, Role, work};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_verbs::{
    Access, Completion, Device, Memory, MemoryRegion, QpInit, QpNumber, QpType, QueueCapacities, QueuePair,
    SendData, SendFlags, SendOperation, SendRequest, Sge, SrqNumber,
};

/// Number of outstanding messages of a stream.
const WINDOW: usize = 16;

struct Stream {
    ini: Arc<dyn QueuePair>,
    srq: Option<SrqNumber>,
    memory: Arc<Memory>,
    region: Arc<dyn MemoryRegion>,
    sent: u64,
    completed: u64,
    last: Instant,
    gap: Duration,
    failed: Option<(u32, Instant)>,
}

struct Peer {
    endpoint: Endpoint,
    streams: Vec<Stream>,
    /// Number of the first stream. Two senders use different numbers.
    first: usize,
    marked: Instant,
}

/// Sends until its input ends.
pub(super) fn serve(own: IpAddr, first: usize) -> Outcome<()> {
    let endpoint = Endpoint::open(own)?;
    let mut peer = Peer { endpoint, streams: Vec::new(), first, marked: Instant::now() };
    work(&mut peer)
}

impl Role for Peer {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn step(&mut self) -> Outcome<bool> {
        let mut some = [Completion::default(); 32];
        let count = self.endpoint.cq.poll(&mut some);
        let now = Instant::now();
        for completion in &some[..count] {
            let stream = &mut self.streams[usize::try_from(completion.wr_id)?];
            if completion.status.is_success() {
                stream.completed += 1;
                stream.gap = stream.gap.max(now - stream.last);
                stream.last = now;
            } else if stream.failed.is_none() {
                stream.failed = Some((completion.status as u32, now));
            }
        }
        let first = self.first;
        for (index, stream) in self.streams.iter_mut().enumerate() {
            stream.fill(index, first)?;
        }
        Ok(count > 0)
    }

    fn answer(&mut self, command: &str) -> Outcome<()> {
        match command.split(' ').collect::<Vec<_>>().as_slice() {
            ["ini"] => {
                let stream = self.stream()?;
                println!("INI {} {}", self.first + self.streams.len(), stream.ini.number().get());
                self.streams.push(stream);
            }
            ["connect", number, peer, tgt, srq] => {
                let stream = self.at(number)?;
                bring_up(&*stream.ini, peer.parse()?, QpNumber::new(tgt.parse()?))?;
                stream.srq = Some(SrqNumber::new(srq.parse()?));
                stream.last = Instant::now();
                println!("CONNECT");
            }
            ["mark"] => {
                self.marked = Instant::now();
                for stream in &mut self.streams {
                    stream.gap = Duration::ZERO;
                    stream.last = self.marked;
                }
                println!("MARK");
            }
            ["stream", number] => {
                let marked = self.marked;
                let stream = self.at(number)?;
                let gap =
                    if stream.failed.is_none() { stream.gap.max(stream.last.elapsed()) } else { stream.gap };
                let (failed, when) = stream.failed.unwrap_or((0, marked));
                println!(
                    "STREAM completed={} gap_ms={} failed={failed} failed_ms={}",
                    stream.completed,
                    gap.as_millis(),
                    when.saturating_duration_since(marked).as_millis(),
                );
            }
            _ => return Err(format!("unknown command {command:?}").into()),
        }
        Ok(())
    }
}

impl Peer {
    fn at(&mut self, number: &str) -> Outcome<&mut Stream> {
        let index = number.parse::<usize>()?.checked_sub(self.first).ok_or("no such stream")?;
        Ok(self.streams.get_mut(index).ok_or("no such stream")?)
    }

    fn stream(&self) -> Outcome<Stream> {
        let ini = self.endpoint.device.create_qp(QpInit {
            pd: Some(Arc::clone(&self.endpoint.pd)),
            send_cq: Some(Arc::clone(&self.endpoint.cq)),
            capacities: QueueCapacities {
                max_send_wr: u32::try_from(WINDOW)?,
                max_send_sge: 1,
                ..QueueCapacities::default()
            },
            ..QpInit::new(QpType::XrcIni)
        })?;
        let memory = Memory::zeroed(WINDOW * LONGEST)?;
        let region = self.endpoint.pd.register(Arc::clone(&memory), Access::empty())?;
        let last = Instant::now();
        let (sent, completed, gap) = (0, 0, Duration::ZERO);
        Ok(Stream { ini, srq: None, memory, region, sent, completed, last, gap, failed: None })
    }
}

impl Stream {
    /// Sends messages until the window is full.
    fn fill(&mut self, index: usize, first: usize) -> Outcome<()> {
        let Some(remote_srq) = self.srq.filter(|_| self.failed.is_none()) else { return Ok(()) };
        while self.sent < self.completed + WINDOW as u64 {
            let bytes = message((first + index) as u64, self.sent);
            let at = usize::try_from(self.sent)? % WINDOW * LONGEST;
            self.memory.write(at, &bytes)?;
            let length = u32::try_from(bytes.len())?;
            let gather = [Sge { address: self.memory.address(at), length, lkey: self.region.lkey() }];
            let request = SendRequest {
                wr_id: index as u64,
                operation: SendOperation::Send,
                data: SendData::Gather(&gather),
                flags: SendFlags::SIGNALED,
                remote_srq,
            };
            if self.ini.post_send(&[request]).is_err() {
                return Ok(()); // the QP is in ERR: handle its completions first
            }
            self.sent += 1;
        }
        Ok(())
    }
}
