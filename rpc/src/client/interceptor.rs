//! Interceptors for calls on a channel. An interceptor can change or refuse a call before the arguments are encoded, and can
//! receive the outcome.
//!
//! Without interceptors, the cost per call is one pointer check. With interceptors, the options of each call are copied.

use super::CallOptions;
use crate::call::context::Inherited;
use crate::call::{EndHooks, Interceptors, interceptor_panicked};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::Metadata;
use crate::wire::name::MethodName;
use std::borrow::Cow;
use std::cell::Cell;
use std::time::Duration;
use trunkline_verbs::{Clock, Time};

/// Maximum nesting depth of calls made by interceptors, so that a recursive interceptor does not exhaust the stack.
const NESTING: u32 = 16;

thread_local! {
    /// Number of calls whose interceptors this thread is running.
    static NESTED: Cell<u32> = const { Cell::new(0) };
}

/// A hook that runs before a channel makes a call, and can change, refuse or time the call.
///
/// [`Channel::with_interceptor`](crate::Channel::with_interceptor) installs it. Closures with the signature of
/// [`intercept`](Self::intercept) implement this trait.
///
/// ```
/// use std::time::Instant;
/// use trunkline::{Channel, ClientCall};
///
/// fn timed(channel: &Channel) -> Channel {
///     channel.with_interceptor(|call: &mut ClientCall| {
///         let (method, started) = (call.method(), Instant::now());
///         call.on_end(move |outcome| println!("{method}: {} in {:?}", outcome.is_ok(), started.elapsed()));
///         Ok(())
///     })
/// }
/// ```
///
/// Interceptors run in the order of installation, on the thread that makes the call. They must not block a poller's thread.
/// If an interceptor panics, only the call fails, with `Internal` and the reason `Panicked`. An interceptor that makes calls
/// must use a channel that does not have the interceptor. Calls nested deeper than 16 levels fail with `Internal`.
pub trait ClientInterceptor: Send + Sync + 'static {
    /// Inspects, changes or refuses a call.
    ///
    /// # Errors
    /// An error refuses the call, which fails with this status without having run. Later interceptors do not run.
    fn intercept(&self, call: &mut ClientCall) -> Result<(), Status>;
}

impl<F> ClientInterceptor for F
where
    F: Fn(&mut ClientCall) -> Result<(), Status> + Send + Sync + 'static,
{
    fn intercept(&self, call: &mut ClientCall) -> Result<(), Status> {
        self(call)
    }
}

/// A call that is about to be made, passed to each [`ClientInterceptor`].
#[derive(Debug)]
pub struct ClientCall {
    method: &'static MethodName,
    options: CallOptions,
    /// Time limit of the client.
    of_client: Option<Duration>,
    inherited: Inherited,
    /// Time at which the client's method was called.
    made: Time,
    hooks: EndHooks,
}

impl ClientCall {
    fn new(
        method: &'static MethodName,
        options: CallOptions,
        of_client: Option<Duration>,
        inherited: Inherited,
        made: Time,
    ) -> Self {
        Self { method, options, of_client, inherited, made, hooks: EndHooks::default() }
    }

    /// Returns the changed options and the closures for the end of the call. The interceptors' running time counts towards
    /// the time limit.
    fn into_parts(mut self, now: Time) -> (CallOptions, EndHooks) {
        let (spent, timeout) = (now.saturating_duration_since(self.made), self.timeout());
        if !spent.is_zero() && timeout != Duration::MAX {
            self.options.set_timeout(timeout.saturating_sub(spent));
        }
        (self.options, self.hooks)
    }

