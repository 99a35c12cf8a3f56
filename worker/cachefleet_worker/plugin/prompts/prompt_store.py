"""Rendered prompts by handle, in one API server; bounded in bytes and time."""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from cachefleet_worker.plugin.prompts.render_call import Call, RenderedPrompt

SECONDS: Final = 30.0
_HANDLE: Final = re.compile(r"([0-9a-f]{16})-[0-9a-f]{32}")


class HandleUse(StrEnum):
    """What became of a handle that a request bore. All but the first are rendered again."""

    USED = "used"
    UNKNOWN = "unknown"
    """Never given, used before, too old, or dropped for others."""
    OTHER_SERVER = "other_server"
    """Given by another API server of this engine, or by an earlier life of it."""
    OTHER_PROMPT = "other_prompt"
    """The request shapes its prompt in another way than the one that the handle was given for."""
    UNUSED = "unused"
    """The request rendered nothing."""


class PromptStore:
    """Keeps a prompt until it is used, for 30 s and within ``max_bytes``; the oldest give way. For one event loop."""

    def __init__(self, *, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._server = secrets.token_hex(8)
        self._kept: OrderedDict[str, tuple[float, RenderedPrompt]] = OrderedDict()
        self._bytes = 0
        self._outcomes: Counter[HandleUse] = Counter()

    def keep(self, prompt: RenderedPrompt) -> str:
        """A handle to a prompt, which cannot be guessed; "" where it is longer than all the room there is."""
        self._drop_old()
        if prompt.size > self._max_bytes:
            return ""
        handle = f"{self._server}-{secrets.token_hex(16)}"
        self._kept[handle] = self._clock(), prompt
        self._bytes += prompt.size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))
        return handle

    def use(self, handle: str, call: Call | None) -> RenderedPrompt | None:
        """The prompt that a handle was given for, where this call would render the same; counted either way."""
        self._drop_old()
        outcome = self._outcome(handle, call)
        self._outcomes[outcome] += 1
        return self._drop(handle) if outcome is HandleUse.USED else None

    def unused(self) -> None:
        """Count a handle whose request rendered nothing."""
        self._outcomes[HandleUse.UNUSED] += 1

    def stats(self) -> dict[str, int]:
        """Outcomes since the start; prompts and bytes kept now. An agent asks for them: that ends what is too old."""
        self._drop_old()
        counts = {outcome.value: self._outcomes[outcome] for outcome in HandleUse}
        return {**counts, "prompts": len(self._kept), "bytes": self._bytes}

    def _outcome(self, handle: str, call: Call | None) -> HandleUse:
        found = _HANDLE.fullmatch(handle)
        if found is None or found[1] != self._server:
            return HandleUse.OTHER_SERVER if found else HandleUse.UNKNOWN
        if handle not in self._kept:
            return HandleUse.UNKNOWN
        _, prompt = self._kept[handle]
        return HandleUse.USED if call is not None and prompt.call == call else HandleUse.OTHER_PROMPT

    def _drop(self, handle: str) -> RenderedPrompt:
        _, prompt = self._kept.pop(handle)
        self._bytes -= prompt.size
        return prompt

    def _drop_old(self) -> None:
        oldest = self._clock() - SECONDS
        while self._kept and next(iter(self._kept.values()))[0] < oldest:
            self._drop(next(iter(self._kept)))
