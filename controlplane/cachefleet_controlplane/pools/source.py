"""Pools with their workers' endpoints: the PoolSource Protocol, and the source that reads two files.

A source is level-triggered: it gives the whole state at first and again at each change, so a slow consumer misses
nothing. A source that loses its origin keeps the last good state and says so in ``problem``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.first_ready_times import FirstReadyTimes
from cachefleet_core.budget import plan_budget
from cachefleet_core.pool.model_names import Claim
from cachefleet_core.pool.spec import PrefixCachePool, parse_pools
from cachefleet_core.pool.status import PoolStatus
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_core.report_frames import Hello

logger = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
POLL_SECONDS: Final = 0.5
"""How often the files are looked at."""


@lru_cache(maxsize=4096)
def address_of(url: str) -> str:
    """Return the address of a server as Envoy has it: host and port, an IPv6 host in brackets."""
    parts = urlsplit(url)
    return parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """One worker of a pool: the URL of its engine (``url``) and of its agent (``agent``, "" without one)."""

    name: str
    url: str
    ready: bool
    agent: str = ""
    pod: str = ""
    """The uid of its pod, "" outside of Kubernetes: it gets requests only once an agent has proved to be of that."""

    def is_at(self, addresses: Collection[str]) -> bool:
        """Whether its engine is at one of these addresses, each a host with or without a port."""
        address = address_of(self.url)
        host = address.rpartition(":")[0]
        return any(name in addresses for name in (address, host, host.strip("[]")))


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool with the spec that is in force, and its workers."""

    pool: PrefixCachePool
    workers: tuple[WorkerEndpoint, ...]
    place: int = 0
    """In the order in which a file declares pools."""
    admitted: bool = True
    """False where it is not known to be admitted: workers are told nothing new then."""

    @property
    def key(self) -> str:
        """As "namespace/name"."""
        return self.pool.key


class PoolSource(Protocol):
    """Where pools and endpoints come from."""

    @property
    def problem(self) -> str:
        """Why the state may be out of date, as a sentence; "" while all is well."""
        ...

    @property
    def unread(self) -> tuple[Claim, ...]:
        """The claims to model names of pools that cannot be read; a change of them is one of the state."""
        ...

    def watch(self) -> AsyncIterator[tuple[PoolView, ...]]:
        """The whole state as soon as it is known, then again at each change; never ends by itself."""
        ...


class EndpointEntry(msgspec.Struct, frozen=True):
    """One worker in the endpoints file."""

    name: str
    url: str
    agent: str = ""
    ready: bool = False
    pod: str = ""


Endpoints = dict[str, list[EndpointEntry]]
Announced = Callable[[str], Sequence[Hello]]
Stamp = tuple[int, int, int]


