"""A gateway that serves batches from a database of a test's own, and runners that a test starts and ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import Any

import openai

from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.batches.batch_metrics import BatchMetrics
from cachefleet_controlplane.gateway.batches.batch_object import BatchBounds
from cachefleet_controlplane.gateway.batches.batch_repository import SqlBatches
from cachefleet_controlplane.gateway.batches.batch_routes import BatchRoutes
from cachefleet_controlplane.gateway.batches.batch_run import RunParts
from cachefleet_controlplane.gateway.batches.batch_runner import BatchRunner
from cachefleet_controlplane.gateway.batches.batch_store import BatchStore
from cachefleet_controlplane.gateway.batches.line_results import LineResults
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wiring.batch_parts import entering, has_spare_room, most_lines
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.files.keeping import Keeping
from tests.controlplane.gateway.harness import FLEET_KEY, MODEL, Front, Known, Worker, chat, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, directory
from tests.controlplane.waiting import until

QUICK = BatchBounds(requests=4, poll_seconds=0.02, lease_seconds=30.0)
OVER = {"completed", "failed", "expired", "cancelled"}


@dataclass
class Batches:
    """What keeps batches and files, and the gateway before it, once that is served."""

    database: Database
    bounds: BatchBounds = QUICK
    failed: list[str] = field(default_factory=list)
    may_begin: float = inf
    """Lines that runners may begin, beside what the fleet says."""
    url: str = ""
    """Of object storage for files."""

    def __post_init__(self) -> None:
        self.keeping = Keeping(self.database, url=self.url)
        self.clock = self.keeping.clock
        self.thread = StoreThread(
            *(SqlBatches(self.database), "batches"),
            failed=self.failed.append,
            prune=lambda store: store.prune(now=self.clock()),
            bounds=StoreThreadBounds(answer_seconds=60, retry_seconds=0),
        )
        self.store = BatchStore(self.thread)
        self.metrics = Metrics()
        self._counted = BatchMetrics(self.metrics)
        self._names = map("runner-{}".format, count(1))

    def _begins(self) -> bool:
        self.may_begin -= 1
        return self.may_begin >= 0

    def routes(self, bodies: RequestBodies) -> BatchRoutes:
        return BatchRoutes(self.store, self.keeping.files, bodies, self.bounds, wall_clock=self.clock)

    @asynccontextmanager
    async def served(self, engines: Sequence[Worker], **options: Any) -> AsyncIterator[Gate]:
        known = options.pop("known", None) or Known(directory(ACME, UMBRELLA))
        async with front(engines, batches=self.routes, known=known, **options) as made:
            asking = [clients(made.url, model=MODEL, key=KEYS[one.name]).openai for one in (ACME, UMBRELLA)]
            async with asking[0], asking[1]:
                yield Gate(self, made, *asking)

    def runner(self, gate: Front) -> BatchRunner:
        context, admission = gate.gateway._context, gate.gateway._admission
        spare = partial(has_spare_room, context, self.bounds)
        return BatchRunner(
            RunParts(
                store=self.store,
                files=self.keeping.files,
                results=LineResults(FLEET_KEY.history_key),
                serve=gate.gateway.serve_own,
                enter=partial(entering, admission),
                most=partial(most_lines, admission, self.bounds),
                spare=lambda model: spare(model) and self._begins(),
                slots=asyncio.Semaphore(self.bounds.requests),
                bounds=self.bounds,
                metrics=self._counted,
                leaving=asyncio.Event(),
                wall_clock=self.clock,
            ),
            new_name=self._names.__next__,
        )


@dataclass
class Gate:
    """A gateway, and the official client of each tenant."""

    batches: Batches
    front: Front
    acme: openai.AsyncOpenAI
    umbrella: openai.AsyncOpenAI

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BatchRunner]:
        """A runner, ended as a replica that stops ends it."""
        runner = self.batches.runner(self.front)
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def begun(self, lines: Iterable[bytes], **changes: Any) -> Any:
        """A batch of acme's with these lines."""
        file = await self.acme.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
        asked: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h"} | changes
        return await self.acme.batches.create(input_file_id=file.id, **asked)

    async def ended(self, batch: Any, *, seconds: float = 90) -> Any:
        """The batch once it is over."""

        def over() -> bool:
            return any(row["id"] == batch.id and row["status"] in OVER for row in self.batches.keeping.rows("batches"))

        await until(over, seconds=seconds)
        return await self.acme.batches.retrieve(batch.id)

    async def told(self, file: str | None) -> list[dict[str, Any]]:
        """The lines of a file."""
        if file is None:
            return []
        content = (await self.acme.files.content(file)).content
        return [json.loads(each) for each in content.splitlines()]

    async def answered(self, count: int) -> None:
        """Wait until so many lines are."""
        await until(lambda: sum(row["state"] > 0 for row in self.batches.keeping.rows("batch_lines")) >= count)


def line(custom_id: str, text: str = "hello there", **changes: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": chat(text, **changes)}).encode()
