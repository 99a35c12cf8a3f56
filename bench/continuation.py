"""A turn of a long conversation: by handle through the gateway, against its whole history to stock vLLM directly.

    python -m bench.continuation                      # four families of models, 8k and 64k tokens
    python -m bench.continuation --only Gemma --quick # one family, few rounds of 8k tokens

A conversation has 100 messages; a turn adds an answer and a question of 100 tokens, and 99 % of it is cached. Stock is
vLLM without the plugin, asked directly with the whole history. Ours is the gateway with ``continuation.handles`` before
a worker with plugin and agent. Both have the same tiny model of one layer, and take turns. Measured are bytes to the
worker (both calls, heads and bodies, against stock's body alone); CPU of the worker's API server, until the engine has
the request and in all; and the time to the first byte of the streamed answer. Before anything is timed and after it,
answers are checked to be equal; and every turn that is timed must have gone by handle. Rows go to
bench/results/continuation.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import aiohttp

from bench.bars import Bar
from bench.continuation_models import FAMILIES, Family
from bench.continuation_sides import BY_HANDLE, Sides, Turn, UnsoundError, both_sides, outcomes
from bench.continuation_work import LENGTHS, Length, Messages, Writer
from bench.rows import Row, median, row, row_text

RESULTS: Final = Path(__file__).parent / "results" / "continuation.json"
WARM_TURNS: Final = 3
CACHED: Final = 0.97
"""Of 8k tokens the new message alone is more than one in a hundred."""
BYTES: Final = Bar("continuation", "bytes", "ratio", 0.03)
CPU: Final = Bar("continuation", "to engine", "ratio", 0.3)
QUICK: Final = (replace(LENGTHS[0], rounds=4),)
BARRED: Final = "64k"
"""The length that has bars of all kinds; the others of the time alone."""

Pair = tuple[Turn, Turn]


def measure(family: Family, lengths: Sequence[Length]) -> Iterator[Row]:
    """The rows of one family. UnsoundError."""
    with tempfile.TemporaryDirectory(prefix="cachefleet-bench-") as name, both_sides(Path(name), family) as sides:
        for length in lengths:
            turns = Writer(family, length.tokens).turns(length.tokens)
            pairs = asyncio.run(_pairs(sides, turns, length.rounds))
            yield from rows_of(f"{family.name}, {length.name}", length, pairs)


async def _pairs(sides: Sides, turns: Iterator[Messages], rounds: int) -> list[Pair]:
    """Turn by turn on both sides, which take turns at being first."""
    pairs: list[Pair] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        for messages in islice(turns, WARM_TURNS):
            await _check(http, sides, messages)
        for number, messages in enumerate(islice(turns, rounds)):
            order = (sides.stock, sides.ours) if number % 2 else (sides.ours, sides.stock)
            done = {side.url: await side.turn(http, messages) for side in order}
            pairs.append((done[sides.ours.url], done[sides.stock.url]))
        await _check(http, sides, next(turns), cached=CACHED)
    found = await outcomes(sides.plane, {ours.decision for ours, _ in pairs})
    if found != [BY_HANDLE] * rounds:
        raise UnsoundError(f"of {rounds} turns not all went by handle: {found}")
    return pairs


async def _check(http: aiohttp.ClientSession, sides: Sides, messages: Messages, *, cached: float = 0.0) -> None:
    """A wrong answer voids the measurement, and so does one whose worker had less than such a share in its cache."""
    expected, got = [await side.answer(http, messages) for side in (sides.stock, sides.ours)]
    if expected.said != got.said:
        raise UnsoundError(f"the gateway's answer differs:\n{expected}\n{got}")
    if min(expected.cached, got.cached) < cached:
        raise UnsoundError(f"too little was cached: {expected.cached:.3f} of stock's prompt, {got.cached:.3f} of ours")


def rows_of(name: str, length: Length, pairs: Sequence[Pair]) -> list[Row]:
    """Medians of both sides, judged where there is a bar."""

    def beside(what: str, field: str, factor: float, unit: str) -> Row:
        ours, stock = (median([getattr(pair[side], field) for pair in pairs]) * factor for side in (0, 1))
        return row(f"{name}: {what}", ours, stock, unit=unit)

    every = length.name == BARRED
    return [
        _judged(beside("bytes to the worker", "sent", 1, "bytes"), BYTES if every else None),
        _judged(beside("worker's CPU from request to engine", "cpu", 1000, "ms"), CPU if every else None),
        beside("worker's CPU of the whole turn, less the engine's", "whole", 1000, "ms"),
        _judged(beside("time to first token", "first", 1000, "ms"), Bar("", "", "ratio", length.first_token)),
    ]


def _judged(one: Row, bar: Bar | None) -> Row:
    return one if bar is None else {**one, "bar": str(bar), "kept": bar.holds(one[bar.column])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [family.name for family in FAMILIES]
    parser.add_argument("--only", action="append", choices=names, metavar="FAMILY", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="few rounds of 8k tokens")
    given = parser.parse_args()
    chosen = [family for family in FAMILIES if family.name in (given.only or names)]
    found: list[Row] = []
    print(f"{'':<66}{'ours':>12}{'stock':>12}{'ratio':>12}")
    for family in chosen:
        try:
            for one in measure(family, QUICK if given.quick else LENGTHS):
                print(row_text(one), flush=True)
                found.append(one)
        except UnsoundError as error:
            sys.exit(f"{family.name}: {error}")
    if not given.quick:
        write(found, [family.name for family in chosen])
        print(f"written to {os.path.relpath(RESULTS)}")


def write(rows: list[Row], names: Sequence[str]) -> None:
    """Rows of families that were not asked for stay as they are."""
    before: list[Row] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = [one for one in before if not one["row"].startswith(tuple(names))]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(kept + rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
