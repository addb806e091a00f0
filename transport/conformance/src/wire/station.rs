//! The device of one end, the events of its connections, and the time limit of its waits.

use super::link::{Link, Slots};
use super::protocol::{ANSWER_BYTES, Hello, Purpose};
use crate::check::{Deviation, Verdict};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, Device, EndpointRequest, EndpointSide, PortSpace,
    ProtectionDomain, QpType,
};

/// Maximum time without progress by the peer. The peer may run on an emulated machine on a loaded host, behind a lossy
/// link.
const BOUND: Duration = Duration::from_secs(60);
/// Number of polls without a result after which a wait sleeps between polls.
const LOOKS: u32 = 200;
const NAP: Duration = Duration::from_micros(100);

/// The end of a bounded wait.
#[derive(Debug)]
pub(super) struct Deadline {
    until: Instant,
    looks: u32,
}

impl Deadline {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + BOUND, looks: 0 }
    }

    /// Yields or sleeps briefly. Returns an error after the time limit.
    pub(super) fn wait(&mut self, otherwise: impl FnOnce() -> String) -> Verdict {
        self.looks += 1;
        if self.looks < LOOKS {
            std::thread::yield_now();
            return Ok(());
        }
        if Instant::now() > self.until {
            return Err(Deviation::Failed(format!("{} within {} s", otherwise(), BOUND.as_secs())));
        }
        std::thread::sleep(NAP);
        Ok(())
    }
}

/// The device of one end, and the objects that its connections share.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) device: Arc<dyn Device>,
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) own: IpAddr,
    channel: Arc<dyn CmChannel>,
    srq: RefCell<Option<Rc<Slots>>>,
    /// Events that have not been taken by their callers.
    waiting: RefCell<VecDeque<CmEvent>>,
}

impl Station {
    pub(super) fn new(device: Arc<dyn Device>, own: IpAddr) -> Verdict<Self> {
        let channel = device.connection_manager().create_channel()?;
        let pd = device.alloc_pd()?;
        Ok(Self { device, pd, own, channel, srq: RefCell::default(), waiting: RefCell::default() })
    }

    /// Returns the receives that all connections with an SRQ share.
    pub(super) fn srq_slots(&self) -> Verdict<Rc<Slots>> {
        let mut srq = self.srq.borrow_mut();
        if let Some(slots) = &*srq {
            return Ok(Rc::clone(slots));
        }
        Ok(Rc::clone(srq.insert(Slots::of_srq(&self.device, &self.pd)?)))
    }

    pub(super) fn listen(&self, port: u16) -> Verdict<Arc<dyn CmId>> {
        let side = EndpointSide::Passive { local: SocketAddr::new(self.own, port) };
        let listener = self.endpoint(side)?;
        listener.listen(16)?;
        Ok(listener)
    }

    /// Creates an endpoint that is ready to connect to a server.
    pub(super) fn active(&self, server: SocketAddr) -> Verdict<Arc<dyn CmId>> {
        self.endpoint(EndpointSide::Active { remote: server, source: Some(self.own) })
    }

    fn endpoint(&self, side: EndpointSide) -> Verdict<Arc<dyn CmId>> {
        let request = EndpointRequest { side, port_space: PortSpace::Tcp, qp_type: QpType::Rc };
        Ok(self.device.connection_manager().create_endpoint(&request, &self.channel)?)
    }

    /// Returns the next event of any endpoint without blocking.
    pub(super) fn event_now(&self) -> Option<CmEvent> {
        self.waiting.borrow_mut().pop_front().or_else(|| self.channel.next_event())
    }

    /// Waits for the next event of an endpoint.
    pub(super) fn event(&self, id: CmIdNumber) -> Verdict<CmEvent> {
        let mut deadline = Deadline::new();
        loop {
            let mut waiting = self.waiting.borrow_mut();
            waiting.extend(std::iter::from_fn(|| self.channel.next_event()));
            let place = waiting.iter().position(|event| event.id == id);
            if let Some(event) = place.and_then(|place| waiting.remove(place)) {
                return Ok(event);
            }
            drop(waiting);
            deadline.wait(|| "no event of the connection manager arrived".into())?;
        }
    }

    /// Waits until a connection has ended.
    pub(super) fn disconnected(&self, id: CmIdNumber) -> Verdict {
        match self.event(id)?.kind {
            CmEventKind::Disconnected { .. } => Ok(()),
            kind => Err(Deviation::Failed(format!("{kind:?} instead of the end of the connection"))),
        }
    }

    /// Connects to the server in `super::server`.
    pub(super) fn dial(&self, server: SocketAddr, purpose: Purpose) -> Verdict<Link> {
        let mut link = Link::new(self, self.active(server)?, purpose)?;
        link.connect()?;
        self.await_connection(&mut link)?;
        Ok(link)
    }

    /// Waits until the server accepts.
    pub(super) fn await_connection(&self, link: &mut Link) -> Verdict {
        let event = self.event(link.id.number())?;
        if !matches!(event.kind, CmEventKind::Established) {
            return Err(Deviation::Failed(format!("{:?} instead of a connection", event.kind)));
        }
        link.peer = Hello::from_private_data(&event.private_data, ANSWER_BYTES)?.arena;
        Ok(())
    }
}
