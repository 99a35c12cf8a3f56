"""Requests to simulate: from what a replica recorded, or from the lines of a trace file. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from cachefleet_controlplane.history.recorded_requests import RecordedRequest
from cachefleet_core.block_keys import pack_keys, unpack_keys

_KEY_BYTES: Final = 8


class TraceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace as Mooncake publishes them; ``hash_ids`` name the blocks of its prompt."""

    timestamp: float
    """In milliseconds."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A prompt by the keys of its full blocks; ``answer`` is known of the keys that follow once it is answered."""

    number: int
    at: float
    """Seconds after the first one's arrival."""
    keys: tuple[int, ...]
    tokens: int
    outputs: int
    answer: tuple[int, ...] = ()

    @property
    def packed(self) -> bytes:
        """The keys as prompts have them."""
        return pack_keys(self.keys)

    def all_keys(self, block_size: int) -> list[int]:
        """Keys of all full blocks of prompt and answer; those that nobody knows are like no others."""
        keys = [*self.keys, *self.answer]
        missing = (self.tokens + self.outputs) // block_size - len(keys)
        return keys + [_own_key(self.number, place) for place in range(missing)]


def from_records(records: Sequence[RecordedRequest], block_size: int) -> list[SimulatedRequest]:
    """Recorded requests by arrival.

    Where a later prompt goes on after an earlier one's, and was served further than that reached, the blocks between
    are what the earlier answer had filled.
    """
    ordered = sorted(records, key=lambda record: record.at)
    prompts = [tuple(unpack_keys(record.keys)) for record in ordered]
    answers = _answers(ordered, prompts, block_size)
    return [
        SimulatedRequest(
            number=number,
            at=record.at - ordered[0].at,
            keys=prompts[number][: record.prompt_tokens // block_size],
            tokens=max(1, record.prompt_tokens),
            outputs=max(1, record.completion_tokens),
            answer=answers.get(number, ()),
        )
        for number, record in enumerate(ordered)
    ]


def from_trace(
    lines: Sequence[TraceLine], *, block_size: int, trace_block: int, longest: int | None = None
) -> list[SimulatedRequest]:
    """Requests of a trace whose blocks have ``trace_block`` tokens, a multiple of ``block_size``.

    Those that are longer than ``longest``, prompt and answer, are served by nobody, and get no keys.
    """
    ordered = sorted(lines, key=lambda line: line.timestamp)
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    parts = trace_block // block_size
    found = []
    for number, line in enumerate(ordered):
        served = longest is None or line.input_length + line.output_length <= longest
        blocks = line.input_length // block_size if served else 0
        ids = line.hash_ids[: -(-blocks // parts)]
        keys = tuple(islice(_chain(ids, parts, known), blocks))
        found.append(
            SimulatedRequest(
                number=number,
                at=(line.timestamp - ordered[0].timestamp) / 1e3,
                keys=keys,
                tokens=max(1, line.input_length),
                outputs=max(1, line.output_length),
            )
        )
    return found


def _chain(ids: Sequence[int], parts: int, known: dict[tuple[int, int], tuple[int, ...]]) -> Iterator[int]:
    """A key for each of ``parts`` of each block, that commits to all before it."""
    parent = 0
    for block in ids:
        keys = known.get((parent, block))
        if keys is None:
            seed = hashlib.blake2b(b"%d %d" % (parent, block), digest_size=_KEY_BYTES).digest()
            keys = known[(parent, block)] = tuple(_part_keys(seed, parts))
        yield from keys
        parent = keys[-1]


def _part_keys(seed: bytes, parts: int) -> Iterator[int]:
    for part in range(parts):
        digest = hashlib.blake2b(seed + b"%d" % part, digest_size=_KEY_BYTES).digest()
        yield int.from_bytes(digest, "little") or 1


def _own_key(number: int, place: int) -> int:
    digest = hashlib.blake2b(b"answer %d %d" % (number, place), digest_size=_KEY_BYTES).digest()
    return int.from_bytes(digest, "little") or 1


def _answers(
    records: Sequence[RecordedRequest], prompts: Sequence[tuple[int, ...]], block_size: int
) -> dict[int, tuple[int, ...]]:
    ends: dict[int, int] = {}
    """By the last key of a prompt, the latest request with it."""
    found: dict[int, tuple[int, ...]] = {}
    for number, (record, keys) in enumerate(zip(records, prompts, strict=True)):
        served = record.cached_tokens // block_size
        for place in range(min(served, len(keys)) - 1, -1, -1):
            earlier = ends.get(keys[place])
            if earlier is not None:
                before = records[earlier]
                most = (before.prompt_tokens + before.completion_tokens) // block_size - (place + 1)
                answer = keys[place + 1 : min(served, place + 1 + most)]
                if len(answer) > len(found.get(earlier, ())):
                    found[earlier] = answer
                break
        if keys:
            ends[keys[-1]] = number
    return found
