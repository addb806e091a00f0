//! Speaks to the programs of rdma-core, so that the kernel's rxe or a NIC can be the peer.
//!
//! ```text
//! kernel_peer client OWN SERVER    against `rdma_server`: one message each way
//! kernel_peer server OWN           against `rdma_client -s OWN`
//! kernel_peer rping OWN SERVER     against `rping -s`: the server READs and WRITEs our memory
//! ```

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::{
    Access, CmChannel, CmEvent, CmEventKind, CmId, Completion, CompletionQueue, ConnectParameters, CqInit,
    Device, EndpointRequest, EndpointSide, Memory, MemoryRegion, PortSpace, QpInit, QpModify, QpState,
    QpType, QueueCapacities, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest, Sge,
    SrqNumber,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Port of the examples of librdmacm.
const PORT: u16 = 7471;
/// Port of rping.
const RPING_PORT: u16 = 7174;
const BOUND: Duration = Duration::from_secs(20);

struct Peer {
    device: Arc<SoftDevice>,
    channel: Arc<dyn CmChannel>,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    memory: Arc<Memory>,
    region: Arc<dyn MemoryRegion>,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |index: usize| -> Outcome<IpAddr> {
        Ok(arguments.get(index).ok_or("an address is missing")?.parse()?)
    };
    let peer = Peer::open(address(1)?)?;
    let result = match arguments[0].as_str() {
        "client" => client(&peer, address(2)?),
        "server" => server(&peer, address(1)?),
        "rping" => rping(&peer, address(2)?),
        other => Err(format!("there is no mode {other}").into()),
    };
    for counter in peer.device.counters() {
        if counter.value > 0 {
            println!("{} {}", counter.name, counter.value);
        }
    }
    result
}

fn client(peer: &Peer, server: IpAddr) -> Outcome<()> {
    peer.receive(0, 16)?;
    let _id = peer.connect(SocketAddr::new(server, PORT))?;
    peer.memory.write(64, b"hello from soft\0")?;
    peer.send(64, 16)?;
    peer.completions(2)?;
    println!("the kernel answered");
    Ok(())
}

fn server(peer: &Peer, own: IpAddr) -> Outcome<()> {
    let side = EndpointSide::Passive { local: SocketAddr::new(own, PORT) };
    let request = EndpointRequest { side, port_space: PortSpace::Tcp, qp_type: QpType::Rc };
    let listener = peer.device.connection_manager().create_endpoint(&request, &peer.channel)?;
    listener.listen(1)?;
    println!("listening");
    let CmEventKind::ConnectRequest { id, parameters } = peer.event()?.kind else {
        return Err("no request came first".into());
    };
    id.attach(Arc::clone(&peer.qp))?;
    peer.receive(0, 16)?;
    id.accept(&ConnectParameters { private_data: Vec::new(), ..parameters })?;
    let event = peer.event()?;
    if !matches!(event.kind, CmEventKind::Established) {
        return Err(format!("not established: {event:?}").into());
    }
    peer.completions(1)?;
    peer.send(64, 16)?;
    peer.completions(1)?;
    let event = peer.event()?;
    println!("the kernel asked, was answered, and then: {:?}", event.kind);
    Ok(())
}

/// The client's part of rping: offer memory to be read, then to be written, and compare.
fn rping(peer: &Peer, server: IpAddr) -> Outcome<()> {
    const SIZE: u32 = 64;
    const SOURCE: usize = 4096;
    const SINK: usize = 8192;
    peer.receive(0, 16)?;
    let id = peer.connect(SocketAddr::new(server, RPING_PORT))?;
    for round in 0..10_u8 {
        let mut text: Vec<u8> = (0..63).map(|index| b'A' + (round + index) % 26).collect();
        text.push(0);
        peer.memory.write(SOURCE, &text)?;
        for place in [SOURCE, SINK] {
            let mut offer = peer.memory.address(place).0.to_be_bytes().to_vec();
            offer.extend(peer.region.rkey().0.to_be_bytes());
            offer.extend(SIZE.to_be_bytes());
            peer.memory.write(64, &offer)?;
            peer.send(64, 16)?;
            // Our send, and the word that the server is done.
            peer.completions(2)?;
            peer.receive(0, 16)?;
        }
        let mut written = vec![0; text.len()];
        peer.memory.read(SINK, &mut written)?;
        if written != text {
            return Err(format!("round {round}: the server wrote {written:?}").into());
        }
    }
    println!("the kernel read and wrote ten times");
    id.disconnect()?;
    Ok(())
}

impl Peer {
    fn open(own: IpAddr) -> Outcome<Self> {
        let device = SoftDevice::open(SoftOptions { addresses: vec![own], ..SoftOptions::from_env()? })?;
        let channel = device.connection_manager().create_channel()?;
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(CqInit { capacity_cqe: 64, ..CqInit::default() })?;
        let memory = Memory::zeroed(16_384)?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = pd.register(Arc::clone(&memory), rights)?;
        let qp = device.create_qp(QpInit {
            pd: Some(pd),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            capacities: QueueCapacities {
                max_send_wr: 8,
                max_receive_wr: 8,
                max_send_sge: 1,
                max_receive_sge: 1,
                max_inline_data: 0,
            },
            ..QpInit::new(QpType::Rc)
        })?;
        Ok(Self { device, channel, cq, qp, memory, region })
    }

    fn connect(&self, server: SocketAddr) -> Outcome<Arc<dyn CmId>> {
        let side = EndpointSide::Active { remote: server, source: None };
        let request = EndpointRequest { side, port_space: PortSpace::Tcp, qp_type: QpType::Rc };
        let id = self.device.connection_manager().create_endpoint(&request, &self.channel)?;
        id.attach(Arc::clone(&self.qp))?;
        let few =
            ConnectParameters { responder_resources: 1, initiator_depth: 1, ..ConnectParameters::default() };
        id.connect(&ConnectParameters { retry_count: 6, ..few })?;
        let event = self.event()?;
        match event.kind {
            CmEventKind::Established => Ok(id),
            _ => Err(format!("not connected: {event:?}").into()),
        }
    }

    fn event(&self) -> Outcome<CmEvent> {
        let until = Instant::now() + BOUND;
        loop {
            if let Some(event) = self.channel.next_event() {
                return Ok(event);
            }
            if Instant::now() > until {
                return Err("no event came".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.memory.address(offset), length, lkey: self.region.lkey() }
    }

    /// Posts a receive. A QP takes them from INIT on, so a fresh one is brought there first.
    fn receive(&self, offset: usize, length: u32) -> Outcome<()> {
        let init = QpModify {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE),
            ..QpModify::default()
        };
        if self.qp.query()?.state == QpState::Reset {
            self.qp.modify(&init)?;
        }
        let scatter = [self.sge(offset, length)];
        Ok(self.qp.post_receive(&[ReceiveRequest { wr_id: 1, scatter: &scatter }])?)
    }

    fn send(&self, offset: usize, length: u32) -> Outcome<()> {
        let gather = [self.sge(offset, length)];
        let request = SendRequest {
            wr_id: 2,
            operation: SendOperation::Send,
            data: SendData::Gather(&gather),
            flags: SendFlags::SIGNALED,
            remote_srq: SrqNumber::new(0),
        };
        Ok(self.qp.post_send(&[request])?)
    }

    /// Waits for this many completions, all good.
    fn completions(&self, count: usize) -> Outcome<()> {
        let until = Instant::now() + BOUND;
        let mut seen = 0;
        let mut one = [Completion::default()];
        while seen < count {
            if self.cq.poll(&mut one) == 1 {
                if !one[0].status.is_success() {
                    return Err(format!("{}: {:?}", one[0].status.explain(), one[0]).into());
                }
                seen += 1;
            } else if Instant::now() > until {
                return Err(format!("{seen} of {count} completions came").into());
            }
        }
        Ok(())
    }
}
