//! The demo as a user runs it: whole, and with either half killed or stopped.

mod crash;
mod main_job;
mod scene;
