"""Remembers which worker keeps which beginning of a conversation; bounded, and lost with this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter

from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.continuation import HANDLE_PREFIX, Fingerprints, KeptPrefix
from cachefleet_runtime.lru import LruMap


class HandleMetrics:
    """Counters in the registry of ``metrics``."""

    def __init__(self, metrics: Metrics) -> None:
        registry = metrics.registry
        self._requests = Counter(
            "cachefleet_continuation_handles",
            "Requests whose beginning a worker kept, by what became of its handle",
            ["outcome"],
            registry=registry,
        )
        self._refusals = Counter(
            "cachefleet_continuation_handle_refusals",
            "Handles that a worker did not continue, by its reason; the request was sent whole",
            ["code"],
            registry=registry,
        )
        self._bytes = Counter(
            "cachefleet_continuation_bytes_spared", "Bytes of bodies that workers were not sent", registry=registry
        )

    def request(self, outcome: str) -> None:
        """Count one ended request."""
        self._requests.labels(outcome).inc()

    def refused(self, code: str) -> None:
        """Count one handle that was refused."""
        self._refusals.labels(code).inc()

    def spared(self, count: int) -> None:
        """Count bytes that were not sent."""
        self._bytes.inc(max(0, count))


PLACES: Final = 4
"""Workers that are remembered for one beginning; the one heard of last comes first."""

SERVERS: Final = 10_000
"""API servers of workers that are remembered."""


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """A beginning as one worker keeps it."""

    url: str
    kept: KeptPrefix
    fingerprints: Fingerprints


class HandleMemory:
    """Workers by the digest of what they keep; at most ``limit`` beginnings, the least recently used dropped first."""

    def __init__(self, limit: int) -> None:
        self._held: LruMap[bytes, tuple[HeldPrefix, ...]] = LruMap(limit)
        self._places: LruMap[str, str] = LruMap(SERVERS)

    def __len__(self) -> int:
        return len(self._held)

    def at(self, digest: bytes) -> Sequence[HeldPrefix]:
        """Return who keeps a beginning."""
        return self._held.use(digest) or ()

    def add(self, digest: bytes, held: HeldPrefix) -> None:
        """Note that a worker keeps a beginning, under this handle from now on."""
        others = [one for one in self._held.get(digest, ()) if one.url != held.url]
        self._held.put(digest, (held, *others[: PLACES - 1]))

    def drop(self, digest: bytes, held: HeldPrefix) -> None:
        """Note that a worker has lost a handle; a newer one of that worker stays."""
        left = tuple(one for one in self._held.get(digest, ()) if one != held)
        if left:
            self._held[digest] = left
        else:
            self._held.pop(digest, None)

    def place(self, handle: str, url: str) -> None:
        """Note whose handle it is: all handles of one API server have a part in common."""
        self._places.put(_server(handle), url)

    def placed(self, handle: str) -> str:
        """Return the URL of the worker whose handle it is; "" where that is not known."""
        return self._places.use(_server(handle)) or ""


def _server(handle: str) -> str:
    return handle.removeprefix(HANDLE_PREFIX).partition("_")[0]
