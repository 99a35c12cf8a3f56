"""The plugin's state in one engine: what its features share, the calls it answers, and the policy in force."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cachefleet_core.engine.suspensions import Suspension
from cachefleet_core.hit_rule import CacheGroup
from cachefleet_core.report_frames import Policy
from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.live_policy import STOCK, LivePolicy, succeed
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

log = logging.getLogger("vllm.cachefleet")

Call = Callable[[bytes], bytes]


class EngineState:
    """One per scheduler, in the engine's process; used on the engine's thread only, between and in its steps."""

    def __init__(self, scheduler: Any, settings: PluginSettings, *, rank: int, block_bytes: int = 0) -> None:
        self.scheduler = scheduler
        self.executor: Any = None
        """What runs the model; known from the first call on."""
        self.settings = settings
        self.rank = rank
        self.block_bytes = block_bytes
        """Bytes of one block on one device; 0 where unknown."""
        self.groups: Sequence[CacheGroup] = ()
        """The KV cache groups that take part in prefix caching; none where unknown."""
        self.lookahead = 0
        """Tokens after a block that its hash covers."""
        self.boot = secrets.token_hex(16)
        """Identifies this engine process; unique."""
        self.capabilities = Capabilities()
        self.faults = Faults(self.capabilities)
        self.policy: LivePolicy = STOCK
        self.counts: Counter[str] = Counter()
        self.calls: dict[str, Call] = {
            "describe": self._describe,
            "policy": self._put_policy,
            "stats": self._stats,
            "audit": self._audit,
        }
        self._listeners: list[Callable[[LivePolicy], None]] = []
        self._readings: list[Callable[[], dict[str, Any]]] = []
        self._checks: list[Callable[[], dict[str, Any]]] = []

    # Registered by features

    def on_policy(self, listener: Callable[[LivePolicy], None]) -> None:
        """Call ``listener`` now and at each change of the policy."""
        self._listeners.append(listener)
        listener(self.policy)

    def on_stats(self, reading: Callable[[], dict[str, Any]]) -> None:
        """Add fields to ``/v1/fleet/stats``; ``reading`` must be cheap, it runs each second."""
        self._readings.append(reading)

    def on_audit(self, check: Callable[[], dict[str, Any]]) -> None:
        """Add fields to ``/v1/fleet/audit``; ``check`` may look at every block."""
        self._checks.append(check)

    # Calls

    def call(self, name: str, payload: bytes) -> bytes:
        """Answer a call of the API server. LookupError for one of a feature that is off."""
        if name not in self.calls:
            raise LookupError(f"{name} is off in this engine, its capabilities say why")
        answer = self.calls[name](payload)
        self.publish_events()
        return answer

    def publish_events(self) -> None:
        """Publish block events of changes made outside a step, which an idle engine would not send."""
        with self.faults.guard("snapshot"):
            events = self.scheduler.kv_cache_manager.take_events()
            if events:
                from vllm.distributed.kv_events import KVEventBatch  # noqa: PLC0415 - vLLM is there when this runs

                self.scheduler.kv_event_publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def apply(self, new: Policy) -> None:
        """Put a policy in force, unless it is older than the present one."""
        policy = succeed(self.policy, new)
        if policy == self.policy:
            return
        self.policy = policy
        for listener in self._listeners:
            listener(policy)
        log.info(
            "cachefleet: policy %d in force: threshold %.2f, preemption %s below %.2f, budget %s MiB",
            policy.generation,
            policy.threshold,
            "handed back" if policy.hand_back else "recomputed",
            policy.reject_below,
            "no bound on" if policy.budget_mib is None else policy.budget_mib,
        )

    def apply_file(self, path: Path) -> None:
        """Put the policy of a JSON file in force. OSError or ValueError where it holds none."""
        try:
            self.apply(msgspec.json.decode(path.read_bytes(), type=Policy))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def _describe(self, _payload: bytes) -> bytes:
        return msgspec.msgpack.encode(
            {
                "rank": self.rank,
                "boot": self.boot,
                "block_bytes": self.block_bytes,
                "blocks_total": int(self.scheduler.kv_cache_manager.block_pool.num_gpu_blocks),
                "block_size": int(self.scheduler.block_size),
                "groups": self.groups,
                "lookahead": self.lookahead,
                "features": self.capabilities.document(),
            }
        )

    def _put_policy(self, payload: bytes) -> bytes:
        self.apply(msgspec.msgpack.decode(payload, type=Policy))
        return self._stats(b"")

    def _stats(self, _payload: bytes) -> bytes:
        scheduler = self.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        running, waiting = scheduler.get_request_counts()
        stats: dict[str, Any] = {
            "boot": self.boot,
            "generation": self.policy.generation,
            "running": running,
            "waiting": waiting,
            "blocks_total": pool.num_gpu_blocks,
            "blocks_free": pool.get_num_free_blocks(),
            "block_bytes": self.block_bytes,
            "suspended": self._suspended(),
            "unfinished": scheduler.get_num_unfinished_requests(),
            "counts": dict(self.counts),
            "faults": dict(self.faults.counts),
        }
        for reading in self._readings:
            stats |= reading()
        return msgspec.msgpack.encode(stats)

    def _suspended(self) -> str:
        """Why this engine makes no step though requests may wait; "" where it would."""
        if getattr(self.executor, "is_sleeping", False):
            return Suspension.ASLEEP
        return Suspension.PAUSED if int(getattr(self.scheduler, "pause_state", 0)) else ""

    def _audit(self, _payload: bytes) -> bytes:
        found: dict[str, Any] = {"boot": self.boot}
        for check in self._checks:
            found |= check()
        return msgspec.msgpack.encode(found)

    def enabled(self, feature: str) -> bool:
        """Whether a feature is wanted; one disabled by a setting is reported as off."""
        if off := self.settings.switched_off(feature):
            self.faults.off(feature, off)
            return False
        return self.capabilities.mode(feature) != OFF or self.faults.on(feature)
