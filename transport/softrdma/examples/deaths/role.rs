//! What a process of a scenario does until its input ends: answers, works, sleeps.

use crate::Outcome;
use crate::process::{Question, Questions};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::os::fd::AsRawFd;
use std::time::Duration;
use trunkline_softrdma::device::SoftDevice;
use trunkline_verbs::{CompletionChannel, CompletionQueue, Device, Notify};

/// Longest sleep.
const NAP: Duration = Duration::from_millis(2);

/// One side of a scenario.
pub(super) trait Role {
    fn device(&self) -> &SoftDevice;

    fn cq(&self) -> &dyn CompletionQueue;

    /// Takes what has completed; answers whether there was something.
    fn step(&mut self) -> Outcome<bool>;

    fn answer(&mut self, question: &str) -> Outcome<()>;
}

/// Works until the input ends. The channel is that of the role's CQ.
pub(super) fn work(
    role: &mut dyn Role,
    channel: &dyn CompletionChannel,
    questions: &Questions,
) -> Outcome<()> {
    let mut poll = Poll::new()?;
    poll.registry().register(&mut SourceFd(&channel.as_fd().as_raw_fd()), Token(0), Interest::READABLE)?;
    let mut events = Events::with_capacity(1);
    loop {
        match questions.next() {
            Question::Line(question) => role.answer(&question)?,
            Question::None => {}
            Question::End => return Ok(()),
        }
        while role.device().next_async_event().is_some() {}
        if role.step()? {
            continue;
        }
        role.cq().request_notify(Notify::Any)?;
        if !role.step()? {
            poll.poll(&mut events, Some(NAP))?;
            while channel.next_event().is_some() {}
        }
    }
}