    /// Returns the name of the service.
    #[must_use]
    pub fn service(&self) -> &'static str {
        self.method.service.name
    }

    /// Returns the name of the method.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.method.name
    }

    /// Returns the path of the method, in the form `/service/method`. gRPC calls differ only in this path, because
    /// [`Self::service`] and [`Self::method`] are the same for all of them.
    #[must_use]
    pub fn path(&self) -> Cow<'_, str> {
        self.method.path(self.metadata())
    }

    /// Returns true if the call has no reply. Such a call ends when the request is in the server's memory.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.method.one_way
    }

    /// Returns the metadata of the request, including the trace of the calling handler.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.options.request_metadata()
    }

    /// Returns the metadata of the request for modification.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.options.request_metadata_mut()
    }

    /// Returns the time limit of the call, from its options, its client or the calling handler. `Duration::MAX` means no
    /// limit, which is the default for calls that stream items.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        let deadline = if self.method.streams.any() {
            self.options.stream_deadline(self.of_client, self.inherited, self.made)
        } else {
            self.options.deadline(self.of_client, self.inherited, self.made)
        };
        if deadline == Time::MAX { Duration::MAX } else { deadline.saturating_duration_since(self.made) }
    }

    /// Sets the time limit of the call. The deadline of the calling handler still applies.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.set_timeout(timeout);
    }

    /// Registers a closure to run when the call has ended. The closure receives the status if the call failed or was
    /// refused, and a `Cancelled` status if the call's future was dropped. An error of the method's own type is passed as
    /// `Unknown`.
    ///
    /// A call that returns a stream ends when the reader has received the end of the stream, or is dropped.
    ///
    /// The closure runs on the thread that polls or drops the future or the stream, after the closures of later
    /// interceptors.
    pub fn on_end(&mut self, hook: impl FnOnce(Result<(), &Status>) + Send + 'static) {
        self.hooks.add(hook);
    }
}

/// The interceptors of a channel.
pub(super) type ClientInterceptors = Interceptors<dyn ClientInterceptor>;

impl ClientInterceptors {
    /// Runs the interceptors on a call that is about to be made. Returns the status of a refused call, the changed options,
    /// and the closures for the end of the call.
    #[cold]
    #[inline(never)]
    pub(super) fn admit(
        &self,
        options: &CallOptions,
        method: &'static MethodName,
        of_client: Option<Duration>,
        inherited: Inherited,
        clock: &Clock,
    ) -> (Result<(), Status>, CallOptions, EndHooks) {
        let mut options = options.clone();
        options.continue_trace(inherited);
        let mut call = ClientCall::new(method, options, of_client, inherited, clock.now());
        let admitted = self.run_nested(&mut call);
        let (options, hooks) = call.into_parts(clock.now());
        (admitted, options, hooks)
    }

    /// Runs the interceptors.
    ///
    /// # Errors
    /// Returns a status if an interceptor refuses the call, panics or calls itself.
    fn run_nested(&self, call: &mut ClientCall) -> Result<(), Status> {
        let nested = NESTED.get();
        if nested >= NESTING {
            let text = "an interceptor makes calls that pass through itself";
            return Err(Status::not_run(Code::Internal, text).because(Reason::Misuse));
        }
        NESTED.set(nested + 1);
        let admitted = self.run(|interceptor| interceptor.intercept(call), || interceptor_panicked(false));
        NESTED.set(nested);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::tests::service::{ECHO, FEED};
    use std::sync::{Arc, OnceLock};

    fn new(method: &'static MethodName, of_client: Option<Duration>) -> ClientCall {
        ClientCall::new(method, CallOptions::new(), of_client, Inherited::default(), Time(0))
    }

    #[test]
    fn stream_without_time_limit_has_no_deadline() {
        let later = Time(0) + Duration::from_millis(1);
        let deadline = |call: ClientCall, of_client| {
            call.into_parts(later).0.stream_deadline(of_client, Inherited::default(), later)
        };
        assert_eq!(new(FEED, None).timeout(), Duration::MAX);
        assert_eq!(deadline(new(FEED, None), None), Time::MAX);
        let limit = Some(Duration::from_secs(1));
        assert_eq!(deadline(new(FEED, limit), limit), Time(0) + Duration::from_secs(1));
    }

    #[test]
    fn call_through_recursive_interceptor_is_refused() {
        let itself = Arc::new(OnceLock::new());
        let same: Arc<OnceLock<ClientInterceptors>> = Arc::clone(&itself);
        let all = ClientInterceptors::NONE.with(Arc::new(move |_: &mut ClientCall| {
            same.get().map_or(Ok(()), |all| all.run_nested(&mut new(ECHO, None)))
        }));
        itself.set(all.clone()).unwrap();
        for _ in 0..2 {
            let status = all.run_nested(&mut new(ECHO, None)).unwrap_err();
            assert_eq!((status.code(), status.may_have_run()), (Code::Internal, false));
            assert!(status.to_string().contains("pass through itself"), "{status}");
        }
    }
}
