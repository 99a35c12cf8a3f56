"""CPU of one routed request, by number of workers: deciding, beginning, first token, end; native code beside Python.

    python -m bench.decisions

In one process, in turns, with the same fleets and prompts; both must choose the same workers before anything is timed.
A prompt is known by its blocks (agents report all workers) or by its text alone (nobody reports). Nothing else of a
request is in it: no HTTP, no rendering. The lower decile of the calls, since others on a core only add to a time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Final

from bench.rows import Row, percentile, row
from cachefleet_controlplane.index.native_index import NativeIndex
from cachefleet_controlplane.routing.decision import Chunks, Knowledge, Prompt
from cachefleet_controlplane.selection.native_selection import NativeSelector
from cachefleet_controlplane.selection.native_text_selection import NativeTextSelector
from cachefleet_controlplane.selection.selection import Selector
from cachefleet_controlplane.selection.text_selection import TextSelector
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.controlplane.fleets import MODEL, LiveFleet, pool, view

WORKERS: Final = (4, 100, 1000)
PROMPTS: Final = 50
BLOCKS, BLOCK_SIZE, CHUNKS = 125, 16, 16
ROOM: Final = 100_000
"""Blocks of each worker."""
NATIVE: Final = (NativeSelector, NativeTextSelector)
PYTHON: Final = (Selector, TextSelector)


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


def fleet(workers: int, how: tuple[type[Selector], type[TextSelector]], *, blocks: bool) -> LiveFleet:
    """Of one pool; with ``blocks`` an agent reports each worker."""
    made = LiveFleet(make_index=NativeIndex, selector=how[0], text_selector=how[1])
    names = [f"worker-{number}" for number in range(workers)]
    made.update_pools([view(pool(), names)])
    for name in names if blocks else ():
        made.report(name, blocks_total=ROOM, blocks_free=ROOM)
    return made


def routed(fleet: LiveFleet, prompt: Prompt) -> str:
    """Route a request and end it; the worker chosen."""
    decision = fleet.route(MODEL, prompt)
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
    """``ours`` is native code. ValueError where the two do not choose alike."""
    native, python = (fleet(workers, how, blocks=blocks) for how in (NATIVE, PYTHON))
    asked = prompts(blocks=blocks)
    if [routed(native, prompt) for prompt in asked] != [routed(python, prompt) for prompt in asked]:
        raise ValueError("native code and Python choose different workers")
    ours, peer = list[float](), list[float]()
    for prompt in asked * rounds:
        ours.append(microseconds(lambda: routed(native, prompt)))  # noqa: B023 - called at once
        peer.append(microseconds(lambda: routed(python, prompt)))  # noqa: B023
    known = "blocks" if blocks else "text"
    return row(f"{workers} workers, by {known}", percentile(ours, 10), percentile(peer, 10), unit="us")


def rows(workers: tuple[int, ...] = WORKERS, *, rounds: int = 4) -> Iterator[Row]:
    """One for each number of workers and each way to know a prompt."""
    for blocks in (False, True):
        for count in workers:
            yield measured(count, blocks=blocks, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help=f"times {PROMPTS} requests (default 4)")
    options = parser.parse_args()
    print(f"{'CPU of a routed request':28} {'native':>10} {'Python':>10} {'ratio':>7}")
    for one in rows(rounds=options.rounds):
        print(f"{one['row']:28} {one['ours']:7.0f} us {one['peer']:7.0f} us {one['ratio']:7.2f}", flush=True)


if __name__ == "__main__":
    main()
