"""Environment variables that processes read in earlier releases: a start with one of them set says so.

What each of them chose is a constant now, beside its use.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Process = Literal["control plane", "operator", "agent", "plugin"]

PREFIX: Final = "CACHEFLEET_"
REMOVED: Final[Mapping[Process, frozenset[str]]] = MappingProxyType(
    {
        "control plane": frozenset(
            {
                "ADMIN_MAX_BYTES",
                "BACKEND",
                "AUDIT_MAX_ROWS",
                "CONTINUATION_HANDLES",
                "CONTINUATION_MAX_KEYS",
                "CONTINUATION_STORE_SECONDS",
                "DATABASE_RETRY_SECONDS",
                "DECISIONS_BATCH",
                "DECISIONS_FLUSH_SECONDS",
                "DECISIONS_QUEUE",
                "HOT_PREFIX_BYTES",
                "HOT_PREFIX_HALF_LIFE_SECONDS",
                "HOT_PREFIX_SECONDS",
                "HOT_PREFIX_TOKENS",
                "POOL_FILE_POLL_SECONDS",
                "REPLY_SEND_SECONDS",
                "REPORT_CONNECTIONS",
                "REPORT_HELLO_SECONDS",
                "REQUEST_HEAD_SECONDS",
                "REQUEST_STALL_SECONDS",
                "REVIEW_TIMEOUT_SECONDS",
                "SIMULATION_SECONDS",
                "TENANTS_POLL_SECONDS",
                "TRANSPORT",
                "UPSTREAM_CONNECT_SECONDS",
                "USAGE_FLUSH_SECONDS",
                "USAGE_QUEUE",
                "WATCH_BACKOFF_SECONDS",
                "WATCH_INACTIVITY_SECONDS",
                "WATCH_PAGE",
                "WEBSOCKET_IDLE_SECONDS",
                "WEBSOCKET_SECONDS",
            }
        ),
        "operator": frozenset(
            {
                "CHAT_TEMPLATE_SECONDS",
                "DISCOVERY_SECONDS",
                "FACTS_AT_ONCE",
                "FACTS_KEEP_SECONDS",
                "FACTS_SECONDS",
                "FACTS_TIMEOUT_SECONDS",
                "LEASE_SECONDS",
                "LIST_PAGE",
                "RENEW_SECONDS",
                "REQUEST_SECONDS",
                "RETRY_FIRST_SECONDS",
                "RETRY_LONGEST_SECONDS",
                "RETRY_SECONDS",
                "STATUS_SECONDS",
                "STOP_SECONDS",
                "TLS_SPREAD_SECONDS",
                "UNSCHEDULABLE_SECONDS",
            }
        ),
        "agent": frozenset(
            {
                "ADAPTER_LOOK_SECONDS",
                "ADAPTER_RETRY_CAP_SECONDS",
                "ADAPTER_RETRY_SECONDS",
                "BACKEND",
                "CORRUPTED_REQUESTS",
                "DELTA_SECONDS",
                "DRAIN_SETTLE_SECONDS",
                "ENGINE_TIMEOUT_SECONDS",
                "ERROR_POLLS",
                "EVENT_MAX_BYTES",
                "EVENT_QUEUE",
                "FAILED_SECONDS",
                "HEARTBEAT_SECONDS",
                "HELD_BACK_BATCHES",
                "HELD_BACK_BYTES",
                "KEY_REFUSALS",
                "MAX_CONTROL_PLANES",
                "NAMESPACES",
                "POLICY_FILE_SECONDS",
                "POLICY_RETRY_CAP_SECONDS",
                "POLICY_RETRY_SECONDS",
                "POLL_SECONDS",
                "PROBE_SECONDS",
                "RECONNECT_BASE_SECONDS",
                "RECONNECT_CAP_SECONDS",
                "REGISTRATION_SECONDS",
                "REMEMBERED_BLOCKS",
                "REPLAY_TIMEOUT_SECONDS",
                "RESOLVE_SECONDS",
                "SEND_QUEUE_BYTES",
                "SEND_QUEUE_FRAMES",
                "SEND_TIMEOUT_SECONDS",
                "SNAPSHOT_SECONDS",
                "SNAPSHOT_SILENCE_SECONDS",
                "UNREACHABLE_POLLS",
                "WARM_QUEUE",
                "WARM_RETRY_CAP_SECONDS",
                "WARM_RETRY_SECONDS",
                "WARM_TIMEOUT_SECONDS",
            }
        ),
        "plugin": frozenset(
            {
                "BACKEND",
                "BODY_TIMEOUT_SECONDS",
                "CALL_TIMEOUT_SECONDS",
                "HEARTBEAT_SECONDS",
                "KEYS_AT_ONCE",
                "KEYS_CACHE_BYTES",
                "KEYS_OFFLOOP_TOKENS",
                "PROMPTS_BYTES",
                "SNAPSHOT_TIMEOUT_SECONDS",
                "TOKENS_SAMPLE_RATIO",
            }
        ),
    }
)
"""By process, without the prefix."""


def removed_lines(process: Process, environment: Mapping[str, str]) -> list[str]:
    """One line for each variable that is set and that this process does not read any more."""
    names = (f"{PREFIX}{name}" for name in sorted(REMOVED[process]))
    why = "its value is fixed; take it out of the environment"
    return [f"{name} is no longer read: {why}" for name in names if environment.get(name)]
