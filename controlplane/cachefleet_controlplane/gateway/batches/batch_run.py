"""Runs one batch by its lease: checks it, has its lines answered on spare room, writes its files.

What it has done is in the store line by line, so whoever holds the batch next goes on from there. A line is kept once,
by whoever is first; one that was under way when a runner ended is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.gateway.batches.batch_lines import answer_line as line_of
from cachefleet_controlplane.gateway.batches.batch_lines import read_line
from cachefleet_controlplane.gateway.batches.batch_metrics import BatchMetrics, LineOutcome
from cachefleet_controlplane.gateway.batches.batch_object import Batch, BatchBounds, ErrorLine
from cachefleet_controlplane.gateway.batches.batch_repository import BatchLease, WaitingLine
from cachefleet_controlplane.gateway.batches.batch_status import OVER, BatchEvent, BatchStatus, StatusError
from cachefleet_controlplane.gateway.batches.batch_store import BatchStore
from cachefleet_controlplane.gateway.batches.input_file import InputFile
from cachefleet_controlplane.gateway.batches.line_request import (
    MAX_RETRY_SECONDS,
    Enter,
    LineAnswer,
    Serve,
    answer_line,
)
from cachefleet_controlplane.gateway.batches.line_results import LineResults
from cachefleet_controlplane.gateway.batches.result_files import ResultFiles
from cachefleet_controlplane.gateway.batches.spare_room import SpareRoom
from cachefleet_controlplane.gateway.batches.validation import Validation
from cachefleet_controlplane.gateway.files.kept_files import KeptFiles
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError

logger = logging.getLogger(__name__)

FETCHED: Final = 256
"""Waiting lines that are read at once."""
ADDED: Final = 1000
"""Lines that are added in one transaction."""
TRIES: Final = 3
"""How often a line is asked whose answers are errors of workers (500, 502, 504)."""
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What all runs of a replica share."""

    store: BatchStore
    files: KeptFiles
    results: LineResults
    serve: Serve
    enter: Callable[[Batch], Enter]
    """Returns what admits the requests of a batch."""
    most: Callable[[Batch], int]
    """Lines of a batch that may be under way at most."""
    spare: Callable[[str], bool]
    """Whether there is spare room for a model."""
    slots: asyncio.Semaphore
    """Lines under way, over all batches."""
    bounds: BatchBounds
    metrics: BatchMetrics
    leaving: asyncio.Event
    """Set when the replica stops: no line begins any more."""
    wall_clock: Callable[[], float] = time.time


