"""Turns by handle, in one API server; bounded in bytes, number and time.

Using a turn makes it, and after it each of its ancestors, the most recently used. So a turn is always less recently
used than its ancestors, and the least recently used of all has no descendants: it can go, and nothing else misses it.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from cachefleet_core.continuation import HANDLE_PREFIX, RefusalCode
from cachefleet_worker.plugin.conversations.turn import Api, Turn


class Outcome(StrEnum):
    """What became of a request with a conversation, besides refusals."""

    CONTINUED = "continued"
    KEPT = "kept"
    """Its turn is kept, or its equal was."""
    NOT_KEPT = "not_kept"
    """Several prompts, media, an input that is no list, or no room."""


OUTCOMES: Final = (*Outcome, *RefusalCode)


class TurnStore:
    """Keeps turns for ``seconds`` after their last use, within ``max_bytes`` and ``max_turns``. For one event loop."""

    def __init__(
        self, *, max_bytes: int, max_turns: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._max_turns = max_turns
        self._seconds = seconds
        self._clock = clock
        self._server = secrets.token_hex(8)
        self._kept: OrderedDict[str, tuple[float, Turn]] = OrderedDict()
        self._names: dict[str, bytes] = {}
        self._named: dict[bytes, Turn] = {}
        self._bytes = 0
        self._outcomes: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Turn]:
        """The turns, the least recently used first."""
        return iter([turn for _, turn in self._kept.values()])

    def find(self, handle: str, *, api: Api, salt: str) -> Turn | None:
        """The turn of a handle, which is used thereby; None where it is another's or not kept."""
        self._drop_old()
        _, turn = self._kept.get(handle, (0.0, None))
        if turn is None or turn.common.api is not api or turn.common.salt != salt:
            return None
        self._use(turn)
        return turn

    def keep(self, turn: Turn) -> Turn | None:
        """The turn with a handle, which cannot be guessed, or its equal; None where there is no room for it."""
        self._drop_old()
        if turn.parent is not None and turn.parent.handle not in self._kept:
            turn = dataclasses.replace(turn, added=turn.whole, parent=None)
        name = turn.name
        kept = self._named.get(name) or self._add(turn, name)
        self._use(kept)
        self._bound()
        found = kept.handle in self._kept
        self.count(Outcome.KEPT if found else Outcome.NOT_KEPT)
        return kept if found else None

    def resize(self, max_turns: int) -> None:
        """Set the largest number of turns, and drop down to it."""
        self._max_turns = max_turns
        self._bound()

    def clear(self) -> int:
        """Drop every turn; how many there were."""
        dropped = len(self._kept)
        for held in (self._kept, self._names, self._named):
            held.clear()
        self._bytes = 0
        return dropped

    def count(self, outcome: Outcome | RefusalCode) -> None:
        """Count what became of a request."""
        self._outcomes[outcome] += 1

    def stats(self) -> dict[str, int]:
        """Outcomes since the start; turns and bytes kept now. An agent asks for them: that ends what is too old."""
        self._drop_old()
        counts = {outcome.value: self._outcomes[outcome] for outcome in OUTCOMES}
        return {**counts, "turns": len(self._kept), "bytes": self._bytes}

    def _add(self, turn: Turn, name: bytes) -> Turn:
        kept = dataclasses.replace(turn, handle=f"{HANDLE_PREFIX}{self._server}_{secrets.token_hex(16)}")
        self._names[kept.handle], self._named[name] = name, kept
        self._bytes += kept.size
        return kept

    def _use(self, turn: Turn) -> None:
        now = self._clock()
        for each in turn.ancestry():
            self._kept[each.handle] = now, each
            self._kept.move_to_end(each.handle)

    def _bound(self) -> None:
        while self._bytes > self._max_bytes or len(self._kept) > self._max_turns:
            self._drop_first()

    def _drop_old(self) -> None:
        oldest = self._clock() - self._seconds
        while self._kept and next(iter(self._kept.values()))[0] < oldest:
            self._drop_first()

    def _drop_first(self) -> None:
        handle, (_, turn) = self._kept.popitem(last=False)
        del self._named[self._names.pop(handle)]
        self._bytes -= turn.size
