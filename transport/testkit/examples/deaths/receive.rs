//! A process that receives.
//!
//! It prints `SRQ number` at the start. Then:
//!
//! | command | action | answer |
//! |---|---|---|
//! | `create ADDRESS QPN` | a TGT for that INI | `CREATE qpn` |
//! | `open QPN` | takes a handle of a shared TGT | `OPEN` |
//! | `stream N` | | `STREAM received=.. wrong=..` |
//!
//! A message that is not the next one of its stream, or not byte for byte what was sent, is wrong.

use crate::Outcome;
use crate::qp::{LONGEST, bring_up, parse};
use crate::role::{Endpoint, Role, work};
use std::collections::HashMap;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use trunkline_verbs::{
    Access, Completion, Device, Memory, MemoryRegion, QpInit, QpNumber, QpType, QueuePair, ReceiveRequest,
    Sge, SharedReceiveQueue, SrqInit, SrqKind, XrcDomain, XrcdFlags,
};

const SLOTS: usize = 256;

#[derive(Debug, Default)]
struct Stream {
    received: u64,
    wrong: u64,
}

struct Member {
    endpoint: Endpoint,
    xrcd: Arc<dyn XrcDomain>,
    srq: Arc<dyn SharedReceiveQueue>,
    memory: Arc<Memory>,
    region: Arc<dyn MemoryRegion>,
    targets: Vec<Arc<dyn QueuePair>>,
    streams: HashMap<u64, Stream>,
}

/// Receives until its input ends. With a file, its domain belongs to the file.
pub(super) fn serve(own: IpAddr, file: Option<&Path>) -> Outcome<()> {
    let endpoint = Endpoint::open(own)?;
    let Endpoint { device, pd, cq, .. } = &endpoint;
    let file = file.map(File::open).transpose()?;
    let xrcd = device.open_xrcd(file.as_ref().map(AsFd::as_fd), XrcdFlags::CREATE)?;
    let kind = SrqKind::Xrc { xrcd: Arc::clone(&xrcd), cq: Arc::clone(cq) };
    let max_wr = u32::try_from(SLOTS)?;
    let srq = device.create_srq(SrqInit { pd: Arc::clone(pd), kind, max_wr, max_sge: 1, context: 0 })?;
    let memory = Memory::zeroed(SLOTS * LONGEST)?;
    let region = pd.register(Arc::clone(&memory), Access::LOCAL_WRITE)?;
    let (targets, streams) = (Vec::new(), HashMap::new());
    let mut member = Member { endpoint, xrcd, srq, memory, region, targets, streams };
    for slot in 0..SLOTS {
        member.post(slot)?;
    }
    println!("SRQ {}", member.srq.number()?.get());
    work(&mut member)
}

impl Role for Member {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn step(&mut self) -> Outcome<bool> {
        let mut some = [Completion::default(); 32];
        let count = self.endpoint.cq.poll(&mut some);
        for completion in &some[..count] {
            let slot = usize::try_from(completion.wr_id)?;
            if completion.status.is_success() {
                let mut bytes = vec![0; usize::try_from(completion.byte_length)?.min(LONGEST)];
                self.memory.read(slot * LONGEST, &mut bytes)?;
                self.take(&bytes);
            }
            self.post(slot)?;
        }
        Ok(count > 0)
    }

    fn answer(&mut self, command: &str) -> Outcome<()> {
        match command.split(' ').collect::<Vec<_>>().as_slice() {
            ["create", peer, qpn] => {
                let init = QpInit { xrcd: Some(Arc::clone(&self.xrcd)), ..QpInit::new(QpType::XrcTgt) };
                let tgt = self.endpoint.device.create_qp(init)?;
                bring_up(&*tgt, peer.parse()?, QpNumber::new(qpn.parse()?))?;
                println!("CREATE {}", tgt.number().get());
                self.targets.push(tgt);
            }
            ["open", qpn] => {
                self.targets.push(self.endpoint.device.open_qp(&self.xrcd, QpNumber::new(qpn.parse()?))?);
                println!("OPEN");
            }
            ["stream", number] => {
                let nothing = Stream::default();
                let stream = self.streams.get(&number.parse()?).unwrap_or(&nothing);
                let strange = self.streams.get(&0).map_or(0, |stream| stream.wrong);
                println!("STREAM received={} wrong={}", stream.received, stream.wrong + strange);
            }
            _ => return Err(format!("unknown command {command:?}").into()),
        }
        Ok(())
    }
}

impl Member {
    fn post(&self, slot: usize) -> Outcome<()> {
        let address = self.memory.address(slot * LONGEST);
        let scatter = [Sge { address, length: u32::try_from(LONGEST)?, lkey: self.region.lkey() }];
        Ok(self.srq.post_receive(&[ReceiveRequest { wr_id: slot as u64, scatter: &scatter }])?)
    }

    fn take(&mut self, bytes: &[u8]) {
        // Messages of no known stream count for stream 0, which does not exist.
        let (stream, number) = parse(bytes).unwrap_or((0, u64::MAX));
        let stream = self.streams.entry(stream).or_default();
        if number == stream.received {
            stream.received += 1;
        } else {
            stream.wrong += 1;
        }
    }
}
