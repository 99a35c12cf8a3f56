"""The faults by number: how each is injected, what must hold and within which budget, and the tests that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ATTACKS: Final = "tests/attacks/"
CHAOS: Final = "tests/chaos/"
CLUSTER: Final = "e2e/cluster/"
ENGINE: Final = "e2e/engine/"
EVENTS: Final = "tests/worker/agent/engines/vllm/events/"
PLANE: Final = "tests/controlplane/"


@dataclass(frozen=True, slots=True)
class Row:
    """``tests`` are pytest's node ids, without parameters. ``gap`` says what of the fault nothing shows."""

    number: int
    fault: str
    injected: str
    holds: str
    tests: tuple[str, ...]
    gap: str = ""


QUICK: Final = frozenset({2, 4, 5, 6, 7, 16, 17, 18, 19, 21, 22, 23, 24, 26})
"""Rows that have a test in each `make test`; the others are part of `make nightly` and `make chaos`."""

ROWS: Final = (
    Row(
        1,
        "A worker is killed and returns at its address",
        "SIGKILL to an engine under load, the same ports again",
        "its old blocks are gone ≤ 10 s without a word of it; ≥ 99.9 % of answers whole with 2 workers",
        (
            f"{CHAOS}test_workers.py::test_a_killed_worker_that_returns_at_its_address",
            f"{ENGINE}test_faults.py::test_a_killed_engine_fails_only_the_streams_it_had_begun",
        ),
    ),
    Row(
        2,
        "A restart that the numbers of events do not show",
        "another process's events go on above the last number",
        "another epoch ≤ 10 s; nothing of one is spliced into the other",
        (
            f"{CHAOS}test_events.py::test_a_restart_that_goes_on_above_the_last_number",
            f"{EVENTS}test_source.py::test_a_mark_of_another_process_ends_the_epoch",
            f"{EVENTS}test_source.py::test_a_snapshot_of_another_process_ends_the_epoch",
        ),
    ),
    Row(
        3,
        "A worker hangs",
        "SIGSTOP to an engine for 30 s, then SIGCONT",
        "out of rotation ≤ 10 s, back ≤ 5 s, in the same epoch",
        (f"{CHAOS}test_workers.py::test_a_worker_that_hangs_and_goes_on",),
    ),
    Row(
        4,
        "A gap that the replay fills",
        "1, 17 and 500 event frames kept off the wire",
        "the index is exact ≤ 1 s after the gap shows",
        (
            f"{CHAOS}test_events.py::test_a_gap_within_the_replay",
            f"{EVENTS}test_follower.py::test_a_gap_is_filled_in_order_with_live_batches_held_back",
        ),
    ),
    Row(
        5,
        "A gap beyond the replay",
        "500 frames lost, 50 of them in the replay's buffer",
        "exact by a snapshot, or a sound suffix ≤ 5 s; never wedged",
        (
            f"{CHAOS}test_events.py::test_a_gap_beyond_the_replay",
            f"{EVENTS}test_source.py::test_a_loss_beyond_replay_costs_nothing",
        ),
    ),
    Row(
        6,
        "Events doubled, reordered and interleaved",
        "random histories of frames, replays, epochs, copies and clears against a model: 10,000 at night",
        "never more than the model holds; equal once healed",
        (f"{EVENTS}test_follower_property.py::TestFollower::runTest",),
    ),
    Row(
        7,
        "Frames that are none",
        "random frames between good ones: 2,000, and a million at night",
        "each is counted, the good ones are read, memory grows ≤ 20 MiB",
        (
            f"{CHAOS}test_events.py::test_frames_that_are_none",
            f"{EVENTS}test_kv_events.py::test_any_bytes_are_a_batch_or_an_error",
            f"{PLANE}index/test_index_frames.py::TestHostileBytes::test_any_are_harmless",
        ),
    ),
    Row(
        8,
        "A storm of replays",
        "50 followers of one engine lose the same 20 events",
        "each asks once, from what it lacks on; all are whole ≤ 10 s after",
        (
            f"{CHAOS}test_storm.py::test_fifty_followers_that_lose_the_same_events",
            f"{EVENTS}test_follower.py::test_only_one_request_is_out_for_a_gap",
            f"{EVENTS}test_follower.py::test_snapshots_that_prove_nothing_come_in_growing_distances",
        ),
        "what a storm costs real vLLM, which answers replays in a thread of its publisher",
    ),
    Row(
        9,
        "A replica that stands still while blocks change",
        "SIGSTOP to a replica for 60 s, engines asked straight, ten new blocks with each request",
        "the index is exact ≤ 10 s after; engines are not held up (≥ 80 %); agents' memory grows ≤ 32 MiB",
        (
            f"{CHAOS}test_overload.py::test_a_replica_that_stands_still_while_blocks_change",
            "tests/worker/agent/reports/test_uplink.py::test_a_slow_reader_gets_a_snapshot_instead_of_a_backlog",
        ),
    ),
    Row(
        10,
        "A replica is killed under load",
        "SIGKILL to one of two, 4 workers with 10,000 blocks each",
        "ready ≤ 3 s of CPU, ≥ 99 % of blocks ≤ 5 s after that, no request of the other replica's lost",
        (
            f"{CHAOS}test_replicas.py::test_a_killed_replica_knows_all_blocks_again",
            f"{ENGINE}test_faults.py::test_a_killed_control_plane_knows_the_blocks_again",
            f"{PLANE}test_replicas.py::test_one_that_is_killed_costs_only_what_was_under_way_there",
        ),
    ),
    Row(
        11,
        "Replicas restarted in turn",
        "SIGTERM to each of two, behind a Service",
        "no request fails, each is drained ≤ 30 s",
        (
            f"{CHAOS}test_replicas.py::test_replicas_restarted_in_turn_cost_no_request",
            f"{PLANE}test_replicas.py::test_a_replica_that_goes_costs_no_request",
        ),
    ),
    Row(
        12,
        "A locked database",
        "another process holds SQLite's write lock for 30 s",
        "requests go on, reads are served; changes are refused ≤ 5 s with `Retry-After` ≤ 2; none acknowledged is lost",
        (
            f"{CHAOS}test_databases.py::test_a_locked_database",
            f"{ATTACKS}test_stores.py::test_a_store_that_others_have_locked_is_read_all_the_same",
        ),
    ),
    Row(
        13,
        "A database that is deleted, corrupt, full, killed, hung or put back",
        "the file unlinked or overwritten, no file may grow; PostgreSQL: SIGKILL, SIGSTOP, a dump restored under load",
        "requests of known tenants go on, changes are refused ≤ 15 s, taken again ≤ 15 s after; "
        "a replica that starts meanwhile takes no traffic; no door opens",
        (
            f"{CHAOS}test_databases.py::test_a_postgresql_that_is_killed",
            f"{CHAOS}test_databases.py::test_a_postgresql_that_hangs",
            f"{CHAOS}test_databases.py::test_a_postgresql_put_back_from_a_dump",
            f"{CHAOS}test_databases.py::test_replicas_that_start_together_migrate_once",
            f"{ATTACKS}test_stores.py::test_a_corrupt_store_opens_nothing",
            f"{ATTACKS}test_stores.py::test_a_store_that_is_gone_opens_nothing",
            f"{ATTACKS}test_stores.py::test_a_full_disk_stops_no_request_and_opens_nothing",
        ),
    ),
    Row(
        14,
        "The API server is down for five minutes",
        "SIGSTOP to kube-apiserver; a TCP relay before it that refuses all",
        "pools and workers stay as they were; ≤ 1 attempt a second of each watch; as they are ≤ 15 s after",
        (
            f"{CLUSTER}test_pool_source_faults.py::test_while_the_api_server_is_away_all_stays_and_it_is_not_pressed",
            f"{CLUSTER}test_operator_scale.py::test_an_api_server_away_for_five_minutes_is_caught_up_with",
            f"{CLUSTER}test_pool_source.py::test_a_frozen_api_server_is_noticed_and_caught_up_with",
        ),
    ),
    Row(
        15,
        "Watches that expire, or are half open",
        "the API server restarted (410); a TCP relay that keeps connections and passes nothing",
        "a silent one is given up ≤ 30 s; listed again, deletions found",
        (
            f"{CLUSTER}test_pool_source_faults.py::test_a_watch_that_is_half_open_is_given_up",
            f"{CLUSTER}test_operator_faults.py::test_watches_that_expired_are_begun_anew",
            f"{PLANE}pools/test_kubernetes_source.py::test_after_a_compaction_deletions_are_found_by_listing",
        ),
    ),
    Row(
        16,
        "The operator is killed within a reconcile",
        "a proxy kills it after its k-th write, for every k",
        "the same objects for all k, none doubled or left over",
        (f"{CLUSTER}test_operator_faults.py::test_killed_after_any_write_it_ends_the_same",),
    ),
    Row(
        17,
        "Stale reads",
        "a proxy shows an operator that starts lists of before: a pool that is deleted since, and another's older spec",
        "it deletes nothing, what is kept is the same object, and all is as it is to be ≤ 60 s after",
        (
            f"{CLUSTER}test_operator_faults.py::test_lists_of_before_destroy_nothing",
            "tests/operator/reconcile/test_worker_keys.py::test_what_changed_meanwhile_is_read_again",
            "tests/operator/reconcile/test_reconciler.py::test_a_pool_that_changed_meanwhile_gets_no_stale_status",
        ),
    ),
    Row(
        18,
        "States that nobody saw",
        "pools made, changed, replaced and deleted while no operator runs",
        "what comes of it is that of the last state alone",
        (f"{CLUSTER}test_operator_faults.py::test_only_the_final_state_counts_for_one_that_was_away",),
    ),
    Row(
        19,
        "Two leaders",
        "SIGSTOP to the leader beyond its lease, then SIGCONT",
        "it makes no write any more, and wakes up as none",
        (f"{CLUSTER}test_operator_faults.py::test_a_frozen_leader_wakes_up_as_none",),
    ),
    Row(
        20,
        "A partition between a replica and an agent",
        "iptables drops packets one way, the other and both, in a network namespace of the test's own",
        "its blocks are not counted on ≤ 10 s after, its worker is asked on; healed ≤ 5 s; no request fails",
        (f"{CHAOS}test_partitions.py::test_a_partition_between_agent_and_replica",),
    ),
    Row(
        21,
        "Clocks that jump",
        "the wall clock an hour forwards and back",
        "keys and limits are as before",
        (
            f"{ATTACKS}test_clocks.py::test_a_jump_changes_nothing_for_keys_without_an_end",
            f"{ATTACKS}test_clocks.py::test_limits_go_by_a_clock_that_does_not_jump",
        ),
    ),
    Row(
        22,
        "Malformed JSON and abuse of schemas",
        "schemathesis: some hundred cases, and 20,000 at night",
        "no answer is undocumented, none a server's error",
        (
            f"{PLANE}admin/test_schema_cases.py::test_some_requests_of_the_gateway",
            f"{PLANE}admin/test_schema_cases.py::test_some_requests_of_the_admin_api",
            f"{PLANE}admin/test_schema_cases.py::test_thousands_of_requests",
        ),
    ),
    Row(
        23,
        "Bodies that are too long",
        "a length over the limit, and chunks without one, on both ports",
        "413, the connection closed, others served",
        (
            f"{PLANE}test_slow_bodies.py::test_a_length_over_the_limit_is_refused_before_the_body",
            f"{PLANE}test_slow_bodies.py::test_chunks_over_the_limit_are_a_413",
            f"{PLANE}test_slow_bodies.py::test_both_ports_live_on",
        ),
    ),
    Row(
        24,
        "Clients that drip",
        "120 connections, at night 2,200: idle, dripping heads and bodies",
        "each is closed in time, others are answered meanwhile",
        (
            f"{ATTACKS}test_clients.py::test_idle_and_dripping_clients_hold_up_nobody",
            f"{ATTACKS}test_clients.py::test_who_drips_is_closed_and_its_place_is_free_again",
        ),
    ),
    Row(
        25,
        "Ten times its capacity",
        "120 clients for 60 s where 12 have room, and nobody may wait",
        "the rest is refused with `Retry-After`; p99 of the accepted ≤ 2 times before, and again ≤ 10 s after",
        (
            f"{CHAOS}test_overload.py::test_ten_times_its_capacity",
            f"{PLANE}gateway/place/test_full_workers.py::test_a_full_room_is_429_and_says_when_to_come_again",
        ),
    ),
    Row(
        26,
        "Tokens that are missing, wrong or of others",
        "every route of the admin API with each of them; reports; the gateway",
        "401 or 403; a new route without a check fails the test",
        (
            f"{PLANE}admin/test_admin_app.py::test_these_are_all_routes",
            f"{PLANE}admin/test_admin_app.py::test_without_a_right_token_every_path_is_401",
            f"{PLANE}admin/test_admin_app.py::test_who_may_not_gets_403_everywhere",
            f"{ATTACKS}test_agents.py::test_nobody_without_an_agents_token_gets_a_connection",
            f"{PLANE}internal_auth/test_token_review.py::test_the_server_must_confirm_our_audience",
        ),
    ),
    Row(
        27,
        "A tenant that probes for another's prompts",
        "the same prompt by two tenants; 2,000 probes of prompts of which half were asked",
        "cached for whom it was, new to the other; the area under the curve of its times is 0.50 ± 0.05",
        (
            "tests/bench/test_tenant_timing.py::test_a_tenants_probes_tell_it_nothing_and_the_victims_own_do",
            f"{ATTACKS}test_salts.py::test_a_prompt_that_another_tenant_has_cached_is_as_new",
            f"{ATTACKS}test_keys.py::test_a_client_cannot_choose_its_tenant_or_its_salt",
        ),
    ),
    Row(
        28,
        "Events and reports that others read",
        "all bytes between agents and a replica noted by a relay; connections from another network namespace",
        "no prompt, token id or key in them, nor in logs, metrics and databases; events are for loopback alone",
        (
            f"{CHAOS}test_exposure.py::test_prompts_are_read_nowhere_but_in_engines",
            f"{CHAOS}test_exposure.py::test_events_are_for_who_is_beside_the_engine",
        ),
    ),
    Row(
        29,
        "Upgrade and rollback",
        "the chart upgraded and rolled back, migrations down and up",
        "no field lost, no worker restarted",
        (
            f"{CLUSTER}test_chart.py::test_installed_upgraded_rolled_back_and_removed",
            f"{PLANE}store/test_migrations.py::test_migrations_go_down_and_up_again",
            "e2e/node/test_3_release.py::test_an_upgrade_and_the_way_back_restart_no_worker",
        ),
    ),
    Row(
        30,
        "Workers that come and go",
        "200 workers a minute listed for 6 s each, for ten minutes, under load",
        "tasks, files and series of metrics are as before ≤ 60 s after; no request fails",
        (f"{CHAOS}test_overload.py::test_workers_that_come_and_go",),
    ),
    Row(
        31,
        "Faults at random, one after the other",
        "engines, agents and pods killed or hung, the store locked, 1 to 10 s each, for five minutes, at night for two "
        "hours (`CHAOS_SECONDS`), by a seed that is told",
        "no request fails but streams that cannot be resumed; healed ≤ 60 s each; memory, files and tasks stay flat",
        (
            f"{CHAOS}test_soak.py::test_random_faults_one_after_the_other",
            "tests/bench/test_soak.py::test_workers_die_and_return_and_no_request_fails",
        ),
    ),
)
