//! Garbage at the UDP port of a running exchange. `deploy/checks/40-garbage.sh` runs this program.
//!
//! ```text
//! garbage run FLOOD [--packets N] [--seconds S]     FLOOD: random | stale | right
//! garbage node OWN PEER PORT [CAPTURE]              one side of an exchange; started by `run`
//! ```
//!
//! `run` starts two pairs of processes that exchange SENDs, WRITEs, READs and atomics over XRC and RC and
//! compare every byte. One of each pair writes a capture; from it `run` takes the packets that it forges and
//! sends to the other. Those two share an address: one of them forwards packets to port 4791 for the other.
//! Some connections are bystanders: no forged packet ever names their QPs.
//!
//! | flood | sent | must hold |
//! |---|---|---|
//! | `random` | random bytes | no wrong byte, no broken connection, bounded memory and slow-down |
//! | `stale` | real packets changed, their ICRC left as it was | the same |
//! | `right` | real packets changed, their ICRC made right | bystanders as above; no memory without the
//! access right is changed; new connections work |

mod exchange;
mod flood;
mod forge;
mod group;
mod judge;
mod line;
mod node;
mod run;
mod sender;
mod served;
mod tap;

use flood::Flood;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// The result of an operation whose errors end the program.
type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    trunkline_testkit::exit_code("garbage", dispatch(&arguments))
}

fn dispatch(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["node", own, peer, port, rest @ ..] => {
            let capture = rest.first().map(std::path::PathBuf::from);
            node::serve(own.parse()?, peer.parse()?, port.parse()?, capture)
        }
        ["run", flood, options @ ..] => {
            let flood = Flood::named(flood).ok_or("the flood is one of random, stale, right")?;
            let mut plan = run::Plan { flood, packets: 1_000_000, over: Duration::from_secs(20) };
            for pair in options.chunks(2) {
                match pair {
                    ["--packets", count] => plan.packets = count.parse()?,
                    ["--seconds", seconds] => plan.over = Duration::from_secs(seconds.parse()?),
                    other => return Err(format!("unknown argument {other:?}").into()),
                }
            }
            run::run(&plan)
        }
        _ => Err("usage: garbage run random|stale|right [--packets N] [--seconds S]".into()),
    }
}
