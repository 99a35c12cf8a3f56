"""Checks that a fleet serves from its caches: a new conversation's second turn must hit the blocks of the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random, SystemRandom
from typing import Any, Final

from cachefleet_local.cli.gateway_client import GatewayAccess, GatewayClient, LaterError, gateway_client
from cachefleet_local.cli.listing import Column, Item
from cachefleet_local.cli_errors import FailureError

CHAT: Final = "/v1/chat/completions"
WORDS: Final = 200
"""Words of the first prompt: more than three blocks of the largest usual size, 64 tokens."""
TOKENS_A_WORD: Final = 8
"""Upper bound on the tokens of a word, for a model with a short context."""
ANSWER_TOKENS: Final = 4
PAUSE_SECONDS: Final = 1.0
"""Between attempts; and between the turns, so that every replica has the worker's report of the first."""
_APPLY: Final = "apply a pool first: kubectl apply -f POOL.yaml (without a cluster: cachefleet up POOL.yaml)"
_VOCABULARY: Final = (
    "amber anchor basin beacon birch breeze candle canyon cedar cinder cobalt copper coral crane delta dune ember "
    "fern garnet glacier granite harbor hazel heron indigo island ivory jasper juniper kelp lagoon lantern larch "
    "marble meadow mirror nectar oasis olive onyx orchid otter pebble pepper pine plume prairie quartz raven reef "
    "saddle saffron sparrow spruce summit thistle timber topaz tundra valley velvet walnut willow zephyr"
)


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What the answer to one turn says: who served it, and its token counts."""

    turn: int
    model: str
    worker: str
    knowledge: str
    decision: str
    prompt_tokens: int
    cached_tokens: int | None


HITS: Final = (
    Column("TURN", lambda item: item["turn"], right=True),
    Column("MODEL", lambda item: item["model"]),
    Column("WORKER", lambda item: item["worker"]),
    Column("TOKENS", lambda item: item["promptTokens"], right=True),
    Column("CACHED", lambda item: item["cachedTokens"], right=True),
    Column("KNOWLEDGE", lambda item: item["knowledge"]),
    Column("DECISION", lambda item: item["decision"]),
)


def probed(access: GatewayAccess, *, model: str | None, wait_seconds: float) -> list[Item]:
    """``probe`` with random prompts."""
    return asyncio.run(probe(access, model=model, wait_seconds=wait_seconds, random=SystemRandom()))


async def probe(
    access: GatewayAccess,
    *,
    model: str | None,
    wait_seconds: float,
    random: Random,
    clock: Callable[[], float] = time.monotonic,
) -> list[Item]:
    """Have the conversation with ``model``, or with the first chat model; returns a row for each of its two turns.

    FailureError where nothing is served within ``wait_seconds``, or a turn fails.
    """
    async with gateway_client(access) as client:
        talk = _Talk(client)
        deadline = clock() + wait_seconds
        name, longest = await _until(lambda: talk.model(model), deadline, clock)
        messages = [{"role": "user", "content": opening(random, words=_prompt_words(longest))}]
        first, answer = await _until(lambda: talk.turn(1, name, messages), deadline, clock)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And in one more word?"}]
        await asyncio.sleep(PAUSE_SECONDS)
        second, _ = await _until(lambda: talk.turn(2, name, messages), deadline, clock)
    return [_item(first), _item(second)]


def shortcomings(turns: Sequence[Item]) -> list[str]:
    """Why the turns do not show a hit; empty where they do.

    A few cached tokens are no hit: a chat template may begin all conversations alike.
    """
    last = turns[-1]
    if not last["decision"]:
        return ["the answer has no x-cachefleet-decision: this is no gateway of cachefleet"]
    if last["cachedTokens"] is None:
        return [f"worker {last['worker']} does not tell how many tokens it had cached"]
    if last["cachedTokens"] <= turns[0]["promptTokens"] // 2:
        what = f"no hit: worker {last['worker']} computed {_computed(last)} tokens of the second turn"
        return [
            f"{what} (the first was served by {turns[0]['worker']}); ask why: cachefleet explain {last['decision']}"
        ]
    return []


def _computed(turn: Item) -> str:
    cached, tokens = turn["cachedTokens"], turn["promptTokens"]
    return f"{tokens - cached} of {tokens}" if cached else f"all {tokens}"


def opening(random: Random, *, words: int) -> str:
    """A random prompt, new from its first block on."""
    said = " ".join(random.choices(_VOCABULARY.split(), k=words))
    return f"{random.getrandbits(64):016x} {said}. Which word comes to your mind?"


def _prompt_words(longest: int | None) -> int:
    return WORDS if longest is None else max(1, min(WORDS, longest // TOKENS_A_WORD - ANSWER_TOKENS))


def _item(report: TurnReport) -> Item:
    names = {"prompt_tokens": "promptTokens", "cached_tokens": "cachedTokens"}
    return {names.get(name, name): value for name, value in asdict(report).items()}


class _Talk:
    """A conversation with the gateway; FailureError for permanent failures, LaterError for others."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client

    async def model(self, wanted: str | None) -> tuple[str, int | None]:
        """The name of a chat model, and its context length in tokens."""
        _, told = await self._client.ask("GET", "/v1/models")
        cards = [card for card in told.get("data", ()) if _chats(card)]
        found = next((card for card in cards if wanted in (None, card["id"])), None)
        if found is None:
            served = ", ".join(card["id"] for card in cards) or "none"
            what = f"model {wanted} is not served (served: {served})" if wanted else "no model is served that chats"
            raise LaterError(FailureError([f"{self._client.url}: {what}; {_APPLY}"]))
        return found["id"], found.get("max_model_len")

    async def turn(self, number: int, model: str, messages: Sequence[Mapping[str, str]]) -> tuple[TurnReport, str]:
        """Send one turn; what its answer says, and the model's text."""
        body = {"model": model, "messages": list(messages), "max_tokens": ANSWER_TOKENS, "temperature": 0}
        headers, told = await self._client.ask("POST", CHAT, json=body)
        usage = told.get("usage") or {}
        about = TurnReport(
            turn=number,
            model=model,
            worker=headers.get("x-cachefleet-worker", ""),
            knowledge=headers.get("x-cachefleet-knowledge", ""),
            decision=headers.get("x-cachefleet-decision", ""),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )
        return about, str(told["choices"][0]["message"].get("content") or "...")


async def _until(attempt: Callable[[], Any], deadline: float, clock: Callable[[], float]) -> Any:
    """The result of ``attempt``, which is repeated after a LaterError until the deadline."""
    while True:
        try:
            return await attempt()
        except LaterError as error:
            if clock() + PAUSE_SECONDS > deadline:
                raise error.failure from error
        await asyncio.sleep(PAUSE_SECONDS)


def _chats(card: Mapping[str, Any]) -> bool:
    told = (card.get("capabilities") or {}).get("endpoints")
    return told is None or CHAT in told
