//! Finds the method of a request by hash or number, and compares it with the caller's expectation.

use super::{Dispatch, Served};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{Header, MethodRef, RequestHeader};
use crate::wire::name::{ServiceName, Streams};
use trunkline_machine::mutant;

impl Dispatch {
    /// Returns the requested method if its kind (unary, one-way or streaming) matches the request's.
    ///
    /// Without this check, the handler of a one-way call to a unary method would outlive its session, and a unary call to a
    /// one-way method would treat the end of the handler as success.
    pub(super) fn find(&self, header: &RequestHeader) -> Result<u32, Status> {
        let RequestHeader { method_ref, one_way, opens, .. } = *header;
        let is_asked = |streams: Streams| match method_ref {
            MethodRef::Number(_) => streams.any() == opens,
            MethodRef::Method(method) => streams == method.streams,
        };
        let fits = |served: &Served| served.one_way == one_way && is_asked(served.streams);
        let table = match method_ref {
            MethodRef::Number(number) => self.by_number.get(usize::from(number)).copied().flatten(),
            MethodRef::Method(method) => self
                .index
                .get(&method.method)
                .filter(|(_, owner)| {
                    owner.hash == method.service
                        && owner.codec == method.schema.codec
                        && owner.has_version_of(method.schema)
                })
                .map(|(table, _)| *table),
        };
        table
            .filter(|table| self.served(*table).is_some_and(fits))
            .ok_or_else(|| self.not_found(method_ref, table))
    }

    /// Compares the shapes of a method's types with the caller's shapes if both sides have the same schema version. The
    /// author of the service ensures that different versions are compatible. A refusal does not contain the method's number.
    pub(super) fn compare(&self, header: &RequestHeader, table: u32, message: &[u8]) -> Result<u32, Status> {
        let MethodRef::Method(method) = header.method_ref else { return Ok(table) };
        let compared = if mutant!(shapes_of_another_method_are_compared) { 0 } else { table };
        let shapes = self.served(compared).and_then(|served| served.shapes?.traced());
        let is_same = |service: &&ServiceName| service.version == method.schema.version;
        let same_version = self.services.get(&method.service).copied().filter(is_same);
        let Some((shapes, _)) = shapes.zip(same_version) else { return Ok(table) };
        match shapes.differs_at(&Header::shapes(message)) {
            Some(position) if header.one_way => Err(other_shape(shapes.part(position))),
            Some(position) => Err(other_shape(shapes.refusal(position))),
            None => Ok(table),
        }
    }

    /// Returns the status of a request whose method does not exist or has another kind.
    #[cold]
    pub(super) fn not_found(&self, method_ref: MethodRef, other: Option<u32>) -> Status {
        let no_method = |text: String| Status::not_run(Code::Unimplemented, text).because(Reason::NoMethod);
        if let Some(served) = other.and_then(|table| self.served(table)) {
            return no_method(served.kind().to_owned());
        }
        let method = match method_ref {
            MethodRef::Number(number) => return no_method(format!("number {number}")),
            MethodRef::Method(method) => method,
        };
        match self.services.get(&method.service) {
            None => Status::not_run(Code::Unimplemented, "").because(Reason::NoService),
            Some(service) if !service.has_version_of(method.schema) => {
                Status::not_run(Code::FailedPrecondition, service.versions()).because(Reason::OtherSchema)
            }
            Some(service) if service.codec != method.schema.codec => {
                Status::not_run(Code::FailedPrecondition, service.codec()).because(Reason::OtherCodec)
            }
            Some(_) => no_method(String::new()),
        }
    }
}

/// Returns the status of a request whose types have other shapes.
#[cold]
fn other_shape(text: String) -> Status {
    Status::not_run(Code::FailedPrecondition, text).because(Reason::OtherShape)
}
