"""Encodes a text part by part: known parts from the cache, the rest in one call of the tokenizers library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_worker.plugin.tokens.chunks import CHUNK_CHARACTERS, Chunker
from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Plan, make_plan
from cachefleet_worker.plugin.tokens.splitter import Splitter
from cachefleet_worker.plugin.tokens.token_cache import Ids, Key, TokenCache

_PROBES: Final = ("a", "a b", "Hello, world 1", "\n", "é 漢字")


class PartError(Exception):
    """The parts were not encoded as planned; the text is left to the plain encoder."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Ids that ``add_special_tokens`` puts around every text."""

    prefix: Ids
    suffix: Ids


class PartEncoder:
    """Encodes with a private copy of a tokenizer. Thread-safe."""

    def __init__(
        self, tokenizer: Any, plan: Plan, cache: TokenCache, *, owner: int = 0, chunk_characters: int = CHUNK_CHARACTERS
    ) -> None:
        self.plan = plan
        self.plain = tokenizer
        """A private copy, of the tokenizers library; without truncation and padding."""
        self._cache = cache
        self._owner = owner
        self._splitter = Splitter(plan.cuts)
        self._chunker = Chunker.of(plan.chunks, chunk_characters) if plan.chunks else None
        self._frame = _frame(tokenizer)
        # One object for each id: a cache of a million ids then holds a million pointers, not integers.
        self._integers = tuple(range(_vocabulary_size(tokenizer)))
        self._encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(self, text: str, salt: str, *, add_special_tokens: bool = False) -> list[int] | None:
        """The ids of ``text``; None where this encoder cannot tell them. PartError, or the library's own errors."""
        if add_special_tokens and self._frame is None:
            return None
        sequence = list(self._sequence(text, salt))
        keys = [part for part in sequence if isinstance(part, Key)]
        known = self._cache.find(keys)
        if len(known) < len(keys):
            known |= self._fresh([key for key in dict.fromkeys(keys) if key not in known])
        ids: list[int] = []
        for part in sequence:
            if isinstance(part, Key):
                ids += known[part]
            else:
                ids.append(part)
        if add_special_tokens and self._frame is not None:
            return [*self._frame.prefix, *ids, *self._frame.suffix]
        return ids

    def _sequence(self, text: str, salt: str) -> Iterator[Key | int]:
        anchored = self.plan.anchor is not None
        for part in self._splitter.parts(text):
            if isinstance(part, int):
                yield part
                continue
            for chunk in self._chunker.chunks(part.text) if self._chunker else (part.text,):
                yield Key(self._owner, salt, anchored and not part.first, chunk)

    def _fresh(self, keys: Sequence[Key]) -> dict[Key, Ids]:
        anchor = self.plan.anchor
        texts = [anchor.content + key.text if anchor and key.anchored else key.text for key in keys]
        with no_panic():
            encodings = self._encode_batch(texts, add_special_tokens=False)
        fresh = {key: self._ids(key, encoding.ids) for key, encoding in zip(keys, encodings, strict=True)}
        self._cache.store(fresh)
        return fresh

    def _ids(self, key: Key, ids: list[int]) -> Ids:
        if key.anchored:
            anchor = self.plan.anchor
            if anchor is None or not ids or ids[0] != anchor.id:
                raise PartError("the anchor did not come out by itself")
            ids = ids[1:]
        return tuple(map(self._integers.__getitem__, ids))


@contextmanager
def no_panic() -> Iterator[None]:
    """Turn a panic of the library, which is no Exception and would end the thread, into a PartError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise PartError("the tokenizers library panicked") from error
        raise


def private_copy(tokenizer: Any) -> tuple[Any, Plan | PlainOnly]:
    """A copy of a tokenizer of the tokenizers library that nothing else changes, and the plan for it."""
    description = tokenizer.to_str()
    plan = make_plan(json.loads(description))
    if isinstance(plan, PlainOnly):
        return None, plan
    copy = type(tokenizer).from_str(description)
    copy.no_truncation()
    copy.no_padding()
    return copy, plan


def _vocabulary_size(tokenizer: Any) -> int:
    """One more than the largest id."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def _frame(tokenizer: Any) -> Frame | None:
    """The ids put around every text; None where they depend on the text."""
    frames = {frame for probe in _PROBES for frame in _around(tokenizer, probe)}
    return frames.pop() if len(frames) == 1 else None


def _around(tokenizer: Any, probe: str) -> Iterator[Frame | None]:
    """The ids around one text: nothing for a text without ids, None where its own ids change."""
    inner = tokenizer.encode(probe, add_special_tokens=False).ids
    whole = tokenizer.encode(probe, add_special_tokens=True).ids
    if not inner:
        return
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            yield Frame(tuple(whole[:start]), tuple(whole[start + len(inner) :]))
            return
    yield None
