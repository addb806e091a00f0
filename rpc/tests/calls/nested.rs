//! Values that are nested deep: refused before decoding them overflows a stack.

use crate::common::pair;
use serde::{Deserialize, Serialize};
use std::thread;
use trunkline::{Code, Reason, Status, block_on};

/// A page so large that neither a poller's stack nor one of [`SMALL_STACK`] bytes has room for [`DEEP`] levels.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Page {
    wide: [[[u64; 16]; 16]; 2],
    below: Vec<Self>,
}

const DEEP: u32 = 120;
const SMALL_STACK: usize = 256 << 10;

fn page(depth: u32) -> Page {
    (0..depth).fold(Page::default(), |page, _| Page { below: vec![page], ..Page::default() })
}

#[trunkline::service(name = "tests.Nested", version = 1)]
trait Nested {
    async fn put(&self, page: Page) -> Result<usize, Status>;
    async fn make(&self, depth: u32) -> Result<Page, Status>;
}

struct Pages;

impl Nested for Pages {
    async fn put(&self, page: Page) -> Result<usize, Status> {
        Ok(page.below.len())
    }
    async fn make(&self, depth: u32) -> Result<Page, Status> {
        Ok(page(depth))
    }
}

/// Runs `code` on a thread with a stack of the given size.
fn on_stack<T: Send>(bytes: usize, code: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(bytes).spawn_scoped(scope, code);
        thread.unwrap().join().unwrap()
    })
}

#[test]
fn nested_arguments_and_replies_that_do_not_fit_the_stack_are_refused() {
    let (server, node) = pair(NestedServer::new(Pages));
    let client = NestedClient::connect(&node, server.local_address()).unwrap();
    // Encoding them takes less of the stack, but is the caller's to afford.
    let put = |depth| on_stack(64 << 20, || block_on(client.put(page(depth))));
    let refused = put(DEEP).unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (Code::InvalidArgument, Some(Reason::BadArguments)));
    assert!(refused.message().contains("nested") && refused.message().contains("stack"), "{refused}");
    assert!(!refused.may_have_run());
    assert_eq!(put(2), Ok(1), "the server goes on");

    let make = |depth, stack| on_stack(stack, || block_on(client.make(depth)).map(|page| page.below.len()));
    let refused = make(20, SMALL_STACK).unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (Code::Internal, Some(Reason::BadReply)));
    assert!(refused.message().contains("nested") && refused.message().contains("stack"), "{refused}");
    assert_eq!(make(20, 64 << 20), Ok(1), "a larger stack has room");
}
