"""One answer that is recorded: the names and the time in it, and the parts of its record that are to be sent.

vLLM names answers, items and calls of tools at random, and dates them. Where an answer is recorded both come of the
gateway's header, so that whoever makes its stream again makes the same bytes.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final

from cachefleet_core.engine.answer_replay import Part, ReplayAsk, Unrecorded, comment
from cachefleet_worker.plugin.replay.token_logprobs import recorded_logprobs

_NAME_BITS: Final = 128


class RecordedAnswer:
    """The record of one answer; ``parts``: what another worker has recorded of it."""

    def __init__(self, ask: ReplayAsk, parts: Sequence[Part] = ()) -> None:
        self.seconds = float(ask.seconds)
        self.parts = list(parts)
        self.replayed: deque[Any] = deque()
        """Outputs of the engine that come of the parts, and are to be given first."""
        self.off: Unrecorded | None = None
        """Why it is not recorded."""
        self.restored: frozenset[Unrecorded] = frozenset()
        """What its engine goes on with that others do not."""
        self.cached: int | None = None
        self.written: int | None = None
        """Counts of the prompt's tokens as the first worker told them."""
        self._names = random.Random(ask.name)  # noqa: S311 - names, no secrets
        self._seeded = True
        self._prompt = ""
        self._begun = False
        self._pending: list[bytes] = []

    def uuid4(self) -> uuid.UUID:
        """The next name in it."""
        if not self._seeded:
            return uuid.uuid4()
        return uuid.UUID(int=self._names.getrandbits(_NAME_BITS), version=4)

    @contextmanager
    def own_names(self) -> Iterator[None]:
        """Names are random meanwhile: an engine's own for a request are of no other request, ever."""
        self._seeded = False
        try:
            yield
        finally:
            self._seeded = True

    def begin(self, prompt: Sequence[int], reason: Unrecorded | None) -> bool:
        """The engine is asked; whether the parts go before its outputs. ``reason``: why it is not recorded."""
        if self._begun:
            self.refuse(Unrecorded.ROUNDS)
            return False
        self._begun = True
        self._prompt = "" if reason else digest(prompt)
        if reason is None and self.parts and self.parts[0].prompt != self._prompt:
            reason = Unrecorded.PROMPT
        if reason is not None:
            self.refuse(reason)
            return False
        if self.parts:
            self.cached, self.written = self.parts[0].cached, self.parts[0].written
        return bool(self.parts)

    def refuse(self, reason: Unrecorded) -> None:
        """There is no record of it, or no more."""
        if self.off is None:
            self.off = reason
            self._pending.append(comment(Part(off=reason)))

    def note(self, output: Any) -> None:
        """Add an output of the engine, of one choice, before anything is made of it."""
        if self.off is not None:
            return
        (choice,) = output.outputs
        first = {"prompt": self._prompt, "cached": output.num_cached_tokens, "written": _written(output)}
        ends = {"finish": choice.finish_reason or "", "stop": choice.stop_reason}
        ids, logprobs = list(choice.token_ids), recorded_logprobs(getattr(choice, "logprobs", None))
        if logprobs and len(logprobs) != len(ids):
            self.refuse(Unrecorded.LOGPROBS)
            return
        part = Part(ids=ids, logprobs=logprobs, **ends, **(first if self._prompt else {}))
        self._prompt = ""
        self._pending.append(comment(part))

    def take(self) -> bytes:
        """The comments that are yet to be sent."""
        told, self._pending = b"".join(self._pending), []
        return told


current: ContextVar[RecordedAnswer | None] = ContextVar("cachefleet_recorded", default=None)
"""The answer that is being made, where it is recorded."""


def digest(ids: Sequence[int]) -> str:
    """Digest of a prompt's ids."""
    return sha256(b",".join(b"%d" % each for each in ids)).hexdigest()


def _written(output: Any) -> int | None:
    written: int | None = getattr(output, "num_cache_creation_tokens", None)
    return written
