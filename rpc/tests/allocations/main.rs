//! Allocations by calls, and heap memory used by decoding.
//!
//! These tests are a separate binary, because the counting allocator counts for the whole process.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod calls;
mod decoding;
mod policy;

use trunkline_testkit::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

// There is only one test, because the allocator counts the allocations of all threads.
#[test]
fn allocations_are_counted() {
    decoding::heap_of_decoding_is_counted();
    policy::decisions_do_not_allocate();
    calls::small_call_does_not_allocate();
}
