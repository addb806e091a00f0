//! Closures that interceptors have left for the end of a call, on either side.

use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::fmt;
use trunkline_machine::rings::panics::{Panicked, catch};

type Hook = Box<dyn FnOnce(Result<(), &Status>) + Send>;

/// Closures that run once when a call has ended.
#[derive(Default)]
pub(crate) struct EndHooks(Vec<Hook>);

impl EndHooks {
    pub(crate) fn add(&mut self, hook: impl FnOnce(Result<(), &Status>) + Send + 'static) {
        self.0.push(Box::new(hook));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs the closures, the last one first.
    ///
    /// # Errors
    /// Returns an error if a closure has panicked. All have run nonetheless.
    pub(crate) fn run(&mut self, outcome: Result<(), &Status>) -> Result<(), Panicked> {
        let mut ended = Ok(());
        for hook in self.0.drain(..).rev() {
            ended = ended.and(catch(|| hook(outcome)));
        }
        ended
    }
}

impl fmt::Debug for EndHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EndHooks").field(&self.0.len()).finish()
    }
}

/// Returns the status of a call whose interceptor has panicked, before its handler ran or not.
#[cold]
pub(crate) fn interceptor_panicked(may_have_run: bool) -> Status {
    let text = "an interceptor panicked";
    let status =
        if may_have_run { Status::ran(Code::Internal, text) } else { Status::not_run(Code::Internal, text) };
    status.because(Reason::Panicked)
}
