"""Whether answers are right after histories as engines make them: stored, stored twice, evicted, filled again.

The oracle is a set for each worker. What the peer refuses to apply it goes without, as it would in service.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from bench.index_sides import Dynamo, Ours
from bench.index_work import Chain, Work
from bench.rows import Row

HISTORIES: Final = 200
OPERATIONS: Final = 60
WORKERS: Final = 6
CHAINS: Final = 4
LENGTH: Final = 40


def exact_rows() -> Iterator[Row]:
    for healing in (False, True):
        right = [sum(_right(make, seed, healing=healing) for seed in range(HISTORIES)) for make in (Ours, Dynamo)]
        asked = HISTORIES * OPERATIONS
        name = "exact answers" + (", holes filled again" if healing else ", holes left")
        yield {
            "row": name,
            "ours": 100 * right[0] / asked,
            "peer": 100 * right[1] / asked,
            "ratio": None,
            "unit": "% of queries",
        }


def _right(make: Callable[[Work], Any], seed: int, *, healing: bool) -> int:
    """How many queries of one history, one after each operation, are answered as the sets have it."""
    chance, side = random.Random(seed), make(Work(WORKERS))
    chains = [[chance.getrandbits(64) | 1 for _ in range(LENGTH)] for _ in range(CHAINS)]
    held: list[set[int]] = [set() for _ in range(WORKERS)]
    right = 0
    for _ in range(OPERATIONS):
        chain, worker = chance.choice(chains), chance.randrange(WORKERS)
        _happen(side, held[worker], _next(chance, chain, held[worker], healing=healing), worker)
        asked = chance.choice(chains)
        expected = {number: depth for number, one in enumerate(held) if (depth := _depth(asked, one))}
        right += side.depths(side.question(_packed(asked))()) == expected
    return right


def _next(chance: random.Random, chain: list[int], held: set[int], *, healing: bool) -> tuple[str, int, list[int]]:
    """What an engine does next with one chain: the kind, the key before, the keys."""
    known = sum(key in held for key in chain)
    if known == 0:
        return "stored", 0, chain[: chance.randint(1, LENGTH)]
    hole = next((place for place, key in enumerate(chain) if key not in held), LENGTH)
    if healing and hole < LENGTH and chance.random() < 0.5:
        until = next((place for place in range(hole, LENGTH) if chain[place] in held), LENGTH)
        return "stored", chain[hole - 1] if hole else 0, chain[hole:until]
    if chance.random() < 0.5:
        depth = _depth(chain, held)
        return "stored", 0, chain[: chance.randint(1, depth)] if depth else chain[:1]
    gone = [key for key in chain if key in held]
    start = chance.randrange(len(gone))
    return "removed", 0, gone[start : start + chance.randint(1, 8)]


def _happen(side: Any, held: set[int], operation: tuple[str, int, list[int]], worker: int) -> None:
    kind, parent, keys = operation
    chain = Chain(worker, parent, _packed(keys))
    (held.update if kind == "stored" else held.difference_update)(keys)
    refusals = () if isinstance(side, Ours) else (RuntimeError,)
    with suppress(*refusals):
        side.apply(side.stored(chain) if kind == "stored" else side.removed(chain))
    side.settle()


def _depth(chain: list[int], held: set[int]) -> int:
    return next((place for place, key in enumerate(chain) if key not in held), len(chain))


def _packed(keys: list[int]) -> bytes:
    return b"".join(key.to_bytes(8, "little") for key in keys)
