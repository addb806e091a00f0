//! Sessions that a peer never lets come up, and the frames that it sends meanwhile.

use super::flooded::nothing_lost;
use crate::findings::Findings;
use crate::forge::version_of;
use crate::honest::{Pair, Setup};
use crate::{Outcome, Plan};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Random, fresh_ip};
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, CmIdNumber, Completion, CompletionQueue, ConnectParameters, CqInit,
    Device as _, EndpointRequest, EndpointSide, PortSpace, ProtectionDomain, QpInit, QpType, QueueCapacities,
    QueuePair, SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
};

/// Number of listeners of the host, each with a half-open session, and number of credit frames that each
/// sends after its settings. A host may have 256 such connections.
const CROWDS: [(&str, u16, usize); 2] = [("settings", 32, 0), ("credit-frames", 256, 7)];
/// First of their ports.
const PORT: u16 = 1000;
/// Duration, longer than a node waits for a session that does not come up.
const LASTS: Duration = Duration::from_secs(7);
/// Portion of time in which calls are counted, time for which they are counted without the host, and the part
/// of those calls that must be made in each portion.
const PORTION: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_secs(2);
const PART: f64 = 0.1;
/// Reason of a refusal that carries a cookie.
const UNPROVEN: u8 = 11;
/// Kinds of frames, and the grant with which each pair begins.
const CREDIT: u8 = 1;
const SETTINGS: u8 = 3;
const FIRST_GRANT: u16 = u16::MAX - 998;
/// Offset of the first SRQ's number in the message of an accepting node.
const SRQ: std::ops::Range<usize> = 20..24;

pub(crate) fn run(plan: &Plan, findings: &mut Findings) -> Outcome<()> {
    if !plan.is_xrc() {
        findings.skip("it dials over XRC");
        return Ok(());
    }
    for (name, ports, credits) in CROWDS {
        let mut pair = Pair::start(plan, false)?;
        let server = pair.server.address;
        let version = version_of(fresh_ip().into(), server, true, &mut Random::from_entropy())?;
        let before = pair.client.tally()?;
        let usual = least_of(&mut pair, QUIET)?;
        let crowd = std::thread::spawn(move || -> Result<_, String> {
            let crowd = Crowd::dial(server, fresh_ip().into(), ports, version);
            crowd.and_then(|crowd| crowd.run(credits)).map_err(|error| error.to_string())
        });
        let least = least_of(&mut pair, LASTS)?;
        let (accepted, sent) = crowd.join().map_err(|_| "the crowd has panicked")??;
        let crowd = format!("{accepted} of {ports} sessions were half-open, {sent} frames arrived");
        findings.claim(usize::from(accepted) > usize::from(ports) / 2, &format!("{name}-crowd"), &crowd);
        let measured = format!("{least} small calls within {PORTION:?} at least, {usual} before");
        let is_alive = least > 0 && least as f64 >= usual as f64 * PART;
        findings.claim(is_alive, &format!("{name}-no-stall"), &measured);
        nothing_lost(findings, &before, &pair.client.tally()?);
        let newcomer = Setup::new(&pair.folder, plan).start()?.first(server);
        findings.claim(newcomer.is_ok(), &format!("{name}-newcomer"), &format!("{newcomer:?}"));
        let short = pair.server.logged("receive slots ran out")?;
        findings.claim(short == 0, &format!("{name}-receives"), &format!("{short} times none was left"));
    }
    Ok(())
}

/// Returns the smallest number of small calls in a portion of that time.
fn least_of(pair: &mut Pair, over: Duration) -> Outcome<u64> {
    let (start, mut least) = (Instant::now(), u64::MAX);
    while start.elapsed() < over {
        let small = pair.client.tally()?["small"];
        std::thread::sleep(PORTION);
        least = least.min(pair.client.tally()?["small"] - small);
    }
    Ok(least)
}

/// A host that dials from many listeners, returns the cookies that it gets, and does not answer dial-backs.
struct Crowd {
    server: SocketAddr,
    host: IpAddr,
    version: u8,
    /// Channel of the dials.
    channel: Arc<dyn CmChannel>,
    /// Channel of the listeners, which is never read.
    _unread: Arc<dyn CmChannel>,
    _listeners: Vec<Arc<dyn CmId>>,
    dials: HashMap<CmIdNumber, Dial>,
    cq: Arc<dyn CompletionQueue>,
    pd: Arc<dyn ProtectionDomain>,
    device: Arc<SoftDevice>,
}

struct Dial {
    port: u16,
    _id: Arc<dyn CmId>,
    qp: Arc<dyn QueuePair>,
}

