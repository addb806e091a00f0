//! Deliberate faults built into the code, each of which a campaign must catch.

use trunkline_machine::mutants::Sealed;

/// Maximum number of runs in which a fault must be caught.
pub(crate) const MOST_RUNS: u64 = 500;

/// A deliberate fault, as its name in the code and its effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
}

macro_rules! mutants {
    ($($name:ident $what:literal,)*) => {
        /// All deliberate faults.
        pub(crate) const ALL: &[Mutant] = &[$(Mutant { name: stringify!($name), what: $what },)*];
    };
}

mutants! {
    last_look_is_left_out "wake-up: a poller sleeps without a last look at its queues",
    crossed_frames_wake_nobody "wake-up: a frame for another poller, over RC, does not wake it",
    cq_is_not_armed "arming: a poller sleeps without asking for the next completion",
    message_uses_no_credit "credit: a sender does not count what it sends",
    base_credit_is_not_returned "credit: a pair that has used its base credit has it back only while there is enough for all",
    one_peer_takes_all_credit "credit: one peer may hold all that is granted",
    early_frames_keep_their_slots "half-open sessions: a frame that comes before its session is up keeps its slot or block",
    settings_are_not_sent "settings: a node does not begin its lanes",
    slots_return_before_their_completion "buffers: a send slot is free again as soon as its frame is posted",
    receive_is_not_reposted "repost: one receive of each batch is not posted again",
    fin_is_not_sent "FIN: the sender of a large message is not told that it was read",
    memory_is_not_returned "budget: memory of large messages counts as in use after its return",
    ended_handlers_stay_charged "budget: a peer stays charged with handlers that have ended",
    admission_is_lost "admission: calls that wait for room are never looked at again",
    reserved_share_is_used_by_all "admission: calls of programs use the share of those of handlers",
    small_calls_wait_for_large_ones "admission: a small call waits until large ones that were made before it have found room",
    replies_do_not_wait_for_room "admission: a large reply for which there is no room fails after its handler has run",
    limits_of_services_are_not_kept "budget: more calls of a method run at once than its limit allows",
    ended_calls_count_in_limits "budget: calls that have ended count in the limit of their method",
    decoded_bytes_stay_charged "budget: a peer stays charged with the arguments of handlers that have ended",
    queued_messages_stay_charged "budget: a peer stays charged with messages that have left",
    announcements_outlive_their_session "session end: a peer stays charged with messages that it announced and that were not READ",
    another_peer_is_charged "budget: what a peer uses is charged to another",
    budgets_have_no_limit "budget: a peer may use more than its limit",
    hosts_have_no_limit "budget: the peers of a host may use more than its limit",
    peers_take_no_turns "turns: a peer's frames wait until another has no more",
    keepalive_is_not_sent "keepalive: a silent peer is not probed",
    idle_tail_is_not_completed "completions: work posted without a signal before a pause never completes",
    idle_sessions_are_not_probed "keepalive: what is held for a client that vanished while idle is kept",
    messages_do_not_wait_for_silent_peers "keepalive: a message to a peer that has been silent for long leaves before a sign of it",
    paths_have_no_windows "congestion: packets to other hosts are sent without regard to round trips and losses",
    reads_have_no_allowance "congestion: READs are posted before their path admits them, and small messages wait behind them",
    marks_are_ignored "congestion: marks of the network change no window",
    windows_never_grow "congestion: a window has one packet for ever",
    newcomers_probe_nobody "session end: a client with a new port leaves the session of its dead predecessor unprobed",
    epoch_is_always_the_same "session epoch: a restarted node looks like the one before",
    unproven_sessions_have_no_bound "identity: a host may begin any number of handshakes",
    restart_needs_no_name "identity: a request with a proved address ends the session of a peer that has proved its name",
    names_are_not_compared "identity: calls go to a server that has proved another name than their channel expects",
    seal_counter_restarts "sealing: the count in a lane's nonces has one byte, so it restarts after 256 frames",
    phase_is_skipped "sealing: a lane's sender flips PHASE and keeps its key",
    phases_never_end "sealing: a key seals any number of frames, for any time",
    both_sides_are_clients "identity: both nodes begin the handshake as TLS clients",
    second_session_is_dialed "duplicate dial: a session is dialed while another is being made",
    removal_is_ignored "removal: a node goes on with a device that is gone",
    cancel_ends_another_call "cancellation: a caller that gives up ends another's call",
    replies_match_any_call "reply matching: a late reply is taken for a later call's",
    numbers_outlive_their_session "method numbers: a client keeps a server's numbers when that is restarted",
    numbers_are_used_after_their_session "method numbers: a call that could wait for the next session fails with the last, whose number it has",
    failed_requests_count_as_not_run "may_have_run: a request that may have arrived counts as not run",
    forwarded_status_is_trusted "may_have_run: a handler's status of another call decides whether the handler has run",
    expired_in_the_queue_counts_as_run "may_have_run: a call whose request never left counts as one that may have run",
    late_frames_are_posted "deadline: a request is handed to the device although its call's deadline has passed",
    late_messages_stay_in_their_bundle "deadline: a late request leaves with those that it shares a frame with, though its caller is told that it has not",
    joined_messages_do_not_fail_with_their_frame "outcome: a message that shares a frame with others counts as delivered when that has failed",
    late_frames_keep_their_credit "credit: a request that is not posted since it is late uses up its credit",
    drained_is_not_reported "shutdown: a poller does not report that nothing is under way",
    nested_calls_start_again "deadlines: a call that a handler makes does not inherit the handler's",
    withdrawn_jobs_stay_queued "worker pool: a job whose caller has given up is not taken out of the queue",
    cancelled_futures_stay_in_the_pool "worker pool: an offloaded future is not dropped when its caller has given up",
    jobs_wake_no_worker "worker pool: a job is queued while workers sleep, and wakes none of them",
    deadline_is_not_kept "timer: nobody looks at a call's deadline",
    error_replies_lose_their_text "errors: the text and details of a handler's error are lost",
    cancellation_is_not_sent "cancellation: the server is not told that a caller gave up",
    one_way_calls_succeed_unsent "one-way: a call succeeds before its message has left",
    server_keeps_no_deadline "timer: a server does not end the handler of a call whose deadline has passed",
    handlers_outlive_their_peer "session end: the handlers that a lost peer waited for run on",
    key_outlives_its_message "budget: peers may READ memory of large messages after the end of their message",
    key_covers_the_neighbours "memory: the key of an announced message opens what is beside it",
    sources_of_broken_trunk_leak "session end: large messages that were not READ keep their memory",
    draining_ends_nested_calls "draining: the calls that handlers make end when their node shuts down",
    drained_is_told_before_the_end_of_handlers "may_have_run: a node that shuts down says that it has answered all calls while handlers run",
    draining_starts_handlers "draining: a node that drains still starts handlers",
    busy_pollers_delay_a_shutdown "shutdown: a node waits for a poller that a handler keeps busy before it closes its sessions",
    shutdown_does_not_wait_for_handlers "shutdown: a node closes its sessions while handlers run within its grace",
    earlier_deadline_wakes_nobody "timer: a shard's machine sleeps past a deadline that was set meanwhile",
    packet_for_another_shard_wakes_nobody "shards: a packet that another shard handed over does not wake its shard's machine",
    crossed_completion_fires_no_event "shards: the completion of a message that another shard placed wakes no sleeping poller",
    lent_receive_is_lost "shards: one of the receives that a shard is lent never comes back",
    parked_ring_is_not_woken "paths: a receiver that does not look into shared memory is not woken when something is put there",
    record_is_published_before_its_bytes "paths: a receiver is shown a packet in shared memory before its bytes are there",
    source_of_memory_is_not_checked "paths: a QP believes a packet in the memory of any process, not only of its peer's",
    path_generation_is_not_bumped "paths: QPs are not told that the memory which they send through was given up",
    memory_of_the_dead_is_kept "paths: memory that was shared with a process is kept when that has died",
    deregistered_key_stays_valid "memory: a key is still found after its registration has ended",
    route_follows_any_packet "route: a QP sends to where any packet came from, whatever its PSN",
    refusals_leave_from_the_own_port "route: the refusal of a first request leaves from the port that it reached",
    one_flow_uses_any_port "route: QPs of a connection of one flow keep their own source port",
    icrc_covers_translated_addresses "route: the ICRC of packets to a peer behind an address translator covers their own headers",
    cookies_are_not_checked "proof: a request whose sender returned no cookie is accepted",
    restart_needs_no_proof "proof: a request that claims that a live peer was restarted needs no cookie",
    all_pollers_dial_at_once "dial-backs: a stranger that proved its address is dialed for every poller at once",
    credit_is_charged_at_the_request "half-open sessions: a peer's request takes credit before its session is up",
    half_made_sessions_have_no_bound "half-open sessions: one host may have any number of them",
    sessions_of_a_host_have_no_bound "sessions: the nodes of one host may have all of an SRQ",
    ordered_calls_overtake "order: a small ordered message leaves before the peer has read a large one that went before it",
    ordered_calls_go_to_all_pollers "order: the calls of an ordered client go to the pollers of its node in turn",
    calls_wait_for_the_next_attempt "backoff: a call to a peer that is known to be away waits for another attempt to connect",
    waiting_calls_fail_with_their_attempt "backoff: a call that asked to wait for its server fails with an attempt to connect",
    next_attempt_is_never_due "backoff: after an attempt to connect that failed nobody may make another",
    names_are_resolved_once "channels: the addresses that a name had first are used from then on",
    only_one_address_is_tried "channels: when one address of a server is not reached, the others are not tried",
    calls_that_may_have_run_move_on "balance: a call that may have run goes to the next server, although its method is not idempotent",
    failed_calls_are_not_made_again "balance: an idempotent call that its server has failed goes to no other one",
    drained_servers_get_calls "balance: a client goes on sending calls to a server that has said that it runs no more",
    windows_are_not_returned "streams: a reader does not return its window",
    ends_overtake_items "streams: the end leaves before the peer has read a large item",
    resets_are_lost "streams: a writer is not told that nobody takes its items",
    late_items_match_any_stream "streams: an item of a call that has ended is taken for the call that has its slot now",
    lost_streams_finish "streams: a stream whose session was lost ends as if its writer had finished",
    arrivals_leave_the_idle_timer "streams: the idle timer of a stream is not set again when a frame arrives",
    shapes_of_another_method_are_compared "shapes: a server compares a caller's types with those of another method",
    path_mtu_is_forgotten "path MTU: a session over a path that loses large packets is opened again with the same path MTU",
    timers_do_not_fire "timer: a QP's retransmission timer does nothing",
}

/// Returns ten faults in different areas, for the gate.
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

/// Enables a fault in this thread, or disables all faults.
pub(crate) fn choose(name: Option<&str>) {
    #[cfg(feature = "mutants")]
    trunkline_machine::mutants::choose(name);
    #[cfg(not(feature = "mutants"))]
    let _ = name;
}

/// Returns the uses of keys in this thread since the last call. The result is empty in programs without deliberate
/// faults.
pub(crate) fn take_sealed() -> Vec<Sealed> {
    #[cfg(feature = "mutants")]
    return trunkline_machine::mutants::take_sealed();
    #[cfg(not(feature = "mutants"))]
    Vec::new()
}

/// Returns true if this program is built with deliberate faults.
pub(crate) const fn are_built_in() -> bool {
    cfg!(feature = "mutants")
}
