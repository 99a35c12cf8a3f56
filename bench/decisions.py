"""CPU of one routed request, by number of workers: deciding, beginning, first token, end.

    python -m bench.decisions

A prompt is known by its blocks (agents report all workers) or by its text alone (nobody reports). Nothing else of a
request is in it: no HTTP, no rendering.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Final

from bench.rows import Row, percentile
from cachefleet_controlplane.routing.decision import Chunks, Knowledge, Prompt
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.controlplane.fleets import MODEL, LiveFleet, pool, view

WORKERS: Final = (4, 100, 1000)
PROMPTS: Final = 50
BLOCKS, BLOCK_SIZE, CHUNKS = 125, 16, 16
ROOM: Final = 100_000
"""Blocks of each worker."""


def prompts(*, blocks: bool) -> list[Prompt]:
    """Of 2,000 tokens each, known by their text; with ``blocks`` by their blocks as well."""
    tokens = BLOCKS * BLOCK_SIZE + 1
    return [
        Prompt(
            tokens=tokens,
            keys=pack_keys(chain(seed, BLOCKS)) if blocks else b"",
            block_size=BLOCK_SIZE,
            max_tokens=100,
            knowledge=Knowledge.EXACT if blocks else Knowledge.APPROXIMATE,
            chunks=Chunks(pack_keys(chain(seed, CHUNKS)), tokens / CHUNKS),
        )
        for seed in range(PROMPTS)
    ]


def fleet(workers: int, *, blocks: bool) -> LiveFleet:
    """Of one pool; with ``blocks`` an agent reports each worker."""
    made = LiveFleet(texts=True)
    names = [f"worker-{number}" for number in range(workers)]
    made.update_pools([view(pool(), names)])
    for name in names if blocks else ():
        made.report(name, blocks_total=ROOM, blocks_free=ROOM)
    return made


def routed(fleet: LiveFleet, prompt: Prompt) -> str:
    """Route a request and end it; the worker chosen."""
    decision = fleet.route(MODEL, prompt, every=False)
    request = fleet.begin(decision, prompt)
    request.first_token()
    request.finish()
    return decision.worker


def microseconds(call: Callable[[], object]) -> float:
    """CPU of one call."""
    began = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - began) / 1000


def measured(workers: int, *, blocks: bool, rounds: int) -> Row:
    """The lower decile, as others on a core only add to a time."""
    live, asked = fleet(workers, blocks=blocks), prompts(blocks=blocks)
    for prompt in asked:
        routed(live, prompt)
    spent = [microseconds(lambda: routed(live, prompt)) for prompt in asked * rounds]  # noqa: B023 - called at once
    known = "blocks" if blocks else "text"
    return {
        "row": f"{workers} workers, by {known}",
        "ours": percentile(spent, 10),
        "peer": None,
        "ratio": None,
        "unit": "us",
    }


def rows(workers: tuple[int, ...] = WORKERS, *, rounds: int = 4) -> Iterator[Row]:
    """One for each number of workers and each way to know a prompt."""
    for blocks in (False, True):
        for count in workers:
            yield measured(count, blocks=blocks, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help=f"times {PROMPTS} requests (default 4)")
    options = parser.parse_args()
    print(f"{'CPU of a routed request':28} {'':>10}")
    for one in rows(rounds=options.rounds):
        print(f"{one['row']:28} {one['ours']:7.0f} us", flush=True)


if __name__ == "__main__":
    main()