impl Crowd {
    fn dial(server: SocketAddr, host: IpAddr, ports: u16, version: u8) -> Outcome<Self> {
        let device = SoftDevice::open(SoftOptions { addresses: vec![host], ..SoftOptions::default() })?;
        let manager = device.connection_manager();
        let (channel, unread) = (manager.create_channel()?, manager.create_channel()?);
        let mut listeners = Vec::new();
        for port in PORT..PORT + ports {
            let side = EndpointSide::Passive { local: SocketAddr::new(host, port) };
            let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
            let listener = manager.create_endpoint(&request, &unread)?;
            listener.listen(8)?;
            listeners.push(listener);
        }
        let cq = device.create_cq(CqInit { capacity_cqe: 8192, ..CqInit::default() })?;
        let pd = device.alloc_pd()?;
        let (dials, _unread, _listeners) = (HashMap::new(), unread, listeners);
        let mut crowd = Self { server, host, version, channel, _unread, _listeners, dials, cq, pd, device };
        for port in PORT..PORT + ports {
            crowd.ask(port, &[0; 16])?;
        }
        Ok(crowd)
    }

    fn ask(&mut self, port: u16, cookie: &[u8]) -> Outcome<()> {
        let side = EndpointSide::Active { remote: self.server, source: Some(self.host) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
        let id = self.device.connection_manager().create_endpoint(&request, &self.channel)?;
        let qp = self.device.create_qp(QpInit {
            pd: Some(Arc::clone(&self.pd)),
            send_cq: Some(Arc::clone(&self.cq)),
            capacities: QueueCapacities {
                max_send_wr: 16,
                max_send_sge: 1,
                max_inline_data: 256,
                ..QueueCapacities::default()
            },
            ..QpInit::new(QpType::XrcIni)
        })?;
        id.attach(Arc::clone(&qp))?;
        let mut hello = b"TRNK".to_vec();
        hello.extend([self.version, 0]);
        hello.extend(port.to_be_bytes());
        hello.extend(u64::from(port).to_be_bytes());
        hello.extend(1_u32.to_be_bytes());
        hello.extend([0; 12]);
        hello.extend([0, 0, 0, 1, 1, self.version]);
        hello.extend(cookie);
        id.connect(&ConnectParameters { private_data: hello, ..ConnectParameters::default() })?;
        self.dials.insert(id.number(), Dial { port, _id: id, qp });
        Ok(())
    }

    /// Sends settings and some credit frames in each accepted session for a while. Returns the number of
    /// accepted sessions and of acknowledged frames.
    fn run(mut self, credits: usize) -> Outcome<(u16, usize)> {
        let (start, mut accepted, mut sent) = (Instant::now(), 0, 0);
        let mut done = [Completion::default(); 64];
        while start.elapsed() < LASTS - PORTION {
            let count = self.cq.poll(&mut done);
            sent += done[..count].iter().filter(|completion| completion.status.is_success()).count();
            let Some(event) = self.channel.next_event() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            match event.kind {
                CmEventKind::Established => {
                    accepted += 1;
                    let srq = u32::from_be_bytes(event.private_data[SRQ].try_into()?);
                    self.send(event.id, SrqNumber::new(srq), credits)?;
                }
                CmEventKind::Rejected(_) => {
                    let Some(dial) = self.dials.remove(&event.id) else { continue };
                    if event.private_data[5] == UNPROVEN {
                        self.ask(dial.port, &event.private_data[8..24])?;
                    }
                }
                _ => {}
            }
        }
        Ok((accepted, sent))
    }

    fn send(&self, dial: CmIdNumber, srq: SrqNumber, credits: usize) -> Outcome<()> {
        let Some(dial) = self.dials.get(&dial) else { return Ok(()) };
        let frames =
            std::iter::once(frame(SETTINGS, 8)).chain(std::iter::repeat_n(frame(CREDIT, 0), credits));
        for bytes in frames {
            let request = SendRequest {
                wr_id: 1,
                operation: SendOperation::Send,
                data: SendData::Inline(&bytes),
                flags: SendFlags::SIGNALED,
                remote_srq: srq,
            };
            // Ignored: the node may have ended the session meanwhile.
            let _ = dial.qp.post_send(&[request]);
        }
        Ok(())
    }
}

/// Returns a frame with zeros after its header.
fn frame(kind: u8, payload: u8) -> Vec<u8> {
    let mut frame = vec![kind, 0, 0, 0];
    frame.extend(FIRST_GRANT.to_le_bytes());
    frame.extend([0; 2]);
    frame.extend(std::iter::repeat_n(0, payload.into()));
    frame
}
