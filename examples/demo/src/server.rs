//! Server side, which serves the tree.

use crate::cli::Demo;
use crate::failure::Failure;
use crate::service::{Entry, PIECE, TreeServer, Wire};
use crate::signals::Stop;
use crate::tree::{CHECKOUT_SKIPS, Tree};
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use trunkline::{Bytes, Node, Status};

/// Total length of paths, in bytes, at which a page of [`crate::service::Tree::list`] ends.
const LIST_BYTES: usize = 8 << 10;

/// Serves the tree until a stop is requested.
pub(crate) fn run(demo: &Demo, stop: &Stop) -> Result<u8, Failure> {
    let root = demo.root();
    let skips = if demo.tree.is_none() { CHECKOUT_SKIPS } else { &[] };
    let tree = Arc::new(Tree::walk(&root, skips).map_err(Failure::file(&root))?);
    let this_node = Arc::new(OnceLock::new());
    let handler = Handler { tree, node: this_node.clone() };
    let node = demo
        .node(demo.server_address)?
        .serve(TreeServer::new(handler))
        .start()
        .map_err(|error| Failure::Start(error.to_string()))?;
    let address = node.local_address();
    let node = this_node.get_or_init(|| node);
    let mut stdout = std::io::stdout();
    writeln!(stdout, "listening {address}")?;
    stdout.flush()?;
    while stop.wait(Duration::from_secs(3600)).is_none() {}
    node.shutdown();
    Ok(0)
}

/// Handler of the calls. Each poller has a separate clone.
#[derive(Debug, Clone)]
struct Handler {
    tree: Arc<Tree>,
    node: Arc<OnceLock<Node>>,
}

impl crate::service::Tree for Handler {
    async fn list(&self, first: u32) -> Result<Vec<Entry>, Status> {
        let mut bytes = 0;
        let rest = self.tree.files().get(usize::try_from(first).unwrap_or(usize::MAX)..).unwrap_or_default();
        let page = rest.iter().take_while(|file| {
            let fits = bytes < LIST_BYTES;
            bytes += file.path.len() + 16;
            fits
        });
        Ok(page.cloned().collect())
    }

    async fn read(&self, file: u32, offset: u64, length: u32) -> Result<Bytes, Status> {
        if length > PIECE {
            return Err(Status::invalid_argument(format!("at most {PIECE} bytes in one read")));
        }
        let tree = self.tree.clone();
        // Reading from a disk may be slow, so a thread pool reads the file while the poller handles other calls.
        match blocking::unblock(move || tree.read(file, offset, length)).await {
            Some(Ok(bytes)) => Ok(bytes.into()),
            Some(Err(error)) => Err(Status::internal(format!("file {file}: {error}"))),
            None => Err(Status::not_found(format!("no file {file}"))),
        }
    }

    async fn ping(&self, number: u64) -> Result<u64, Status> {
        Ok(number)
    }

    async fn wire(&self) -> Result<Wire, Status> {
        let node = self.node.get().ok_or_else(|| Status::unavailable("the node is starting"))?;
        let report = node.report();
        Ok(Wire { rnr: report.rnr, retransmits: report.retransmits })
    }
}
