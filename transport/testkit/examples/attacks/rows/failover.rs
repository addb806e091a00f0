//! Kills a server of a balanced client. The calls are idempotent, so that the other server can serve them.

use crate::honest::{Party, Setup};
use crate::{Outcome, Plan};
use std::time::Duration;
use trunkline_testkit::{Claims, Folder, Numbers};

/// Number of rounds, each with new processes.
const ROUNDS: usize = 20;
/// Duration of each phase. The first phase precedes the measurements, the second has no kill, and the third follows a kill.
const OVER: Duration = Duration::from_millis(300);
/// Time that a kill may add to the longest call.
const ADDED_US: u64 = 50_000;
/// Names of the longest call times in a tally.
const LONGEST: [&str; 2] = ["most_us", "large_most_us"];

/// Kills one of two servers, with calls that fail immediately while a server is away and with calls that wait.
pub(crate) fn run(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    for connect in ["fast", "wait"] {
        let (mut quiet, mut killed) = ([0; 2], [0; 2]);
        let ([mut failed, mut wrong, mut idle], mut failure) = ([0; 3], None);
        for number in 0..ROUNDS {
            let folder = Folder::new()?;
            let start = || Setup::new(&folder, plan).start();
            let (mut servers, mut client) = ([start()?, start()?], start()?);
            let [first, second] = servers.each_ref().map(|server| server.address);
            client.process.ask(&format!("balance {connect} {first} {second}"))?;
            calls(&mut client, &mut [0; 2])?;
            calls(&mut client, &mut quiet)?;
            let victim = &mut servers[number % 2].process;
            idle += u64::from(victim.numbers("qps")?["tgt"] == 0);
            victim.kill()?;
            let tally = calls(&mut client, &mut killed)?;
            failed += tally["failed"];
            wrong += tally["wrong"];
            failure = failure.or(client.log_line(&["call failed: "])?);
        }
        let failure = failure.map_or(String::new(), |line| format!("; the first: {line}"));
        let measured = format!(
            "{failed} calls failed, {wrong} were wrong, {idle} of {ROUNDS} servers had no session{failure}"
        );
        findings.claim(failed + wrong + idle == 0, connect, &measured);
        for (at, size) in ["small", "large"].into_iter().enumerate() {
            let (most, bound) = (killed[at], quiet[at] + ADDED_US);
            let measured =
                format!("longest call {most} us, without a kill {} us, at most {bound} us", quiet[at]);
            findings.timed(plan.strict, most <= bound, &format!("{connect}-{size}"), &measured);
        }
    }
    Ok(())
}

/// Lets the calls run for one phase. Raises `longest` to the longest times in the phase, including calls in flight at its
/// end. Returns the last tally.
fn calls(client: &mut Party, longest: &mut [u64; 2]) -> Outcome<Numbers> {
    std::thread::sleep(OVER);
    let (first, mut tally) = (client.tally()?, client.tally()?);
    let mut include = |tally: &Numbers| {
        for (most, name) in longest.iter_mut().zip(LONGEST) {
            *most = tally[name].max(*most);
        }
    };
    include(&first);
    include(&tally);
    let goes_on = |tally: &Numbers| ["small", "large"].iter().all(|size| tally[*size] > first[*size]);
    while !goes_on(&tally) && tally["failed"] == first["failed"] {
        std::thread::sleep(Duration::from_millis(1));
        tally = client.tally()?;
        include(&tally);
    }
    Ok(tally)
}
