//! Charges the memory of decoded arguments to the calling peer until the handler ends, because the peer determines the size.
//!
//! The dispatcher calls the current call's `begin` before each poll of a handler and [`ArgumentMemory::end`] after it, and
//! releases the result of `end` when the handler has ended. Code that keeps a request may decode arguments outside of a
//! poll. Memory for these arguments is subject to the limit per peer, but is not charged.

use crate::call::context::{Context, CurrentCall};
use crate::codec::{self, Allowance, DecodeArguments, DecodeError};
use crate::node::budgets::{ARGUMENTS, DECODED_BYTES};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use trunkline_machine::mutant;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{Leaves, PeerKey};

/// A poller's share of the budget, and the charge of the handler that is being polled.
#[derive(Debug)]
pub(crate) struct ArgumentMemory {
    share: RefCell<Share>,
    call: Rc<CurrentCall>,
    /// Charge of the current handler in this poll, in bytes.
    charged: Cell<usize>,
}

impl ArgumentMemory {
    /// Creates the memory of a poller. `call` is the poller's current call.
    pub(crate) fn new(share: Share, call: Rc<CurrentCall>) -> Self {
        Self { share: RefCell::new(share), call, charged: Cell::new(0) }
    }

    /// Returns the context of the handler that is being polled.
    pub(super) fn context(&self) -> Context {
        self.call.context().unwrap_or_else(Context::detached)
    }

    /// Changes the charge to a peer from `from` bytes to `to` bytes. Returns false if this exceeds the peer's limit.
    pub(crate) fn recharge(&self, peer: PeerKey, from: usize, to: usize) -> bool {
        self.recharge_leaving(peer, from, to, Leaves::Nothing)
    }

    /// Like [`Self::recharge`], but leaves part of the budget for other uses.
    pub(crate) fn recharge_leaving(&self, peer: PeerKey, from: usize, to: usize, leaves: Leaves) -> bool {
        if to > from {
            return self.share.borrow_mut().take_leaving(peer, to - from, leaves).is_ok();
        }
        self.put_back(peer, from - to);
        true
    }

    /// Records that an interceptor has changed the context.
    pub(super) fn context_changed(&self, context: &Context) {
        self.call.changed(context);
    }

    /// Ends a poll of the handler, and returns the handler's charge in bytes.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.charged.take()
    }

    /// Releases the charge of a handler that has ended.
    #[inline]
    pub(super) fn put_back(&self, peer: PeerKey, bytes: usize) {
        if bytes > 0 && !mutant!(decoded_bytes_stay_charged) {
            self.share.borrow_mut().put_back(peer, bytes);
        }
    }

    /// Handles the loss of a peer.
    pub(super) fn leave(&self, peer: PeerKey) {
        self.share.borrow_mut().leave(peer);
    }

    /// Returns the charges, including those in `counted`.
    pub(super) fn ledger(&self, counted: BTreeMap<PeerKey, usize>) -> BudgetLedger {
        self.share.borrow().ledger(counted)
    }

    /// Charges the metadata of the request whose handler is about to start.
    pub(super) fn charge_metadata(&self, peer: PeerKey, bytes: usize) -> Result<(), Status> {
        self.share.borrow_mut().take(peer, bytes).map_err(|exhausted| {
            let text = format!(
                "the metadata cannot be decoded: {exhausted} (setting {DECODED_BYTES} of the server)"
            );
            Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded)
        })?;
        self.charged.set(self.charged.get() + bytes);
        Ok(())
    }

    /// Decodes arguments. `names` contains the names of the parameters.
    pub(super) fn decode<D: DecodeArguments>(
        &self,
        bytes: &[u8],
        names: &[&'static str],
    ) -> Result<D::Values, Status> {
        let charge = Charge { memory: self, peer: self.call.peer(), bytes: Cell::new(0) };
        let arguments = codec::decode_arguments::<D>(bytes, names, &charge).map_err(|error| {
            let (code, reason) = match error {
                DecodeError::Malformed(_) => (Code::InvalidArgument, Reason::BadArguments),
                DecodeError::TooLarge(_) => (Code::ResourceExhausted, Reason::TooLarge),
                DecodeError::Exhausted(_) => (Code::ResourceExhausted, Reason::Overloaded),
            };
            Status::not_run(code, format!("the arguments cannot be decoded: {error}")).because(reason)
        })?;
        charge.keep();
        Ok(arguments)
    }
}

/// The charge for one message. Released if decoding fails or panics.
struct Charge<'m> {
    memory: &'m ArgumentMemory,
    /// The peer that is charged; `None` outside of handlers.
    peer: Option<PeerKey>,
    bytes: Cell<usize>,
}

impl Charge<'_> {
    /// Transfers the charge to the handler, after decoding.
    fn keep(self) {
        if self.peer.is_some() {
            let charged = self.memory.charged.get();
            self.memory.charged.set(charged + self.bytes.take());
        }
    }
}

impl Allowance for Charge<'_> {
    fn more(&self, bytes: usize) -> Result<(), DecodeError> {
        let mut share = self.memory.share.borrow_mut();
        let (sum, limit) = (self.bytes.get().saturating_add(bytes), share.limit().per_peer);
        let taken = self.peer.map_or(Ok(()), |peer| share.take(peer, bytes));
        match taken {
            Ok(()) if self.peer.is_some() || sum <= limit => {
                self.bytes.set(sum);
                Ok(())
            }
            Err(exhausted) if sum <= limit => {
                Err(DecodeError::Exhausted(format!("{exhausted} (setting {DECODED_BYTES} of the server)")))
            }
            _ => Err(DecodeError::TooLarge(format!(
                "they alone exceed one peer's budget of {ARGUMENTS} ({limit}, setting {DECODED_BYTES} of the server)"
            ))),
        }
    }

    fn less(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
        if let Some(peer) = self.peer {
            self.memory.share.borrow_mut().put_back(peer, bytes);
        }
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        match self.bytes.get() {
            0 => {}
            left => self.less(left),
        }
    }
}
