//! The demo as run by a user: whole, and with either half killed or stopped.

mod crash;
mod main_job;
mod scene;
