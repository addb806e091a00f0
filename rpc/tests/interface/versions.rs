//! Nodes with another protocol version are refused immediately. The error contains the versions of both sides.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;
use trunkline::{CallOptions, Code, Connect, Node, Reason, Status};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{fresh_address, wait_until};
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, ConnectParameters, CqInit, Device as _, EndpointRequest, EndpointSide,
    PortSpace, QpInit, QpType, QueueCapacities, RejectReason,
};

/// Time limit of each wait. It allows for a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit of calls that must end long before.
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the outcome of a call, which must end long before [`HOUR`].
fn early<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    wait_until("the call ends early", LIMIT, || {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    })
}

#[trunkline::service]
trait Ping {
    async fn ping(&self) -> Result<(), Status>;
}

struct Pong;

impl Ping for Pong {
    async fn ping(&self) -> Result<(), Status> {
        Ok(())
    }
}

fn device(ip: IpAddr) -> Arc<SoftDevice> {
    SoftDevice::open(SoftOptions { addresses: vec![ip], ..SoftOptions::from_env().unwrap() }).unwrap()
}

/// A listener that supports only version 5 and refuses other versions.
struct Listener {
    address: SocketAddr,
    asked: Arc<AtomicU32>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start() -> Self {
        let ip = fresh_address().ip();
        let device = device(ip);
        let manager = device.connection_manager();
        let channel = manager.create_channel().unwrap();
        let side = EndpointSide::Passive { local: SocketAddr::new(ip, 0) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
        let listener = manager.create_endpoint(&request, &channel).unwrap();
        listener.listen(8).unwrap();
        let address = listener.local_address();
        let (asked, ends) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let (counter, end) = (Arc::clone(&asked), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let _alive = (device, listener);
            while !end.load(Ordering::Relaxed) {
                let Some(event) = channel.next_event() else {
                    std::thread::yield_now();
                    continue;
                };
                if let CmEventKind::ConnectRequest { id, .. } = event.kind {
                    counter.fetch_add(1, Ordering::Relaxed);
                    id.reject(b"TRNK\x06\x02\x06\0").unwrap();
                }
            }
        });
        Self { address, asked, ends, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn listener_of_another_version_is_named_to_callers_at_once() {
    let listener = Listener::start();
    let node = Node::builder().listen(fresh_address()).start().unwrap();
    let client = PingClient::connect(&node, listener.address).unwrap().with_timeout(HOUR);
    let options = CallOptions::new().connect(Connect::Wait);
    let waiting = client.with(&options);
    let mut calls = 0;
    // The interval between connection attempts grows, so that a call eventually falls between two attempts.
    wait_until("a call without a request", LIMIT, || {
        let waits = calls % 2 == 1;
        let outcome = if waits { early(waiting.ping()) } else { early(client.ping()) };
        let status = outcome.unwrap_err();
        assert_eq!((status.code(), status.reason()), (Code::FailedPrecondition, Some(Reason::OtherProtocol)));
        assert!(!status.may_have_run());
        let text = status.message();
        assert!(text.contains("version 6") && text.contains("version 5"), "{text}");
        calls += 1;
        let asked = listener.asked.load(Ordering::Relaxed);
        assert!(asked > 0);
        (calls >= 20 && asked < calls).then_some(())
    });
}

#[test]
fn dialer_with_another_version_is_refused_at_once_with_ours() {
    let node = Node::builder().listen(fresh_address()).serve(PingServer::new(Pong)).start().unwrap();
    let ip = fresh_address().ip();
    let device = device(ip);
    let manager = device.connection_manager();
    let channel: Arc<dyn CmChannel> = manager.create_channel().unwrap();
    let side = EndpointSide::Active { remote: node.local_address(), source: Some(ip) };
    let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
    let id: Arc<dyn CmId> = manager.create_endpoint(&request, &channel).unwrap();
    let ini = QpInit {
        pd: Some(device.alloc_pd().unwrap()),
        send_cq: Some(device.create_cq(CqInit { capacity_cqe: 16, ..CqInit::default() }).unwrap()),
        capacities: QueueCapacities { max_send_wr: 4, max_send_sge: 1, ..QueueCapacities::default() },
        ..QpInit::new(QpType::XrcIni)
    };
    id.attach(device.create_qp(ini).unwrap()).unwrap();
    // The magic number and the versions have fixed positions. All other fields depend on the version.
    let mut private_data = b"TRNK\x07".to_vec();
    private_data.resize(56, 0xa5);
    private_data[37] = 6;
    id.connect(&ConnectParameters { private_data, ..ConnectParameters::default() }).unwrap();
    let event = wait_until("the refusal", LIMIT, || channel.next_event());
    assert!(matches!(event.kind, CmEventKind::Rejected(RejectReason::CONSUMER)), "{:?}", event.kind);
    assert_eq!(event.private_data[..8], *b"TRNK\x05\x02\x05\0");
}
