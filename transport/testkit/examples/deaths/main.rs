//! Processes killed under load: what `deploy/checks/50-deaths.sh` runs.
//!
//! ```text
//! deaths run SCENARIO          receiver | sender | creator | owner | holder
//! deaths receive OWN [FILE]    a process that receives; started by `run`
//! deaths send OWN FIRST        a process that sends streams from this number on; started by `run`
//! ```
//!
//! Members are processes at one address whose XRC domain is that of one file; a peer at another address
//! sends to their SRQs and numbers every message, so that each member sees what is missing, doubled or
//! wrong. Then one process is killed, and `run` says what went on and after how long.
//!
//! | scenario | killed | must hold |
//! |---|---|---|
//! | `receiver` | the only process at an address | its peer is told; a successor at the address is reached at once |
//! | `sender` | one of two peers | the other goes on without a break |
//! | `creator` | the member that created a shared TGT | messages to the others go on through it, or it ends in ERR and is made anew |
//! | `owner` | the member whose SRQ is in use | the TGT answers as contract G7 says; other TGTs go on |
//! | `holder` | the member that holds port 4791 | the others go on; a new connection works |

mod qp;
mod receive;
mod role;
mod scenarios;
mod send;
mod testbed;

use std::error::Error;
use std::process::ExitCode;

/// What may go wrong in a program that nobody recovers from.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    trunkline_testkit::exit_code("deaths", dispatch(&arguments))
}

fn dispatch(arguments: &[String]) -> Outcome<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["run", scenario] => scenarios::run(scenario),
        ["receive", own] => receive::serve(own.parse()?, None),
        ["receive", own, file] => receive::serve(own.parse()?, Some(file.as_ref())),
        ["send", own, first] => send::serve(own.parse()?, first.parse()?),
        _ => Err("usage: deaths run receiver|sender|creator|owner|holder".into()),
    }
}
