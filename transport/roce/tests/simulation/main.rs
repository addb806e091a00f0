//! Seeded simulation of the engine. Thousands of small networks lose, duplicate, reorder, corrupt and delay packets. Nodes
//! pause and restart, receive queues run empty, and placements complete late.
//!
//! Every run checks that each message arrives once, in order and complete, that no completion is lost or
//! duplicated, that atomics execute once, that READs return the target's bytes, and that all work ends.
//!
//! `TRUNKLINE_SIM_RUNS` sets the number of runs, and `TRUNKLINE_SIM_SEED` replays one run.

mod link;
mod peer;
mod plan;
mod random;
mod target;
mod work;
mod world;

#[cfg(test)]
mod tests {
    use crate::world::{Summary, World};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    const RUNS: u64 = 10_000;

    fn number(name: &str) -> Option<u64> {
        std::env::var(name).ok().map(|text| text.parse().expect("a number"))
    }

    fn run(seed: u64, replayed: bool) -> Summary {
        let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed, replayed).run()));
        outcome.unwrap_or_else(|panic| {
            eprintln!(
                "replay with: TRUNKLINE_SIM_SEED={seed} cargo test -p trunkline-roce --test simulation"
            );
            resume_unwind(panic)
        })
    }

    #[test]
    fn every_network_delivers_exactly_once() {
        if let Some(seed) = number("TRUNKLINE_SIM_SEED") {
            eprintln!("{:?}", run(seed, true));
            return;
        }
        let runs = number("TRUNKLINE_SIM_RUNS").unwrap_or(RUNS);
        let mut total = Summary::default();
        for seed in 0..runs {
            total.add(&run(seed, false));
        }
        eprintln!("{runs} runs: {total:?}");
        // The runs must have exercised each kind of event.
        if runs >= 1000 {
            let rare = [
                ("retransmits", total.retransmits),
                ("probes", total.probes),
                ("timeouts", total.timeouts),
                ("sequence NAKs", total.sequence_naks),
                ("RNR NAKs", total.rnr_naks),
                ("implied losses", total.implied_losses),
                ("duplicates", total.duplicates),
                ("late placements", total.late_placements),
                ("restarts", total.restarts),
                ("refusals", total.refusals),
                ("atomics", total.atomics),
                ("pieces of READs", total.split_reads),
                ("joined packets", total.joined),
            ];
            for (what, count) in rare {
                assert!(count > 100, "only {count} {what} in {runs} runs");
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_runs() {
        for seed in [3, 14, 159] {
            assert_eq!(run(seed, false), run(seed, false), "seed {seed}");
        }
    }
}
