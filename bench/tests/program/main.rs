//! The benchmark as a program: output and exit codes of its subcommands. No test checks a time.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod across;
mod commands;
mod compare;
mod report;

/// Prevents concurrent measurements. Programs that spin on the same cores would wait for each other's time slices.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static MACHINE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
