"""Whether a mend of a cause in prompts is worth what is foretold: the same chats with the cause and with its mend.

    CACHEFLEET_TRACES=... python -m bench.mends

Clients of one agent have a habit that costs hits, such as the time of each request in the system text. Their requests
are played through the simulation, and the causes of what no worker held are told as of a gateway's requests. Then the
same chats are played without the habit. Ours is what the ledger of causes foretold in points of the hit ratio, peer is
by how many it then rose. Chats are recorded ones where the traces are here, else made up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.replay_run import CONTRACT, replay_pool
from bench.replay_work import BLOCK
from bench.rows import Row, reported, row
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.prompt_causes.cause_ledger import CauseLedger, Place
from cachefleet_controlplane.prompt_causes.prompt_cause import PARTS, ROLES, Examined, PromptCause
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulated_run import SimulatedRun
from cachefleet_controlplane.simulation.simulation_job import Scenario
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_core.block_keys import unpack_keys
from tests.controlplane.prompt_causes.conversations import answer, tool, words
from tests.controlplane.prompt_causes.prompts import Body, Engine
from tests.controlplane.prompt_causes.recorded_chats import DESK, HEADING, RECORDED, TIME, TURNS, chats, retold

Change = Callable[[Body, random.Random], Body]
Chat = list[Body]
TEMPLATES: Final = ("qwen", "llama3", "deepseek")
"""Those of the tests that render all of an earlier turn again."""
BAR: Final = 0.1
"""Most that what is foretold may be off, of what came."""
SETUP: Final = Setup(
    workers=2, blocks=60_000, prefill_tokens_per_second=20_000.0, batched_tokens=4096, model_len=16_384
)
OUTPUTS: Final = 20
PAUSE_SECONDS: Final = 2.0
"""Between requests of all chats, on average."""
OPEN: Final = 6
"""Chats that go on at a time."""
LINE: Final = ("default/replay", "acme")


class Habit(NamedTuple):
    """What clients do to each of their requests, and what they do instead."""

    costs: Change
    mend: Change


def as_it_is(body: Body, _: random.Random) -> Body:
    return body


def retimed(body: Body, rng: random.Random) -> Body:
    """With the time of the request in the system text."""
    return retold(body, TIME, f"2024-05-15 {rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02} EST")


def with_own_id(body: Body, rng: random.Random) -> Body:
    return retold(body, DESK, f"Desk {rng.randrange(5000, 99_999)}")


def reordered(body: Body, rng: random.Random) -> Body:
    return body | {"tools": rng.sample(body["tools"], len(body["tools"]))}


def chosen_tools(body: Body, rng: random.Random) -> Body:
    """With those tools that the client thinks are of use."""
    left_out = rng.randrange(len(body["tools"]))
    return body | {"tools": [one for at, one in enumerate(body["tools"]) if at != left_out]}


def reheaded(body: Body, rng: random.Random) -> Body:
    """With a state of affairs at the head of the system text."""
    return retold(body, HEADING, f"{HEADING}\n\n{words(rng, 12)}")


def told_last(body: Body, rng: random.Random) -> Body:
    """With the same as a last message."""
    return body | {"messages": [*body["messages"], {"role": "user", "content": words(rng, 12)}]}


def edited(body: Body, rng: random.Random) -> Body:
    """With the first question told otherwise each time."""
    first, asked, *rest = body["messages"]
    return body | {"messages": [first, asked | {"content": f"{words(rng, 5)} {asked['content']}"}, *rest]}


def with_option(body: Body, rng: random.Random) -> Body:
    return body | {"chat_template_kwargs": {"style": f"Effort {rng.randrange(10**6)}. "}}


HABITS: Final[Mapping[PromptCause, Habit]] = {
    PromptCause.TIME: Habit(retimed, as_it_is),
    PromptCause.ID: Habit(with_own_id, as_it_is),
    PromptCause.TOOL_ORDER: Habit(reordered, as_it_is),
    PromptCause.TOOLS: Habit(chosen_tools, as_it_is),
    PromptCause.SYSTEM_PROMPT: Habit(reheaded, told_last),
    PromptCause.HISTORY_EDITED: Habit(edited, as_it_is),
    PromptCause.PARAMETERS: Habit(with_option, as_it_is),
}


class Asked(NamedTuple):
    """A request of a chat, in seconds from the first one."""

    at: float
    body: Body


class Worth(NamedTuple):
    """What a mend was foretold to be worth, and what it was, in points of the hit ratio and tokens."""

    foretold: float
    came: float
    tokens_foretold: int
    tokens_came: int


def made_up(count: int, *, seed: int = 1) -> list[Chat]:
    """The messages of chats of one agent."""
    rng = random.Random(seed)
    rules = f"{HEADING}\n\n{DESK}\n\nThe current time is {TIME}. {words(rng, 400)}"
    return [[{"role": "system", "content": rules}, *_turns(rng)] for _ in range(count)]


def _turns(rng: random.Random) -> Iterator[Body]:
    for _ in range(TURNS):
        yield {"role": "user", "content": words(rng, rng.randrange(20, 90))}
        yield answer(rng)


def of_clients(found: Sequence[Chat], change: Change, *, seed: int = 1) -> list[Asked]:
    """A request before each answer, of some chats in turns; whatever the change is, they come at the same times."""
    order, own = random.Random(seed), random.Random(seed + 1)
    tools = [tool(random.Random(number), f"tool_{number}") for number in range(5)]
    waiting = [_prompts(messages, tools) for messages in found]
    going, asked, at = [waiting.pop() for _ in range(min(OPEN, len(waiting)))], list[Asked](), 0.0
    while going:
        one = order.choice(going)
        if (body := next(one, None)) is not None:
            asked.append(Asked(at, change(body, own)))
            at += order.expovariate(1 / PAUSE_SECONDS)
        else:
            going.remove(one)
            going += [waiting.pop()] if waiting else []
    return asked


def _prompts(messages: Chat, tools: Sequence[Body]) -> Iterator[Body]:
    ends = [at for at, message in enumerate(messages) if message["role"] == "assistant"][:TURNS]
    return ({"model": "m", "tools": tools, "messages": messages[:end]} for end in ends)


def simulated(asked: Sequence[Asked], template: str) -> list[SimulatedRequest]:
    """Requests as the simulation takes them, with the block keys of their prompts."""
    engine = Engine(template, block_size=BLOCK)
    read = [engine.read(one.body) for one in asked]
    return [
        SimulatedRequest(number, one.at, tuple(unpack_keys(keys)), tokens, OUTPUTS)
        for number, (one, (keys, tokens)) in enumerate(zip(asked, read, strict=True))
    ]


def served(requests: Sequence[SimulatedRequest]) -> list[int]:
    """Tokens of each prompt that came from cache."""
    run = SimulatedRun(requests, replay_pool(SETUP), CONTRACT, Scenario(setup=SETUP, policy=RoutingPolicy.CACHE_AWARE))
    result = run.run()
    return [result.hits[request.number] * BLOCK for request in requests]


def ledger_of(asked: Sequence[Asked], requests: Sequence[SimulatedRequest], hits: Sequence[int]) -> CauseLedger:
    """The causes of what no worker held, as a gateway tells them when its requests end."""
    shapes, ledger, computed = PromptShapes(), CauseLedger(), set[int]()
    for one, request, hit in zip(asked, requests, hits, strict=True):
        servable = (request.tokens - 1) // BLOCK
        before = next((at for at, key in enumerate(request.keys[:servable]) if key not in computed), servable)
        first_seen = servable * BLOCK - max(hit, before * BLOCK)
        shape = shapes.read.shape(parse(json.dumps(one.body).encode(), Endpoint.CHAT).ask, "")
        prompt = Examined(
            prompt_tokens=request.tokens, block_size=BLOCK, first_seen=first_seen, servable=servable * BLOCK
        )
        losses, relation = shapes.ended(" ".join(LINE), shape, request.packed, prompt)
        part, role = ("", "") if relation is None else (PARTS[relation.part], ROLES[relation.role])
        told = [(Place(loss.cause, part, role), loss.tokens) for loss in losses]
        ledger.add(LINE, request.tokens, told, now=one.at)
        computed.update(request.keys)
    return ledger


def worth(found: Sequence[Chat], cause: PromptCause, template: str) -> Worth:
    """Of the mend of a cause that all requests of some chats have."""
    habit = HABITS[cause]
    costly, mended = of_clients(found, habit.costs), of_clients(found, habit.mend)
    before, after = simulated(costly, template), simulated(mended, template)
    hits, more = served(before), served(after)
    ledger = ledger_of(costly, before, hits)
    offences = [one for one in ledger.offences(None, costly[-1].at, most=100) if one.place.cause is cause]
    ratio = [100 * sum(of) / sum(one.tokens for one in all_) for of, all_ in ((more, after), (hits, before))]
    return Worth(
        foretold=sum(one.points for one in offences),
        came=ratio[0] - ratio[1],
        tokens_foretold=sum(one.tokens for one in offences),
        tokens_came=sum(more) - sum(hits),
    )


def rows(found: Sequence[Chat], causes: Sequence[PromptCause], templates: Sequence[str] = TEMPLATES) -> Iterator[Row]:
    """Points foretold beside those that came, of each cause under each template."""
    for cause in causes:
        for template in templates:
            of = worth(found, cause, template)
            one = row(f"mend of {cause} under {template}", of.foretold, of.came, unit="points")
            kept = abs(of.foretold - of.came) <= BAR * of.came
            yield one | {"bar": f"within {BAR:.0%}", "kept": kept, "tokens": of.tokens_foretold / of.tokens_came}


def main() -> None:
    found = chats(24) if RECORDED.exists() else made_up(24)
    reported(rows(found, list(HABITS)), Path(__file__).parent / "results" / "mends.json")


if __name__ == "__main__":
    main()
