//! A future that is polled within a context.

use super::{Context, ambient};
use std::pin::Pin;
use std::task::{self, Poll};

/// A future that is polled within a context, from [`Context::scope`].
// It is boxed, since the crate has no `unsafe` by which a field could be pinned.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Scoped<F> {
    context: Context,
    future: Pin<Box<F>>,
}

impl<F> Scoped<F> {
    pub(super) fn new(context: Context, future: F) -> Self {
        Self { context, future: Box::pin(future) }
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<F::Output> {
        let _scope = ambient::Scope::enter(self.context.clone());
        self.future.as_mut().poll(task)
    }
}
