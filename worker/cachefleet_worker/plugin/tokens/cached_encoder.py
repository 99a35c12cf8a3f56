"""Memoised tokenisation in one vLLM process: the tokenizers it serves, its counters, and when it stops."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.tokens.background_tokenizer import Background
from cachefleet_worker.plugin.tokens.boundaries import Marks, Position, propose
from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Reason
from cachefleet_worker.plugin.tokens.segments import PartEncoder, PartError
from cachefleet_worker.plugin.tokens.token_cache import TokenCache
from cachefleet_worker.plugin.tokens.tokenizer import marks_of, prepared

log = logging.getLogger("vllm.cachefleet")

FEATURE: Final = "tokens"
MODE: Final = "cache"
SHORTEST_TEXT: Final = 64
"""Characters; a shorter text is encoded faster than looked up."""

Plain = Callable[[], list[int]]


@dataclass(slots=True, eq=False)
class Seat:
    """State of one tokenizer. ``encoder`` is None until it is proven, and after a refusal."""

    owner: int
    encoder: PartEncoder | None = None
    refusal: PlainOnly | None = None
    asked: bool = False
    marks: Marks | None = None
    marked: bool = False


class CachedEncoder:
    """One per process; thread-safe."""

    def __init__(
        self, capabilities: Capabilities, faults: Faults, *, max_bytes: int, sample_ratio: float, rng: random.Random
    ) -> None:
        self._capabilities = capabilities
        self._cache = TokenCache(max_bytes)
        self._sample_ratio = sample_ratio
        self._rng = rng
        self._background = Background(faults, FEATURE)
        self._lock = threading.Lock()
        self._seats: WeakKeyDictionary[Any, Seat] = WeakKeyDictionary()
        self._owners = 0
        self._counts: Counter[str] = Counter()
        capabilities.add(FEATURE, OFF, "no text has come yet")

    def encode(
        self,
        tokenizer: Any,
        text: str,
        salt: str,
        *,
        add_special_tokens: bool,
        max_length: int | None,
        plain: Plain | None = None,
    ) -> list[int] | None:
        """The ids of ``text``, or None where the plain encoder is to be used.

        A text of more than ``max_length`` ids is left to the plain encoder, which truncates in its own way. A few
        samples are compared with ``plain``, later and on another thread; without it with a private copy of the
        tokenizer: vLLM's own holds truncation as state, so it must not be used beside vLLM.
        """
        seat = self._seat(tokenizer)
        ids = self._attempt(tokenizer, seat, text, salt, add_special_tokens=add_special_tokens, max_length=max_length)
        if isinstance(ids, str):
            self._count(f"plain_{ids}")
            return None
        self._count("memoised")
        self._count("ids", len(ids))
        if self._rng.random() < self._sample_ratio:
            self._sample(seat, ids, plain or _plain(seat, text, add_special_tokens=add_special_tokens))
        return ids

    def expect(self, tokenizer: Any) -> None:
        """Have a tokenizer prepared in the background, once; None is ignored."""
        if tokenizer is not None:
            self._ask(tokenizer, self._seat(tokenizer))

    def boundaries(self, tokenizer: Any, ids: Sequence[int], *, reused: Position = 0) -> list[Position]:
        """Safe boundaries of a rendered chat, ascending; proposals, see boundaries.py."""
        seat = self._seat(tokenizer)
        if not seat.marked:
            seat.marks, seat.marked = marks_of(tokenizer), True
        return propose(ids, seat.marks, reused=reused)

    def prepare(self, tokenizer: Any) -> PlainOnly | None:
        """Prove a tokenizer now, in this thread; returns the refusal where it is left to the plain encoder."""
        seat = self._seat(tokenizer)
        found = prepared(tokenizer, self._cache, owner=seat.owner)
        if isinstance(found, PlainOnly):
            self._refuse(seat, found)
        else:
            seat.encoder = found
            self._capabilities.add(FEATURE, MODE)
            log.info("cachefleet: tokenisation is memoised, cut at %d tokens", len(found.plan.cuts))
        return seat.refusal

    def settle(self) -> None:
        """Wait for the background jobs queued so far."""
        self._background.settle()

    def reason(self, tokenizer: Any) -> PlainOnly | None:
        """Why a tokenizer is left to the plain encoder; None where it is not, or is not yet prepared."""
        return self._seat(tokenizer).refusal

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the size of the cache now."""
        with self._lock:
            return dict(self._counts) | self._cache.stats()

    def _attempt(
        self, tokenizer: Any, seat: Seat, text: str, salt: str, *, add_special_tokens: bool, max_length: int | None
    ) -> list[int] | str:
        """The ids, or why the plain encoder is to be used, as a code."""
        encoder = seat.encoder
        if encoder is None:
            self._ask(tokenizer, seat)
            return "refused" if seat.refusal else "preparing"
        if len(text) < SHORTEST_TEXT:
            return "short"
        try:
            ids = encoder.encode(text, salt, add_special_tokens=add_special_tokens)
        except (PartError, TypeError, ValueError, OverflowError):  # invalid Unicode, say: vLLM words the error
            return "unencodable"
        if ids is None:
            return "framed"
        return ids if max_length is None or len(ids) <= max_length else "long"

    def _seat(self, tokenizer: Any) -> Seat:
        with self._lock:
            seat = self._seats.get(tokenizer)
            if seat is None:
                self._owners += 1
                seat = self._seats[tokenizer] = Seat(self._owners)
            return seat

    def _ask(self, tokenizer: Any, seat: Seat) -> None:
        with self._lock:
            if seat.asked or seat.refusal is not None:
                return
            seat.asked = True
        seat.asked = self._background.submit(lambda: self._prepare(tokenizer))

    def _prepare(self, tokenizer: Any) -> None:
        self.prepare(tokenizer)

    def _refuse(self, seat: Seat, refusal: PlainOnly) -> None:
        seat.encoder, seat.refusal = None, refusal
        self._cache.forget(seat.owner)
        self._capabilities.add(FEATURE, OFF, str(refusal))
        log.warning("cachefleet: tokenisation is not memoised: %s", refusal)

    def _sample(self, seat: Seat, ids: list[int], plain: Plain | None) -> None:
        known = tuple(ids)
        if plain is None or not self._background.submit(lambda: self._check(seat, known, plain)):
            self._count("samples_dropped")

    def _check(self, seat: Seat, ids: tuple[int, ...], plain: Plain) -> None:
        same = tuple(plain()) == ids
        self._count("samples")
        if not same:
            self._count("mismatches")
            self._refuse(seat, PlainOnly(Reason.MISMATCH))

    def _count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount


def _plain(seat: Seat, text: str, *, add_special_tokens: bool) -> Plain | None:
    """The plain encoder for one text; None where the tokenizer was refused meanwhile."""
    encoder = seat.encoder
    if encoder is None:
        return None
    return lambda: list(encoder.plain.encode(text, add_special_tokens=add_special_tokens).ids)
