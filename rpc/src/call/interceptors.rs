//! Interceptors of clients and servers, and their closures for the end of a call.

use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::fmt;
use std::sync::Arc;
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

    /// Runs the closures in reverse order.
    ///
    /// # Errors
    /// Returns an error if a closure panicked. The other closures still run.
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

/// Interceptors of one kind, in the order of installation. A null pointer if there are no interceptors.
pub(crate) struct Interceptors<I: ?Sized>(Option<Arc<Vec<Arc<I>>>>);

impl<I: ?Sized> Interceptors<I> {
    pub(crate) const NONE: Self = Self(None);

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns these interceptors followed by `interceptor`.
    #[must_use]
    pub(crate) fn with(&self, interceptor: Arc<I>) -> Self {
        let mut all = self.0.as_ref().map_or_else(Vec::new, |all| all.to_vec());
        all.push(interceptor);
        Self(Some(Arc::new(all)))
    }

    /// Runs `intercept` on each interceptor until one refuses the call.
    ///
    /// # Errors
    /// Returns the status of the interceptor that refuses the call, or the result of `panicked` if an interceptor panics.
    pub(crate) fn run(
        &self,
        intercept: impl FnMut(&Arc<I>) -> Result<(), Status>,
        panicked: impl FnOnce() -> Status,
    ) -> Result<(), Status> {
        match catch(|| self.0.iter().flat_map(|all| all.iter()).try_for_each(intercept)) {
            Ok(allowed) => allowed.map_err(Status::before_run),
            Err(_) => Err(panicked()),
        }
    }
}

impl<I: ?Sized> Clone for Interceptors<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I: ?Sized> fmt::Debug for Interceptors<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interceptors").field(&self.0.as_ref().map_or(0, |all| all.len())).finish()
    }
}

/// Returns the status of a call whose interceptor panicked, before or after its handler.
#[cold]
pub(crate) fn interceptor_panicked(may_have_run: bool) -> Status {
    let text = "an interceptor panicked";
    let status =
        if may_have_run { Status::ran(Code::Internal, text) } else { Status::not_run(Code::Internal, text) };
    status.because(Reason::Panicked)
}
