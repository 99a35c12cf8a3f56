"""Keeps judgements in the store: writes what is new now and then, and reads what was judged before or elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from cachefleet_controlplane.judgements.judged_minutes import HourPart, JudgedMinutes
from cachefleet_controlplane.judgements.judgement_repository import HOUR_SECONDS, Judged, KeptChange, SqlJudgements
from cachefleet_controlplane.store.content.store_thread import StoreThread
from cachefleet_controlplane.store.store_errors import StoreError

WRITE_SECONDS: Final = 15.0
MOST_READ: Final = 4
"""Contracts and pools that are read whole in one call of the store: a month of each is up to some thousand rows."""
Judging = Callable[[], Iterable[tuple[Judged, JudgedMinutes]]]
"""All that is judged now."""


class SizeChangeKeeper(Protocol):
    """Pools whose changes of size are kept."""

    def unread(self) -> Iterable[str]:
        """Pools that were not restored yet."""
        ...

    def restore(self, pool: str, kept: Sequence[KeptChange]) -> None:
        """Go on from what was kept, the latest last."""
        ...

    def take_changed(self) -> list[KeptChange]:
        """What was not written yet."""
        ...

    def put_back(self, changes: Sequence[KeptChange]) -> None:
        """It could not be written."""
        ...


class JudgementLog:
    """Run ``run()`` as a task. While the store fails, minutes wait in memory, which bounds them."""

    def __init__(
        self,
        thread: StoreThread[SqlJudgements],
        judging: Sequence[Judging],
        changes: SizeChangeKeeper,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._thread = thread
        self._judging = judging
        self._changes = changes
        self._clock, self._sleep = clock, sleep
        self._read: dict[Judged, JudgedMinutes] = {}
        """Those that were read, and what they were read into."""
        self._read_at: int | None = None
        """When the last time, by the database's clock."""

    async def run(self) -> None:
        """Exchange with the store now and then until cancelled, and then once more."""
        try:
            while True:
                await self.exchange()
                await self._sleep(WRITE_SECONDS)
        except asyncio.CancelledError:
            await self.exchange()
            raise

    async def exchange(self) -> None:
        """Write what is new, and read what others wrote; what fails is tried again the next time."""
        with suppress(StoreError):  # counted and logged by the thread
            while await self._exchange_minutes():
                pass
            await self._exchange_changes()

    async def _exchange_minutes(self) -> bool:
        """Write all that is new, and read some of what was never read; whether there is more of that."""
        there = dict(pair for judging in self._judging for pair in judging())
        self._read = {named: minutes for named, minutes in self._read.items() if there.get(named) is minutes}
        unread = [named for named in there if named not in self._read]
        unread, more = unread[:MOST_READ], unread[MOST_READ:]
        written = [(named, part) for named, minutes in there.items() for part in minutes.take_changed()]
        since = int(self._clock()) // HOUR_SECONDS - 1
        try:
            found = await self._thread.ask(
                "minutes", lambda store: store.exchange(written, unread, since=since, read_at=self._read_at)
            )
        except StoreError:
            for named, part in written:
                there[named].change(part.hour)
            raise
        self._read_at = found.at
        _join(found.parts, there)
        self._read |= {named: there[named] for named in unread}
        return bool(more)

    async def _exchange_changes(self) -> None:
        for pool in list(self._changes.unread()):
            kept = await self._thread.ask("changes", lambda store, pool=pool: store.changes(pool))  # type: ignore[misc]
            self._changes.restore(pool, kept)
        changed = self._changes.take_changed()
        try:
            if changed:
                await self._thread.ask("changes", lambda store: store.keep(changed))
        except StoreError:
            self._changes.put_back(changed)
            raise


def _join(found: Iterable[tuple[Judged, HourPart]], there: Mapping[Judged, JudgedMinutes]) -> None:
    for named, part in found:
        if named in there:
            there[named].join(part)
