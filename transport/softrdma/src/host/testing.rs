//! Members of a host for tests.

use super::Host;
use std::sync::Arc;
use trunkline_testkit::Folder;

/// Returns members that share a runtime directory, `run` in the folder.
pub(crate) fn hosts<const N: usize>() -> (Folder, [Arc<Host>; N]) {
    let folder = Folder::new().unwrap();
    let members = [(); N].map(|()| Host::join(Some(&folder.join("run"))).unwrap());
    (folder, members)
}
