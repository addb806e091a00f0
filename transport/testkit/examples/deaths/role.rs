//! The main loop of a process of a scenario: until its input ends it executes commands, works and sleeps.

use crate::Outcome;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Input, NextLine, wait_readable};
use trunkline_verbs::{CompletionChannel, CompletionQueue, CqInit, Device, Notify, ProtectionDomain};

/// The longest sleep between two rounds.
const NAP: Duration = Duration::from_millis(2);

/// The objects of both roles: a device at one address, a PD, and a CQ with its channel.
pub(super) struct Endpoint {
    pub(super) device: Arc<SoftDevice>,
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) cq: Arc<dyn CompletionQueue>,
    channel: Arc<dyn CompletionChannel>,
}

impl Endpoint {
    pub(super) fn open(own: IpAddr) -> Outcome<Self> {
        let device = SoftDevice::open(SoftOptions { addresses: vec![own], ..SoftOptions::from_env()? })?;
        let channel = device.create_completion_channel()?;
        let init = CqInit { capacity_cqe: 4096, channel: Some(Arc::clone(&channel)), ..CqInit::default() };
        let (cq, pd) = (device.create_cq(init)?, device.alloc_pd()?);
        Ok(Self { device, pd, cq, channel })
    }
}

/// One side of a scenario.
pub(super) trait Role {
    fn endpoint(&self) -> &Endpoint;

    /// Handles completions. Returns true if there were any.
    fn step(&mut self) -> Outcome<bool>;

    /// Executes a command and prints the answer.
    fn answer(&mut self, command: &str) -> Outcome<()>;
}

/// Works until the input ends.
pub(super) fn work(role: &mut dyn Role) -> Outcome<()> {
    let input = Input::open();
    let channel = Arc::clone(&role.endpoint().channel);
    loop {
        match input.next_line() {
            NextLine::Line(command) => role.answer(&command)?,
            NextLine::NotYet => {}
            NextLine::End => return Ok(()),
        }
        while role.endpoint().device.next_async_event().is_some() {}
        if role.step()? {
            continue;
        }
        role.endpoint().cq.request_notify(Notify::Any)?;
        if !role.step()? {
            wait_readable(&[channel.as_fd()], NAP);
            while channel.next_event().is_some() {}
        }
    }
}
