//! Interceptors for calls to a service. They can change or refuse a call before its arguments are decoded, and observe its
//! outcome.
//!
//! Interceptors wrap the futures of the service's methods, so the dispatcher needs no code for them, and a service without
//! interceptors has no overhead. With interceptors, each call has a boxed future and a context.

use super::method::Outcome;
use super::{Failure, Request};
use crate::call::context::Context;
use crate::call::{EndHooks, Interceptors, interceptor_panicked};
use crate::executor::runtime_guard;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::Metadata;
use crate::wire::name::MethodName;
use std::borrow::Cow;
use std::mem;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;
use tracing::Span;
use trunkline_machine::rings::panics::{catch, catch_or};

/// Code that runs before the handler of a call, and can change, refuse or time the call.
///
/// Install it with the method `interceptor` of a generated server. Closures with the signature of [`Self::intercept`]
/// implement this trait.
///
/// ```
/// use trunkline::{ServerCall, Status};
/// # #[trunkline::service]
/// # trait Kv {
/// #     async fn get(&self, key: String) -> Result<String, Status>;
/// # }
///
/// fn guarded(kv: impl Kv + Send + Sync + 'static) -> KvServer {
///     KvServer::new(kv).interceptor(|call: &mut ServerCall| match call.metadata().get("token") {
///         Some("6f1d") => Ok(()),
///         _ => Err(Status::unauthenticated("no valid token")),
///     })
/// }
/// ```
///
/// Interceptors run in the order of their installation, on the poller's thread, which they must not block. When they run,
/// the request already counts as a running handler, and its metadata has been checked. A panic ends only the call, with
/// `Internal` and the reason `Panicked`.
pub trait ServerInterceptor: Send + Sync + 'static {
    /// Inspects and may change a call.
    ///
    /// # Errors
    /// Returning a status refuses the call. The call ends with this status and has not run. Its arguments are not decoded,
    /// and later interceptors do not run.
    fn intercept(&self, call: &mut ServerCall) -> Result<(), Status>;
}

impl<F> ServerInterceptor for F
where
    F: Fn(&mut ServerCall) -> Result<(), Status> + Send + Sync + 'static,
{
    fn intercept(&self, call: &mut ServerCall) -> Result<(), Status> {
        self(call)
    }
}

/// A call whose handler is about to start, passed to each [`ServerInterceptor`].
#[derive(Debug)]
pub struct ServerCall {
    method: &'static MethodName,
    context: Context,
    /// Metadata of the request as changed by interceptors; `None` if unchanged.
    metadata: Option<Metadata>,
    hooks: EndHooks,
    span: Span,
}

impl ServerCall {
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

    /// Returns true if the call has no reply.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.method.one_way
    }

    /// Returns the context that the handler gets, with the peer, the remaining time and the response metadata.
    /// [`Context::metadata`] returns changes by interceptors only after all interceptors have run.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the metadata of the request, with the changes by earlier interceptors.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata.as_ref().unwrap_or_else(|| self.context.metadata())
    }

    /// Returns the metadata that the handler sees, for modification. Remove entries that callers must not set, such as a
    /// user name that the interceptor inserts.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata.get_or_insert_with(|| self.context.metadata().clone())
    }

    /// Sets the span that is entered whenever the handler is polled, and in the handler's jobs in the worker pool.
    pub fn set_span(&mut self, span: Span) {
        self.span = span;
    }

    /// Registers a closure to run after the handler has ended and before the reply is sent. The closure gets the status if
    /// the handler failed, panicked, was refused, or was dropped (`Cancelled` or `DeadlineExceeded`). An error of the
    /// method's own type is passed as `Unknown`.
    ///
    /// The closure runs on the poller's thread, after closures that later interceptors have registered.
    pub fn on_end(&mut self, hook: impl FnOnce(Result<(), &Status>) + Send + 'static) {
        self.hooks.add(hook);
    }
}

/// The interceptors of a service.
pub(super) type ServerInterceptors = Interceptors<dyn ServerInterceptor>;

/// The future of a handler.
pub(super) type Handler = Pin<Box<dyn Future<Output = Outcome>>>;

/// A call to a service with interceptors.
pub(super) struct Intercepted {
    /// The handler, or the status of a refused call; `None` after the call has ended.
    started: Option<Result<Handler, Status>>,
    context: Context,
    hooks: EndHooks,
    span: Span,
}

impl Intercepted {
    /// Runs the interceptors and then creates the handler, unless the call is refused.
    pub(super) fn start(
        all: &ServerInterceptors,
        method: &'static MethodName,
        request: Request,
        run: impl FnOnce(Request) -> Handler,
    ) -> Self {
        let (metadata, hooks, span) = (None, EndHooks::default(), Span::none());
        let mut call = ServerCall { method, context: request.context(), metadata, hooks, span };
        let admitted =
            all.run(|interceptor| interceptor.intercept(&mut call), || interceptor_panicked(false));
        let ServerCall { context, metadata, hooks, span, .. } = call;
        if metadata.is_some() || !span.is_none() {
            context.change(metadata, span.clone());
            request.context_changed(&context);
        }
        let started = admitted.and_then(|()| catch_or(|| run(request), runtime_guard::panicked));
        Self { started: Some(started), context, hooks, span }
    }

    fn poll_handler(&mut self, task: &mut task::Context<'_>) -> Poll<Outcome> {
        let Self { started, span, .. } = self;
        match started.as_mut() {
            Some(Ok(handler)) => {
                let _entered = span.enter();
                let polled = catch_or(|| handler.as_mut().poll(task), runtime_guard::panicked);
                polled.unwrap_or_else(|status| Poll::Ready(Err(Failure::Node(status))))
            }
            Some(Err(status)) => Poll::Ready(Err(Failure::Node(status.clone()))),
            None => Poll::Pending,
        }
    }
}

impl Future for Intercepted {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Outcome> {
        let outcome = task::ready!(self.poll_handler(task));
        let ended = match &outcome {
            Ok(_) => self.hooks.run(Ok(())),
            Err(Failure::Handler(status) | Failure::Node(status)) => self.hooks.run(Err(status)),
            Err(Failure::Error(_)) => self.hooks.run(Err(&Status::of_own_error())),
        };
        let may_have_run = !matches!(&outcome, Err(Failure::Node(status)) if !status.may_have_run());
        Poll::Ready(match ended {
            Ok(()) => outcome,
            Err(_) => Err(Failure::Node(interceptor_panicked(may_have_run))),
        })
    }
}

impl Drop for Intercepted {
    fn drop(&mut self) {
        let (started, _entered) = (self.started.take(), self.span.enter());
        // The call has ended, so a panic is ignored.
        let _dropped = catch(|| drop(started));
        if !self.hooks.is_empty() {
            let is_late = self.context.time_left() == Some(Duration::ZERO);
            let (code, reason) = match is_late {
                true => (Code::DeadlineExceeded, Reason::Expired),
                false => (Code::Cancelled, Reason::Cancelled),
            };
            let status = Status::ran(code, "the handler was dropped before its end").because(reason);
            // The result of the hooks is ignored because the call has no reply.
            let _ended = mem::take(&mut self.hooks).run(Err(&status));
        }
    }
}
