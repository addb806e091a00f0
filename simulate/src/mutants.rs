//! The deliberate faults built into the code, and the campaign that must catch each.

use crate::campaign::{CampaignPlan, Summary, campaign};
use crate::interrupt::Interrupt;
use crate::plan::Pollers;
use std::time::Duration;

/// Maximum number of runs until a fault is caught.
pub(crate) const MOST_RUNS: u64 = 500;

/// A deliberate fault: its name in the code and its effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
}

/// All deliberate faults.
pub(crate) const ALL: &[Mutant] = &[
    Mutant {
        name: "last_look_is_left_out",
        what: "wake-up: a poller sleeps without a last look at its queues",
    },
    Mutant {
        name: "crossed_frames_wake_nobody",
        what: "wake-up: a frame for another poller, over RC, does not wake it",
    },
    Mutant {
        name: "cq_is_not_armed",
        what: "arming: a poller sleeps without asking for the next completion",
    },
    Mutant { name: "message_uses_no_credit", what: "credit: a sender does not count what it sends" },
    Mutant {
        name: "base_credit_is_not_returned",
        what: "credit: a pair that has used its base credit has it back only while there is enough for all",
    },
    Mutant { name: "one_peer_takes_all_credit", what: "credit: one peer may hold all that is granted" },
    Mutant {
        name: "early_frames_keep_their_slots",
        what: "half-open sessions: a frame that comes before its session is up keeps its slot or block",
    },
    Mutant { name: "settings_are_not_sent", what: "settings: a node does not begin its lanes" },
    Mutant {
        name: "slots_return_before_their_completion",
        what: "buffers: a send slot is free again as soon as its frame is posted",
    },
    Mutant { name: "receive_is_not_reposted", what: "repost: one receive of each batch is not posted again" },
    Mutant {
        name: "fin_is_not_sent",
        what: "FIN: the sender of a large message is not told that it was read",
    },
    Mutant {
        name: "memory_is_not_returned",
        what: "budget: memory of large messages counts as in use after its return",
    },
    Mutant {
        name: "ended_handlers_stay_charged",
        what: "budget: a peer stays charged with handlers that have ended",
    },
    Mutant {
        name: "admission_is_lost",
        what: "admission: calls that wait for room are never looked at again",
    },
    Mutant {
        name: "reserved_share_is_used_by_all",
        what: "admission: calls of programs use the share of those of handlers",
    },
    Mutant {
        name: "small_calls_wait_for_large_ones",
        what: "admission: a small call waits until large ones that were made before it have found room",
    },
    Mutant {
        name: "replies_do_not_wait_for_room",
        what: "admission: a large reply for which there is no room fails after its handler has run",
    },
    Mutant {
        name: "limits_of_services_are_not_kept",
        what: "budget: more calls of a method run at once than its limit allows",
    },
    Mutant {
        name: "ended_calls_count_in_limits",
        what: "budget: calls that have ended count in the limit of their method",
    },
    Mutant {
        name: "decoded_bytes_stay_charged",
        what: "budget: a peer stays charged with the arguments of handlers that have ended",
    },
    Mutant {
        name: "queued_messages_stay_charged",
        what: "budget: a peer stays charged with messages that have left",
    },
    Mutant {
        name: "announcements_outlive_their_session",
        what: "session end: a peer stays charged with messages that it announced and that were not READ",
    },
    Mutant { name: "another_peer_is_charged", what: "budget: what a peer uses is charged to another" },
    Mutant { name: "budgets_have_no_limit", what: "budget: a peer may use more than its limit" },
    Mutant { name: "hosts_have_no_limit", what: "budget: the peers of a host may use more than its limit" },
    Mutant { name: "peers_take_no_turns", what: "turns: a peer's frames wait until another has no more" },
    Mutant { name: "keepalive_is_not_sent", what: "keepalive: a silent peer is not probed" },
    Mutant {
        name: "idle_sessions_are_not_probed",
        what: "keepalive: what is held for a client that vanished while idle is kept",
    },
    Mutant {
        name: "messages_do_not_wait_for_silent_peers",
        what: "keepalive: a message to a peer that has been silent for long leaves before a sign of it",
    },
    Mutant {
        name: "epoch_is_always_the_same",
        what: "session epoch: a restarted node looks like the one before",
    },
    Mutant {
        name: "second_session_is_dialed",
        what: "duplicate dial: a session is dialed while another is being made",
    },
    Mutant { name: "removal_is_ignored", what: "removal: a node goes on with a device that is gone" },
    Mutant {
        name: "cancel_ends_another_call",
        what: "cancellation: a caller that gives up ends another's call",
    },
    Mutant {
        name: "replies_match_any_call",
        what: "reply matching: a late reply is taken for a later call's",
    },
    Mutant {
        name: "numbers_outlive_their_session",
        what: "method numbers: a client keeps a server's numbers when that is restarted",
    },
    Mutant {
        name: "numbers_are_used_after_their_session",
        what: "method numbers: a call that could wait for the next session fails with the last, whose number it has",
    },
    Mutant {
        name: "failed_requests_count_as_not_run",
        what: "may_have_run: a request that may have arrived counts as not run",
    },
    Mutant {
        name: "forwarded_status_is_trusted",
        what: "may_have_run: a handler's status of another call decides whether the handler has run",
    },
    Mutant {
        name: "expired_in_the_queue_counts_as_run",
        what: "may_have_run: a call whose request never left counts as one that may have run",
    },
    Mutant {
        name: "late_frames_are_posted",
        what: "deadline: a request is handed to the device although its call's deadline has passed",
    },
    Mutant {
        name: "late_messages_stay_in_their_bundle",
        what: "deadline: a late request leaves with those that it shares a frame with, though its caller is told that it has not",
    },
    Mutant {
        name: "joined_messages_do_not_fail_with_their_frame",
        what: "outcome: a message that shares a frame with others counts as delivered when that has failed",
    },
    Mutant {
        name: "late_frames_keep_their_credit",
        what: "credit: a request that is not posted since it is late uses up its credit",
    },
    Mutant {
        name: "drained_is_not_reported",
        what: "shutdown: a poller does not report that nothing is under way",
    },
    Mutant {
        name: "nested_calls_start_again",
        what: "deadlines: a call that a handler makes does not inherit the handler's",
    },
    Mutant {
        name: "withdrawn_jobs_stay_queued",
        what: "worker pool: a job whose caller has given up is not taken out of the queue",
    },
    Mutant {
        name: "cancelled_futures_stay_in_the_pool",
        what: "worker pool: an offloaded future is not dropped when its caller has given up",
    },
    Mutant {
        name: "jobs_wake_no_worker",
        what: "worker pool: a job is queued while workers sleep, and wakes none of them",
    },
    Mutant { name: "deadline_is_not_kept", what: "timer: nobody looks at a call's deadline" },
    Mutant {
        name: "error_replies_lose_their_text",
        what: "errors: the text and details of a handler's error are lost",
    },
    Mutant {
        name: "cancellation_is_not_sent",
        what: "cancellation: the server is not told that a caller gave up",
    },
    Mutant {
        name: "one_way_calls_succeed_unsent",
        what: "one-way: a call succeeds before its message has left",
    },
    Mutant {
        name: "server_keeps_no_deadline",
        what: "timer: a server does not end the handler of a call whose deadline has passed",
    },
    Mutant {
        name: "handlers_outlive_their_peer",
        what: "session end: the handlers that a lost peer waited for run on",
    },
    Mutant {
        name: "key_outlives_its_message",
        what: "budget: peers may READ memory of large messages after the end of their message",
    },
    Mutant {
        name: "key_covers_the_neighbours",
        what: "memory: the key of an announced message opens what is beside it",
    },
    Mutant {
        name: "sources_of_broken_trunk_leak",
        what: "session end: large messages that were not READ keep their memory",
    },
    Mutant {
        name: "draining_ends_nested_calls",
        what: "draining: the calls that handlers make end when their node shuts down",
    },
    Mutant {
        name: "drained_is_told_before_the_end_of_handlers",
        what: "may_have_run: a node that shuts down says that it has answered all calls while handlers run",
    },
    Mutant { name: "draining_starts_handlers", what: "draining: a node that drains still starts handlers" },
    Mutant {
        name: "busy_pollers_delay_a_shutdown",
        what: "shutdown: a node waits for a poller that a handler keeps busy before it closes its sessions",
    },
    Mutant {
        name: "shutdown_does_not_wait_for_handlers",
        what: "shutdown: a node closes its sessions while handlers run within its grace",
    },
    Mutant {
        name: "earlier_deadline_wakes_nobody",
        what: "timer: a shard's machine sleeps past a deadline that was set meanwhile",
    },
    Mutant {
        name: "packet_for_another_shard_wakes_nobody",
        what: "shards: a packet that another shard handed over does not wake its shard's machine",
    },
    Mutant {
        name: "crossed_completion_fires_no_event",
        what: "shards: the completion of a message that another shard placed wakes no sleeping poller",
    },
    Mutant {
        name: "lent_receive_is_lost",
        what: "shards: one of the receives that a shard is lent never comes back",
    },
    Mutant {
        name: "parked_ring_is_not_woken",
        what: "paths: a receiver that does not look into shared memory is not woken when something is put there",
    },
    Mutant {
        name: "record_is_published_before_its_bytes",
        what: "paths: a receiver is shown a packet in shared memory before its bytes are there",
    },
    Mutant {
        name: "source_of_memory_is_not_checked",
        what: "paths: a QP believes a packet in the memory of any process, not only of its peer's",
    },
    Mutant {
        name: "path_generation_is_not_bumped",
        what: "paths: QPs are not told that the memory which they send through was given up",
    },
    Mutant {
        name: "memory_of_the_dead_is_kept",
        what: "paths: memory that was shared with a process is kept when that has died",
    },
    Mutant {
        name: "deregistered_key_stays_valid",
        what: "memory: a key is still found after its registration has ended",
    },
    Mutant {
        name: "route_follows_any_packet",
        what: "route: a QP sends to where any packet came from, whatever its PSN",
    },
    Mutant {
        name: "cookies_are_not_checked",
        what: "proof: a request whose sender returned no cookie is accepted",
    },
    Mutant {
        name: "restart_needs_no_proof",
        what: "proof: a request that claims that a live peer was restarted needs no cookie",
    },
    Mutant {
        name: "all_pollers_dial_at_once",
        what: "dial-backs: a stranger that proved its address is dialed for every poller at once",
    },
    Mutant {
        name: "credit_is_charged_at_the_request",
        what: "half-open sessions: a peer's request takes credit before its session is up",
    },
    Mutant {
        name: "half_made_sessions_have_no_bound",
        what: "half-open sessions: one host may have any number of them",
    },
    Mutant {
        name: "sessions_of_a_host_have_no_bound",
        what: "sessions: the nodes of one host may have all of an SRQ",
    },
    Mutant {
        name: "ordered_calls_overtake",
        what: "order: a small ordered message leaves before the peer has read a large one that went before it",
    },
    Mutant {
        name: "ordered_calls_go_to_all_pollers",
        what: "order: the calls of an ordered client go to the pollers of its node in turn",
    },
    Mutant {
        name: "calls_wait_for_the_next_attempt",
        what: "backoff: a call to a peer that is known to be away waits for another attempt to connect",
    },
    Mutant {
        name: "waiting_calls_fail_with_their_attempt",
        what: "backoff: a call that asked to wait for its server fails with an attempt to connect",
    },
    Mutant {
        name: "next_attempt_is_never_due",
        what: "backoff: after an attempt to connect that failed nobody may make another",
    },
    Mutant {
        name: "names_are_resolved_once",
        what: "channels: the addresses that a name had first are used from then on",
    },
    Mutant {
        name: "only_one_address_is_tried",
        what: "channels: when one address of a server is not reached, the others are not tried",
    },
    Mutant {
        name: "calls_that_may_have_run_move_on",
        what: "balance: a call that may have run goes to the next server, although its method is not idempotent",
    },
    Mutant {
        name: "drained_servers_get_calls",
        what: "balance: a client goes on sending calls to a server that has said that it runs no more",
    },
    Mutant { name: "windows_are_not_returned", what: "streams: a reader does not return its window" },
    Mutant {
        name: "ends_overtake_items",
        what: "streams: the end leaves before the peer has read a large item",
    },
    Mutant { name: "resets_are_lost", what: "streams: a writer is not told that nobody takes its items" },
    Mutant {
        name: "late_items_match_any_stream",
        what: "streams: an item of a call that has ended is taken for the call that has its slot now",
    },
    Mutant {
        name: "lost_streams_finish",
        what: "streams: a stream whose session was lost ends as if its writer had finished",
    },
    Mutant {
        name: "arrivals_leave_the_idle_timer",
        what: "streams: the idle timer of a stream is not set again when a frame arrives",
    },
    Mutant {
        name: "shapes_of_another_method_are_compared",
        what: "shapes: a server compares a caller's types with those of another method",
    },
    Mutant { name: "timers_do_not_fire", what: "timer: a QP's retransmission timer does nothing" },
];

/// Returns ten faults from different areas, which the gate tries.
pub(crate) fn few() -> impl Iterator<Item = &'static Mutant> {
    let names = [
        "last_look_is_left_out",
        "message_uses_no_credit",
        "late_frames_are_posted",
        "memory_is_not_returned",
        "admission_is_lost",
        "keepalive_is_not_sent",
        "replies_match_any_call",
        "failed_requests_count_as_not_run",
        "settings_are_not_sent",
        "removal_is_ignored",
    ];
    names
        .into_iter()
        .map(|name| ALL.iter().find(|mutant| mutant.name == name).expect("each name is in the list"))
}

/// Runs seeds until a fault is caught.
pub(crate) fn hunt(
    mutant: Mutant,
    first_seed: u64,
    pollers: Option<Pollers>,
    jobs: usize,
    interrupt: &Interrupt,
) -> Summary {
    campaign(&CampaignPlan {
        first: first_seed,
        runs: MOST_RUNS,
        time: Duration::MAX,
        jobs,
        keep_going: false,
        pollers,
        mutant: Some(mutant.name),
        interrupt: interrupt.clone(),
    })
}
