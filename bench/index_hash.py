"""Token ids to block keys, against the peer's best way to the same."""

from __future__ import annotations

import json
import random
import time
from array import array
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, Final

import cachefleet_native

from bench import index_sides
from bench.rows import Row
from cachefleet_core.block_keys import BlockKeyer, Namespace, namespace_secrets, pack_keys

TOKENS: Final = 8192
BLOCK: Final = 16
ROUNDS: Final = 400
NAMESPACE: Final = (b"k" * 32, Namespace("bench"))


def hash_rows() -> Iterator[Row]:
    keyer = cachefleet_native.Keyer(namespace_secrets(*NAMESPACE), BLOCK)
    listed = [random.Random(1).randrange(150_000) for _ in range(TOKENS)]
    packed, body = (
        array("I", listed).tobytes(),
        json.dumps({"model": "m", "prompt": listed}, separators=(",", ":")).encode(),
    )
    right = pack_keys(BlockKeyer(*NAMESPACE, BLOCK).keys(listed))
    if not keyer.packed(listed) == keyer.packed_ids(packed) == keyer.json(body)[1] == right:
        raise ValueError("cachefleet answers wrongly: block keys")
    theirs, orjson = index_sides.dynamo().compute_block_hash_for_seq, index_sides.orjson()
    rows: tuple[tuple[str, Callable[[], Any], Callable[[], Any]], ...] = (
        ("hash 8k tokens, Python list", lambda: keyer.packed(listed), lambda: theirs(listed, BLOCK)),
        ("hash 8k tokens, u32 buffer, against copying it", lambda: keyer.packed_ids(packed), lambda: bytearray(packed)),
        (
            "hash 8k tokens, JSON body, against orjson and the same hash",
            lambda: keyer.json(body),
            lambda: keyer.packed(orjson.loads(body)["prompt"]),
        ),
    )
    for name, ours, peer in rows:
        figures = in_turns(ours, peer)
        yield {"row": name, "ours": figures[0], "peer": figures[1], "ratio": figures[1] / figures[0], "unit": "us"}


def in_turns(*acts: Callable[[], Any]) -> list[float]:
    """Median microseconds of each, taken in turns."""
    times: list[list[int]] = [[] for _ in acts]
    for _ in range(ROUNDS):
        for act, taken in zip(acts, times, strict=True):
            start = time.perf_counter_ns()
            act()
            taken.append(time.perf_counter_ns() - start)
    return [median(taken) / 1e3 for taken in times]