class BatchRun:
    """One batch, held by the name ``holder``."""

    def __init__(self, batch: Batch, holder: str, parts: RunParts) -> None:
        self.batch = batch
        self._holder = holder
        self._parts = parts
        self._room = SpareRoom(parts.most(batch))
        self._input: InputFile | None = None
        self._fetched: deque[WaitingLine] = deque()
        self._turn = -1
        self._tries: dict[int, int] = {}
        self._spent = False
        """A budget is spent until after the batch's window."""
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Bring the batch to its end, or as far as it goes. LeaseLostError, StoreError, ApiError 503."""
        tasks = {asyncio.create_task(self._beat()), asyncio.create_task(self._work())}
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()

    async def _beat(self) -> None:
        """Say that it still runs, and see what has become of the batch."""
        while True:
            await asyncio.sleep(self._parts.bounds.lease_seconds / 6)
            try:
                await self._renew()
            except StoreError:
                continue  # a line that is to be kept sees to it

    async def _renew(self) -> None:
        lease = self._lease()
        self.batch = await self._parts.store.ask("renew", lambda store: store.renew(lease))

    def _lease(self) -> BatchLease:
        return BatchLease(self.batch.id, self._holder, self._parts.wall_clock() + self._parts.bounds.lease_seconds)

    async def _work(self) -> None:
        stages = {
            BatchStatus.VALIDATING: self._validate,
            BatchStatus.IN_PROGRESS: self._answer,
            BatchStatus.FINALIZING: self._finish,
            BatchStatus.CANCELLING: self._cancel,
        }
        while self.batch.status not in OVER and not self._parts.leaving.is_set():
            try:
                await stages[self.batch.status]()
            except StatusError:
                await self._renew()  # it was cancelled meanwhile

    # The check.

    async def _validate(self) -> None:
        check = Validation(self.batch.endpoint, self._parts.bounds, secrets.token_bytes(32))
        try:
            await check.read(await self._opened())
        except ApiError as error:
            if error.status != 404:
                raise
            check.errors.append(ErrorLine("file_not_found", "The input file is not there any more."))
        if check.errors:
            await self._move(BatchEvent.INVALID, errors=[_told(one) for one in check.errors])
            return
        await self._parts.store.ask("drop", lambda store: store.drop_lines(self._lease()))
        lines = check.waiting()
        for at in range(0, len(lines), ADDED):
            await self._add(lines[at : at + ADDED])
        await self._move(BatchEvent.VALID, total=len(lines), model=check.model)

    async def _add(self, lines: list[WaitingLine]) -> None:
        await self._parts.store.ask("add", lambda store: store.add_lines(self._lease(), lines))

    async def _move(self, event: BatchEvent, **values: object) -> None:
        now = self._parts.wall_clock()
        moved = lambda store: store.move(self._lease(), event, now, **values)  # noqa: E731
        self.batch = await self._parts.store.ask("move", moved)

    async def _opened(self) -> InputFile:
        if self._input is None:
            files = self._parts.files
            self._input = InputFile(files, await files.file(self.batch.tenant, self.batch.input_file))
        return self._input

    # The lines.

    async def _answer(self) -> None:
        if not self._late:
            await self._answer_lines()
        await self._renew()
        if self.batch.status is BatchStatus.IN_PROGRESS and self._late:
            await self._leave_rest(LineOutcome.EXPIRED)
            await self._write(BatchEvent.WRITTEN_LATE)
        elif self.batch.status is BatchStatus.IN_PROGRESS and not self._parts.leaving.is_set():
            if self._spent:
                await self._leave_rest(LineOutcome.OVER_BUDGET)
            await self._move(BatchEvent.ANSWERED)

    async def _answer_lines(self) -> None:
        """Have lines answered; those under way at the end are dropped, unless the replica stops and has time, or a
        budget is spent: they were admitted before.
        """
        finish = False
        try:
            await self._run_lines()
            finish = self._parts.leaving.is_set() or self._spent
        finally:
            await self._end_lines(finish=finish)

    @property
    def _late(self) -> bool:
        return self._parts.wall_clock() >= self.batch.expires

    async def _run_lines(self) -> None:
        """Return when no line waits, the window or a budget is over, the batch is cancelled or the replica stops."""
        self._turn = -1
        self._fetched.clear()
        while self._goes_on():
            if not self._fetched:
                await self._fetch()
            if not self._fetched and not self._under_way:
                return
            if self._fetched and self._has_room():
                self._begin(self._fetched.popleft())
            else:
                await self._pause()

    def _goes_on(self) -> bool:
        over = self._late or self._spent or self._parts.leaving.is_set()
        return self.batch.status is BatchStatus.IN_PROGRESS and not over

    async def _fetch(self) -> None:
        turn = self._turn
        if turn == -1 and self._under_way:
            return  # those would be read once more
        found = await self._parts.store.ask(
            "waiting", lambda store: store.waiting(self.batch.id, after=turn, limit=FETCHED)
        )
        self._fetched.extend(found)
        self._turn = found[-1].turn if found else -1

    def _has_room(self) -> bool:
        room = self._room
        if len(self._under_way) >= room.lines or not room.open(time.monotonic()):
            return False
        if self._parts.spare(self.batch.model):
            return True
        room.refused(time.monotonic(), seconds=self._parts.bounds.poll_seconds)
        return False

    async def _pause(self) -> None:
        """Until a line is answered, or there may be room."""
        if self._under_way:
            await asyncio.wait(
                self._under_way, timeout=self._parts.bounds.poll_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(self._parts.bounds.poll_seconds / 4)
        for task in [one for one in self._under_way if one.done()]:
            self._under_way.discard(task)
            task.result()

    def _begin(self, line: WaitingLine) -> None:
        self._under_way.add(asyncio.create_task(self._line(line)))

    async def _end_lines(self, *, finish: bool) -> None:
        tasks, self._under_way = self._under_way, set()
        for task in () if finish else tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _line(self, line: WaitingLine) -> None:
        async with self._parts.slots:
            request = read_line(await (await self._opened()).line(line.at))
            enter = self._parts.enter(self.batch)
            answer = await answer_line(self._parts.serve, enter, url=request.url, body=bytes(request.body))
        if self._again(line, answer):
            self._parts.metrics.line(LineOutcome.RETRIED)
            self._fetched.append(line)
            return
        number, batch = line.at.number, self.batch
        told = line_of(
            *(batch.id, number, request.custom_id),
            status=answer.status,
            request_id=answer.request_id,
            body=answer.body,
        )
        sealed = self._parts.results.seal(batch, number, told)
        await self._keep(number, sealed, failed=answer.status != 200)
        self._room.answered()

    def _again(self, line: WaitingLine, answer: LineAnswer) -> bool:
        if answer.again:
            seconds = answer.retry_seconds or self._parts.bounds.poll_seconds
            self._room.refused(time.monotonic(), seconds=min(seconds, MAX_RETRY_SECONDS))
            spent = answer.spent_seconds
            self._spent |= spent > 0 and self._parts.wall_clock() + spent >= self.batch.expires
            return True
        tries = self._tries.pop(line.at.number, 0) + 1
        if answer.status < _SERVER_ERROR or tries >= TRIES:
            return False
        self._tries[line.at.number] = tries
        return True

    async def _keep(self, number: int, sealed: bytes, *, failed: bool) -> None:
        """Keep an answer, also where the store fails for a while."""
        while True:
            try:
                self.batch = await self._parts.store.ask(
                    "answered", lambda store: store.answered(self._lease(), number, sealed, failed=failed)
                )
            except StoreError:
                await asyncio.sleep(self._parts.bounds.poll_seconds)
            else:
                self._parts.metrics.line(LineOutcome.FAILED if failed else LineOutcome.ANSWERED)
                return

    # The end.

    async def _cancel(self) -> None:
        if not self.batch.total:
            await self._parts.store.ask("drop", lambda store: store.drop_lines(self._lease()))
        await self._leave_rest(LineOutcome.CANCELLED)
        await self._write(BatchEvent.WRITTEN)

    async def _finish(self) -> None:
        await self._write(BatchEvent.WRITTEN)

    async def _leave_rest(self, outcome: LineOutcome) -> None:
        left = await self._parts.store.ask("leave", lambda store: store.leave_rest(self._lease()))
        self._parts.metrics.line(outcome, left)

    async def _write(self, event: BatchEvent) -> None:
        try:
            source: InputFile | None = await self._opened()
        except ApiError as error:
            if error.status != 404:
                raise
            source = None
        written = ResultFiles(self.batch, source, self._parts.results)
        output, errors = await written.write(self._parts.store, self._parts.files)
        now = self._parts.wall_clock()
        deleted = now + self._parts.bounds.kept_seconds
        kept: Mapping[str, str | None] = {"output_file": output, "error_file": errors}
        self.batch = await self._parts.store.ask(
            "finish", lambda store: store.finish(self._lease(), event, now, files=kept, deleted=deleted)
        )


def _told(error: ErrorLine) -> dict[str, object]:
    return {"code": error.code, "message": error.message, "line": error.line, "param": error.param}
