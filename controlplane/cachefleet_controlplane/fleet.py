"""The live picture: pools, workers, what they hold and do, and decisions in flight.

One event loop owns a Fleet; nothing in it awaits, so between two awaits of its callers the picture stands still.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from cachefleet_controlplane.index import BlockIndex
from cachefleet_controlplane.pools import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing import Decision, Prompt, RoutingPolicy
from cachefleet_controlplane.views import FleetView, ServedModel
from cachefleet_core.blocks import BlockKeyer


class Flight(Protocol):
    """One request under way to a worker; a context manager that finishes it."""

    def first_token(self) -> None:
        """The worker has prefilled the prompt."""

    def finish(self, *, cached_tokens: int | None = None) -> None:
        """The request is over; ``cached_tokens`` is what the engine says it served from cache. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Fleet:
    """See the module; ``clock`` is monotonic, in seconds, ``index_key`` seeds block keys."""

    def __init__(
        self,
        index: BlockIndex,
        *,
        index_key: bytes,
        clock: Callable[[], float] = time.monotonic,
        policy: RoutingPolicy = RoutingPolicy.CACHE_AWARE,
    ) -> None:
        self.policy = policy

    def update_pools(self, views: Sequence[PoolView]) -> None:
        """The whole picture of pools and endpoints, as a PoolSource gives it."""
        raise NotImplementedError

    def models(self) -> list[ServedModel]:
        """Every model that a pool serves, by name."""
        raise NotImplementedError

    def serving(self, model: str) -> ServedModel | None:
        raise NotImplementedError

    def renderers(self, model: str) -> list[WorkerEndpoint]:
        raise NotImplementedError

    def keyer(self, model: str, *, salt: str = "", lora: str = "") -> BlockKeyer | None:
        raise NotImplementedError

    def route(
        self,
        model: str,
        prompt: Prompt,
        *,
        exclude: frozenset[str] = frozenset(),
        policy: RoutingPolicy | None = None,
    ) -> Decision:
        """Decide; ``exclude`` names workers as decisions do (``Decision.worker``). Call ``begin`` before awaiting."""
        raise NotImplementedError

    def begin(self, decision: Decision, prompt: Prompt) -> Flight:
        raise NotImplementedError

    def worker_failed(self, worker: str) -> None:
        raise NotImplementedError

    def view(self) -> FleetView:
        raise NotImplementedError
