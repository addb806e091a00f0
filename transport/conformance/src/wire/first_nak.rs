//! A test in which a fatal NAK is the very first packet from a responder.
//!
//! The test connects the QPs without a connection manager, which would send packets first, and exchanges their numbers over
//! TCP. The requester's first request has a wrong rkey. The first RoCE packet that its device receives from the responder's
//! address is therefore the NAK, which is sent only once. The NAK must end the request with the corresponding status. A
//! device that drops the NAK retries the request until its retries are exhausted.

use super::station::{Deadline, Station};
use crate::check::{Deviation, Verdict, equal};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use trunkline_testkit::HandMadeConnection;
use trunkline_verbs::{
    Access, Completion, CompletionQueue, CompletionStatus, CqInit, Gid, GidKind, IoAddress, Memory,
    MemoryRegion, QpInit, QpNumber, QpType, QueueCapacities, QueuePair, RemoteAddress, Rkey, SendData,
    SendFlags, SendOperation, SendRequest, Sge, SrqNumber,
};

/// Length of the WRITE, in bytes.
const LENGTH: u32 = 64;
/// Local ACK timeout of 0.13 s.
const ACK_TIMEOUT: u8 = 15;
/// Retry count. The kernel's soft RoCE retries without a limit if it is 7.
const RETRIES: u8 = 6;
/// Time limit of each step over TCP. The other end may run on an emulated machine.
const BOUND: Duration = Duration::from_secs(60);
/// Line that the responder sends when its QP is connected.
const CONNECTED: &str = "connected";

/// A QP and its memory.
struct End {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    region: Arc<dyn MemoryRegion>,
    address: IoAddress,
    gid_index: u16,
}

impl End {
    fn new(station: &Station) -> Verdict<Self> {
        let device = &station.device;
        let own = Gid::from(station.own);
        let is_own = |entry: &&trunkline_verbs::GidEntry| entry.gid == own && entry.kind == GidKind::RoceV2;
        let entries = device.gid_table();
        let entry = entries.iter().find(is_own);
        let gid_index = entry.ok_or_else(|| Deviation::Failed(format!("no GID of {}", station.own)))?.index;
        let memory = Memory::zeroed(4096)?;
        let address = memory.address(0);
        let region = station.pd.register(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let cq = device.create_cq(CqInit { capacity_cqe: 16, ..CqInit::default() })?;
        let qp = device.create_qp(QpInit {
            pd: Some(Arc::clone(&station.pd)),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            capacities: QueueCapacities {
                max_send_wr: 4,
                max_receive_wr: 4,
                max_send_sge: 1,
                max_receive_sge: 1,
                ..QueueCapacities::default()
            },
            ..QpInit::new(QpType::Rc)
        })?;
        Ok(Self { qp, cq, region, address, gid_index })
    }

    fn connect(&self, peer: IpAddr, number: u32) -> Verdict {
        let connection = HandMadeConnection {
            ack_timeout: ACK_TIMEOUT,
            ..HandMadeConnection::new(peer, QpNumber::new(number))
        };
        for mut step in connection.steps() {
            if let Some(vector) = &mut step.address_vector {
                vector.source_gid_index = self.gid_index;
            }
            step.retry_count = step.retry_count.map(|_| RETRIES);
            self.qp.modify(&step)?;
        }
        Ok(())
    }

    /// Posts a WRITE and waits for its completion.
    fn write(&self, to: RemoteAddress) -> Verdict<CompletionStatus> {
        let gather = [Sge { address: self.address, length: LENGTH, lkey: self.region.lkey() }];
        self.qp.post_send(&[SendRequest {
            wr_id: 1,
            operation: SendOperation::RdmaWrite(to),
            data: SendData::Gather(&gather),
            flags: SendFlags::SIGNALED,
            remote_srq: SrqNumber::new(0),
        }])?;
        let mut deadline = Deadline::new();
        let mut one = [Completion::default()];
        while self.cq.poll(&mut one) == 0 {
            deadline.wait(|| "the WRITE did not end".into())?;
        }
        Ok(one[0].status)
    }
}

/// A TCP connection that transfers lines.
struct Words {
    reader: BufReader<TcpStream>,
}

impl Words {
    fn new(stream: TcpStream) -> Verdict<Self> {
        stream.set_read_timeout(Some(BOUND))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    fn send(&mut self, line: &str) -> Verdict {
        Ok(writeln!(self.reader.get_mut(), "{line}")?)
    }

    /// Returns the next line, which is empty at the end of the stream.
    fn receive(&mut self) -> Verdict<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Exchanges QP number, memory address and key with the other end.
    fn exchange(&mut self, end: &End) -> Verdict<(u32, RemoteAddress)> {
        self.send(&format!("{} {} {}", end.qp.number().get(), end.address.0, end.region.rkey().0))?;
        let line = self.receive()?;
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let numbers = [number(), number(), number()];
        let [Some(qp), Some(address), Some(rkey)] = numbers else {
            return Err(Deviation::Failed(format!("the other end sent {line:?}")));
        };
        let narrow =
            |number| u32::try_from(number).map_err(|_| Deviation::Failed(format!("{line:?} is too large")));
        Ok((narrow(qp)?, RemoteAddress { address: IoAddress(address), rkey: Rkey(narrow(rkey)?) }))
    }
}

/// Serves one requester, whose WRITE must be refused.
pub(super) fn respond(station: &Station, listener: &TcpListener) -> Verdict {
    let (stream, peer) = listener.accept()?;
    let end = End::new(station)?;
    let mut words = Words::new(stream)?;
    let (number, _) = words.exchange(&end)?;
    end.connect(peer.ip(), number)?;
    words.send(CONNECTED)?;
    // The device responds without the program. The requester closes the connection when its request has ended.
    equal("what the requester sent", words.receive()?.as_str(), "")
}

/// Sends a WRITE with a key that the responder does not know, as the first packet.
pub(super) fn request(station: &Station, server: SocketAddr) -> Verdict {
    let mut words = Words::new(TcpStream::connect_timeout(&server, BOUND)?)?;
    let end = End::new(station)?;
    let (number, there) = words.exchange(&end)?;
    end.connect(server.ip(), number)?;
    equal("the responder's state", words.receive()?.as_str(), CONNECTED)?;
    let wrong = RemoteAddress { rkey: Rkey(there.rkey.0 ^ 0x0055_aa00), ..there };
    equal("how the WRITE ended", end.write(wrong)?, CompletionStatus::RemoteAccessError)
}