class FilePoolSource:
    """Pools from a pool file, workers from the endpoints file that a supervisor rewrites; both polled.

    A pool whose budget does not fit stays as it was admitted last: what the operator does in Kubernetes. ``announced``
    gives the Hellos of the workers of a model, which tell how many bytes a token takes; ``first_ready`` remembers
    which pool had a ready worker first, and so a name.
    """

    def __init__(
        self,
        pool_file: Path,
        endpoints_file: Path,
        *,
        metrics: Metrics,
        poll_seconds: float = POLL_SECONDS,
        announced: Announced = lambda _model: (),
        first_ready: FirstReadyTimes | None = None,
    ) -> None:
        self._pools = _WatchedFile(pool_file, metrics=metrics)
        self._endpoints = _WatchedFile(endpoints_file, metrics=metrics, optional=True)
        self._poll_seconds = poll_seconds
        self._metrics = metrics
        self._announced = announced
        self._first_ready = FirstReadyTimes() if first_ready is None else first_ready
        self._declared: list[PrefixCachePool] | None = None
        self._admitted: dict[str, PrefixCachePool] = {}
        self._shown: list[PrefixCachePool] = []
        self._reachable: Endpoints = {}

    @property
    def problem(self) -> str:
        """The problems of both files; "" while all is well."""
        return "; ".join(filter(None, (self._pools.problem, self._endpoints.problem)))

    @property
    def unread(self) -> tuple[Claim, ...]:
        """None: a file is read as a whole."""
        return ()

    async def watch(self) -> AsyncIterator[tuple[PoolView, ...]]:
        """The state at first and at each change, polled every ``poll_seconds``."""
        last: tuple[PoolView, ...] | None = None
        while True:
            picture = self.poll()
            if picture is not None and picture != last:
                last = picture
                self._metrics.pools_updated()
                yield picture
            await asyncio.sleep(self._poll_seconds)

    def poll(self) -> tuple[PoolView, ...] | None:
        """The state of the files now; None until a valid pool file was read."""
        pools, endpoints = self._pools.changed(), self._endpoints.changed()
        if pools is not None:
            self._declare(pools)
        if endpoints is not None:
            self._reach(endpoints)
        if self._declared is None:
            return None
        if pools is not None or endpoints is not None:
            self._shown = self._with_times(self._declared)
        views = pool_views(self._shown, self._reachable, ordered=True)
        return tuple(replace(view, admitted=view.key in self._admitted) for view in views)

    def _declare(self, text: bytes) -> None:
        try:
            pools = parse_pools(text.decode())
        except (PoolError, UnicodeDecodeError) as error:
            self._pools.reject("invalid", str(error))
        else:
            self._admit(pools)

    def _admit(self, pools: Sequence[PrefixCachePool]) -> None:
        plans = {pool.key: plan_budget(pool.spec, self._token_bytes(pool)) for pool in pools}
        sound = {pool.key: pool for pool in pools if not plans[pool.key].refused}
        kept = {pool.key: self._admitted[pool.key] for pool in pools if pool.key in self._admitted}
        self._admitted = kept | sound
        self._declared = [self._admitted.get(pool.key, pool) for pool in pools]
        if len(sound) < len(pools):
            refused = (f"{key}: {plan.message}" for key, plan in plans.items() if plan.refused)
            self._pools.reject("refused", "; ".join(refused))
        else:
            self._pools.accept()

    def _with_times(self, pools: Sequence[PrefixCachePool]) -> list[PrefixCachePool]:
        """The pools with the time at which each first had a ready worker, where it had one, unless the file says it."""
        ready = {key for key, workers in self._reachable.items() if any(worker.ready for worker in workers)}
        times = self._first_ready.note([pool.key for pool in pools], ready)
        return [_with_time(pool, times[pool.key]) if pool.key in times else pool for pool in pools]

    def _token_bytes(self, pool: PrefixCachePool) -> int | None:
        """The bytes of a token on one device, as the pool's workers report them; None where none does."""
        hellos = self._announced(f"{pool.metadata.namespace}/{pool.spec.model.name}")
        told = (hello for hello in hellos if hello.pool == pool.key and hello.block_bytes)
        return next((hello.block_bytes // hello.contract.block_size for hello in told), None)

    def _reach(self, text: bytes) -> None:
        try:
            self._reachable = parse_endpoints(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._endpoints.reject("invalid", str(error))
        else:
            self._endpoints.accept()


def _with_time(pool: PrefixCachePool, first_ready: str) -> PrefixCachePool:
    status = pool.status or PoolStatus()
    if status.first_ready_time:
        return pool
    return pool.model_copy(update={"status": status.model_copy(update={"first_ready_time": first_ready})})


def parse_endpoints(text: bytes) -> Endpoints:
    """The endpoints file; an empty one means no workers. msgspec.DecodeError tells what is wrong and where."""
    return msgspec.json.decode(text, type=Endpoints) if text else {}


def pool_views(
    pools: Sequence[PrefixCachePool], endpoints: Mapping[str, Sequence[EndpointEntry]], *, ordered: bool = False
) -> tuple[PoolView, ...]:
    """Pools with their workers, sorted; endpoints of an undeclared pool are left out.

    ``ordered``: the order of ``pools`` is that of their declaration, and not by chance.
    """
    return tuple(
        PoolView(
            pool,
            tuple(
                WorkerEndpoint(e.name, e.url, e.ready, e.agent, e.pod)
                for e in sorted(endpoints.get(pool.key, ()), key=lambda e: e.name)
            ),
            place,
        )
        for place, pool in sorted(enumerate(pools) if ordered else zip(repeat(0), pools), key=lambda one: one[1].key)
    )


class _WatchedFile:
    """A file that is read again when its inode, size or modification time differs; each problem is logged once."""

    def __init__(self, path: Path, *, metrics: Metrics, optional: bool = False) -> None:
        self._path = path
        self._metrics = metrics
        self._optional = optional
        self._stamp: Stamp | None = None
        self.problem = ""

    def changed(self) -> bytes | None:
        """The content where it is new; b"" for an optional file that never existed; else None."""
        try:
            return self._read()
        except FileNotFoundError:
            if self._optional and self._stamp is None:
                return b""
            self.reject("missing", "no such file")
        except OSError as error:
            self.reject("unreadable", error.strerror or str(error))
        return None

    def accept(self) -> None:
        """The last content is valid: clear ``problem``."""
        if self.problem:
            logger.info("%s is sound again", self._path.name, extra={"file": str(self._path)})
        self.problem = ""

    def reject(self, kind: str, text: str) -> None:
        """The last good content stays; log and count each problem once."""
        problem = f"{self._path.name}: {text}"
        if problem == self.problem:
            return
        self.problem = problem
        self._metrics.pool_source_error(kind)
        logger.warning("the last pools that were read stay in force: %s", problem, extra={"file": str(self._path)})

    def _read(self) -> bytes | None:
        # The stamp is taken before the content: a file replaced in between is read once more, never missed.
        stat = self._path.stat()
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        if stat.st_size > MAX_FILE_BYTES:
            self.reject("invalid", f"{stat.st_size} bytes, the limit is {MAX_FILE_BYTES}")
            return None
        return self._path.read_bytes()
