"""What causes in prompts cost: CPU of one request's part of them, beside its decision.

    python -m bench.causes

Requests are turns of made-up conversations with some agents, each with a system text and tools: one in three begins a
conversation, one in five has another time in its system text than the turn before. On: its shape is read, compared at
its end and kept. Off: shapes have no memory (``CACHEFLEET_PROMPT_SHAPE_BYTES=0``). Both sides are asked in turns for
the same request, and decide on it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from bench.decisions import fleet, routed
from bench.rows import Row
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.prompt_causes.prompt_cause import Examined, not_examined
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes
from cachefleet_controlplane.routing.decision import Knowledge, Prompt
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.controlplane.prompt_causes.conversations import conversation, moment, next_turn, with_time

BAR_MICROSECONDS: Final = 15.0
"""On average."""
BLOCK_SIZE: Final = 16
BYTES_A_TOKEN: Final = 4
MOST_MESSAGES: Final = 40
AGENTS: Final = 16
OPEN: Final = 32
"""Conversations that go on at a time."""
LINE: Final = "default/bench m acme"


class Asked(NamedTuple):
    """One request: its body as read, its prompt, and how many of its first blocks are served."""

    info: RequestInfo
    prompt: Prompt
    served: int


def requests(count: int, *, seed: int = 1) -> Iterator[Asked]:
    """Turns of conversations; the blocks of a prompt are those of its text."""
    rng = random.Random(seed)
    agents = [conversation(rng, turns=0, tools=3) for _ in range(AGENTS)]
    talks: list[tuple[dict[str, Any], int]] = []
    for number in range(count):
        if len(talks) < OPEN or number % 3 == 0:
            talks = [*talks[-OPEN + 1 :], (rng.choice(agents), number)]
        at = rng.randrange(len(talks))
        body, own = talks[at]
        known = length(body) if len(body["messages"]) > 2 else 0
        body = next_turn(rng, body) if len(body["messages"]) < MOST_MESSAGES else rng.choice(agents)
        if number % 5 == 0:
            body, own, known = with_time(body, f"{moment(rng):%Y-%m-%d %H:%M:%S}"), number, 0
        talks[at] = (body, own)
        yield asked(body, seed=own, known=known)


def length(body: dict[str, Any]) -> int:
    """Tokens of a prompt, about."""
    return len(json.dumps(body)) // BYTES_A_TOKEN


def asked(body: dict[str, Any], *, seed: int, known: int) -> Asked:
    """The request of a body."""
    tokens = length(body)
    keys = pack_keys(chain(seed, tokens // BLOCK_SIZE))
    prompt = Prompt(tokens=tokens, keys=keys, block_size=BLOCK_SIZE, max_tokens=100, knowledge=Knowledge.EXACT)
    info = parse(json.dumps(body).encode(), Endpoint.CHAT)
    return Asked(info, prompt, min(known, tokens - 1) // BLOCK_SIZE)


def examine(shapes: PromptShapes, one: Asked) -> None:
    """What a request costs of it: at its arrival, and at its end."""
    servable = (one.prompt.tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    first_seen = servable - one.served * BLOCK_SIZE
    if not shapes.on:
        not_examined(first_seen)
        return
    shape = shapes.read.shape(one.info.ask, "salt")
    prompt = Examined(prompt_tokens=one.prompt.tokens, block_size=BLOCK_SIZE, first_seen=first_seen, servable=servable)
    shapes.ended(LINE, shape, one.prompt.keys, prompt)


def compared(count: int) -> list[Row]:
    """Microseconds a request on and off, and what they are beside deciding on it."""
    live, sides = fleet(4, blocks=True), {True: PromptShapes(), False: PromptShapes(0)}
    spent: dict[bool, list[float]] = {True: [], False: []}
    decided: list[float] = []
    for number, one in enumerate(requests(count)):
        began = time.thread_time_ns()
        routed(live, one.prompt)
        decided.append((time.thread_time_ns() - began) / 1000)
        for on in (True, False) if number % 2 else (False, True):
            began = time.thread_time_ns()
            examine(sides[on], one)
            spent[on].append((time.thread_time_ns() - began) / 1000)
    ours, peer, rest = (statistics.fmean(side) for side in (spent[True], spent[False], decided))
    added = ours - peer
    return [
        {
            "row": "causes in prompts, a request",
            "ours": ours,
            "peer": peer,
            "ratio": (rest + ours) / (rest + peer),
            "unit": "us",
        },
        {
            "row": "causes in prompts, added on average",
            "ours": added,
            "peer": None,
            "ratio": None,
            "unit": "us",
            "bar": f"≤ {BAR_MICROSECONDS:g}",
            "kept": added <= BAR_MICROSECONDS,
        },
    ]


def shown(row: Row) -> str:
    """One line."""
    peer = "" if row["peer"] is None else f"  off {row['peer']:6.2f} us  with its decision {row['ratio']:.3f}x"
    kept = "" if "bar" not in row else f"  {row['bar']} us: {'kept' if row['kept'] else 'MISSED'}"
    return f"{row['row']:<38} {row['ours']:6.2f} us{peer}{kept}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    for row in compared(parser.parse_args().requests):
        print(shown(row))


if __name__ == "__main__":
    main()
