//! Ending connections and endpoints.

use super::Control;
use super::endpoint::{PendingCmEventKind, refusal};
use crate::device::shards::reach::Reach;
use trunkline_verbs::{CmIdNumber, Time, VerbsError};

impl Control {
    /// Ends a connection.
    pub(in crate::device) fn disconnect(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        now: Time,
    ) -> Result<(), VerbsError> {
        let none = VerbsError::Invalid("the endpoint has no connection");
        let connection = self.connections.endpoint(id)?.connection.ok_or(none)?;
        self.connections.machine().disconnect(now.0, connection).map_err(refusal)?;
        self.fail_attached(shards, id);
        self.finish(shards, now);
        Ok(())
    }

    /// Disconnects all endpoints when the process ends. The program gets no event, and only the device's lock
    /// is taken: the program may have been interrupted anywhere.
    pub(in crate::device) fn disconnect_all(&mut self, shards: &mut Reach<'_>, now: Time) {
        self.connections.machine().disconnect_all(now.0);
        self.gather_cm(shards, now);
        shards.first().send(now);
        // A peer at this process's address gets its DREQ through this process, which holds port 4791. The
        // DREQ is not repeated.
        shards.first().link_mut().forward_last();
        self.qps.addresses().ports_end();
    }

    /// Destroys an endpoint that the program has dropped. Its QP is left alone.
    pub(in crate::device) fn drop_endpoint(&mut self, shards: &mut Reach<'_>, id: CmIdNumber, now: Time) {
        let Some(endpoint) = self.connections.remove(id) else { return };
        // Connection requests that the program has not seen are refused along with their listener, since no
        // program is left to accept them.
        for event in endpoint.channel.extract(|event| event.id == id) {
            if let PendingCmEventKind::ConnectRequest { new, .. } = event.kind {
                self.drop_endpoint(shards, new, now);
            }
        }
        if let Some(listener) = endpoint.listener {
            let _gone = self.connections.machine().unlisten(listener);
        }
        if let Some(connection) = endpoint.connection {
            self.connections.machine().release(now.0, connection);
        }
        self.finish(shards, now);
    }

    /// Sends the packets that the operation has caused.
    pub(super) fn finish(&mut self, shards: &mut Reach<'_>, now: Time) {
        self.serve_cm(shards, now);
        shards.flush(now);
    }
}
