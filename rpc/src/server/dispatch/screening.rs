//! Authorizes requests. Large requests are authorised when they are announced, others when they arrive.

use super::Dispatch;
use crate::server::authorize::{Authorizers, IncomingCall, RefusalLog};
use crate::server::caller::{Caller, Key, NOT_SERVED};
use crate::status::Status;
use crate::wire::frame::{MethodRef, RequestHeader};
use std::sync::OnceLock;
use trunkline_transport::{Origin, Screening, Transport};

impl Dispatch {
    /// Sets the program's authorizers.
    pub(crate) fn authorize_by(&mut self, authorizers: &Authorizers) {
        let some = Some(authorizers).filter(|authorizers| !authorizers.is_empty());
        self.authorizers = some.map(|authorizers| Box::new((authorizers.clone(), RefusalLog::default())));
    }

    /// Returns true if the node has authorizers.
    #[inline]
    pub(crate) fn has_authorizers(&self) -> bool {
        self.authorizers.is_some()
    }

    /// Authorizes a request, and replies if it is refused. `head` contains all bytes before the encoded part. A request to a
    /// method that this node does not serve is refused as it would be without authorizers.
    #[cold]
    #[inline(never)]
    pub(crate) fn screen(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        header: &RequestHeader,
        head: &[u8],
    ) -> Screening {
        let RequestHeader { method_ref, one_way, metadata, call, .. } = *header;
        // Version and codec are ignored, so that a refused caller gets no information about them.
        let table = match method_ref {
            MethodRef::Number(number) => self.by_number.get(usize::from(number)).copied().flatten(),
            MethodRef::Method(method) => self.index.get(&method.method).map(|(table, _)| *table),
        };
        let served = table.and_then(|table| self.served(table));
        let streams = served.map(|served| served.streams).unwrap_or_default();
        let key = Key::new(from, call);
        let row = table.unwrap_or(NOT_SERVED);
        let caller = Caller { one_way, metadata, table: row, streams, ..Caller::of_one_way(key) };
        let Some((table, method)) = table.zip(served.map(|served| served.name)) else {
            let status = self.check_phase().err().unwrap_or_else(|| self.not_found(method_ref, None));
            self.refuse_unfound(transport, caller, method_ref, status);
            return Screening::Refused;
        };
        let metadata = match self.parse_metadata(metadata, head, head.len()) {
            Ok(metadata) => metadata,
            Err(status) => {
                self.refuse_call(transport, caller, status);
                return Screening::Refused;
            }
        };
        self.inbox.running().handler(table);
        let call = IncomingCall {
            peer: self.current.peer_of(from.peer),
            method,
            metadata: &metadata,
            cause: OnceLock::new(),
        };
        let Err(status) = self.authorize(&call) else { return Screening::Accepted };
        let cause = call.cause.into_inner();
        self.inbox.lifecycle().counters.unauthorised.add();
        let log = self.authorizers.as_mut().and_then(|all| all.1.line(from.peer, transport.now()));
        if let Some(suppressed) = log {
            tracing::warn!(
                peer = %from.peer,
                %method,
                %status,
                cause,
                counter = "requests_unauthorised",
                suppressed,
                "call not authorised"
            );
        }
        if one_way {
            self.count_refused(table, from.peer, &status);
            self.inbox.lifecycle().counters.one_way_failed.add();
        } else {
            self.refuse_call(transport, caller, status);
        }
        Screening::Refused
    }

    /// Calls the program's authorizers for a request.
    fn authorize(&self, call: &IncomingCall<'_>) -> Result<(), Status> {
        let Some(authorizers) = &self.authorizers else { return Ok(()) };
        let _inside = self.runtime_guard.enter();
        authorizers.0.ask(call)
    }
}
