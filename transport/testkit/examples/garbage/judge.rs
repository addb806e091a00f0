//! The claims about a run: what the flood must affect, and what it must not.

use crate::exchange::All;
use crate::flood::Flood;
use crate::run::Plan;
use std::time::Duration;
use trunkline_testkit::{Claims, Numbers};

/// Time within which all lines must be up again after a break, for a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Maximum growth of private memory, however long the flood: socket buffers, tables of addresses, and memory
/// kept by the allocator.
const GROWTH_KIB: u64 = 16 * 1024;
/// Maximum growth including the memory shared by all processes of the host. Its tables are 39 MiB, whose
/// pages are mapped at the first access. Packets for random numbers access all of them.
const SHARED_GROWTH_KIB: u64 = 64 * 1024;

/// Claims that the flood reached the victims, and reports its effects.
pub(super) fn arrived(claims: &mut Claims, plan: &Plan, sent: u64, took: Duration, counters: &Numbers) {
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    let reached = of("packets_received") + of("drop_receive_queue_full") + of("drop_receive_too_long");
    let dropped: Vec<String> = counters
        .iter()
        .filter(|(name, value)| **value > 0 && (name.starts_with("drop_") || name.starts_with("cm_")))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let seen = match plan.flood {
        Flood::Random | Flood::Stale => of("drop_bad_icrc") > 0,
        Flood::Right => of("fatal_nak_sent") > 0 && of("drop_unknown_qp") > 0,
    };
    claims.claim(
        reached >= sent / 10 * 9 && sent == plan.packets && seen,
        "arrived",
        &format!("{sent} sent in {:.1} s; {}", took.as_secs_f64(), dropped.join(", ")),
    );
}

pub(super) fn judge(
    claims: &mut Claims,
    flood: Flood,
    before: &All,
    after: &All,
    ended: &All,
    fresh: Option<Duration>,
) {
    let bad = |what: &All, group: &str| {
        what.sum(&format!("{group}_wrong")) + what.sum(&format!("{group}_received_wrong"))
    };
    let grew = |name: &str| after.sum(name).saturating_sub(before.sum(name));
    claims.claim(
        bad(ended, "bystander") == 0 && ended.sum("bystander_broken") == 0 && grew("bystander_rounds") > 0,
        "bystanders",
        &format!(
            "{} rounds under the flood, {} with a wrong byte, {} breaks",
            grew("bystander_rounds"),
            bad(ended, "bystander"),
            ended.sum("bystander_broken"),
        ),
    );
    if flood == Flood::Right {
        println!(
            "     attacked connections: {} breaks, {} made again, the slowest after {} ms, {} rounds",
            grew("attacked_broken"),
            grew("attacked_reconnected"),
            after.0.iter().map(|side| side["attacked_longest_ms"]).max().unwrap_or(0),
            grew("attacked_rounds"),
        );
    } else {
        claims.claim(
            bad(ended, "attacked") == 0 && ended.sum("attacked_broken") == 0,
            "exchange",
            &format!(
                "{} rounds under the flood, {} with a wrong byte, {} breaks",
                grew("attacked_rounds"),
                bad(ended, "attacked"),
                ended.sum("attacked_broken"),
            ),
        );
    }
    claims.claim(
        ended.sum("attacked_harmed") + ended.sum("bystander_harmed") == 0,
        "guards",
        "memory without remote access, read-only memory, bytes after receives",
    );
    // `renew` has reset the counts of attacked lines.
    let clean = bad(ended, "attacked") == 0 && ended.sum("attacked_broken") == 0;
    claims.claim(
        fresh.is_some_and(|took| took < AT_ONCE) && clean,
        "new-connections",
        &format!(
            "all up after {} ms, {} with a wrong byte, {} breaks",
            fresh.map_or(-1, |took| i128::try_from(took.as_millis()).unwrap_or(-1)),
            bad(ended, "attacked"),
            ended.sum("attacked_broken"),
        ),
    );
}

/// Claims that no process needs much more memory than before.
pub(super) fn memory(claims: &mut Claims, before: Vec<[u64; 2]>, after: Vec<[u64; 2]>) {
    let memory: Vec<_> = before.into_iter().zip(after).collect();
    let bounded = memory.iter().all(|([all_then, own_then], [all, own])| {
        *own <= own_then + GROWTH_KIB && *all <= all_then + SHARED_GROWTH_KIB
    });
    let shown: Vec<String> = memory
        .iter()
        .map(|([all_then, own_then], [all, own])| {
            format!("{own_then} -> {own} KiB of its own, {all_then} -> {all} in all")
        })
        .collect();
    claims.claim(bounded, "memory", &shown.join(", "));
}
