//! Processes killed under load. `deploy/checks/50-deaths.sh` runs this program.
//!
//! ```text
//! deaths run SCENARIO          receiver | sender | creator | owner | holder
//! deaths receive OWN [FILE]    a process that receives; started by `run`
//! deaths send OWN FIRST        a process that sends streams from this number on; started by `run`
//! ```
//!
//! Members are processes at one address whose XRC domain belongs to one file; a peer at another address
//! sends to their SRQs and numbers every message, so that each member detects messages that are missing,
//! duplicated or wrong. Then one process is killed, and `run` reports which streams continued and after how
//! long.
//!
//! | scenario | killed | must hold |
//! |---|---|---|
//! | `receiver` | the only process at an address | its peer gets an error; a successor at the address is
//! reachable at once |
//! | `sender` | one of two peers | the other continues without interruption |
//! | `creator` | the member that created a shared TGT | messages to the others continue through it, or it
//! ends in ERR and is created again |
//! | `owner` | the member whose SRQ is in use | the TGT responds by contract G7; other TGTs continue |
//! | `holder` | the member that holds port 4791 | the others continue; a new connection works |

mod qp;
mod receive;
mod role;
mod scenarios;
mod send;
mod testbed;

use std::error::Error;
use std::process::ExitCode;

/// The result of an operation whose errors end the program.
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
