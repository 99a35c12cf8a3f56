"""Checks that a fleet serves from its caches: a new conversation's second turn must hit the blocks of the first."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from cachefleet_local.cli.listing import Column, Item
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_runtime.tls import client_context

CHAT: Final = "/v1/chat/completions"
WORDS: Final = 200
"""Words of the first prompt: more than three blocks of the largest usual size, 64 tokens."""
TOKENS_A_WORD: Final = 8
"""Upper bound on the tokens of a word, for a model with a short context."""
ANSWER_TOKENS: Final = 4
ASK_SECONDS: Final = 300.0
"""Timeout of one request: the first may be the first ever on a slow machine."""
PAUSE_SECONDS: Final = 1.0
"""Between attempts; and between the turns, so that every replica has the worker's report of the first."""
_LATER: Final = frozenset({429, 503})
_APPLY: Final = "apply a pool first: kubectl apply -f POOL.yaml (without a cluster: cachefleet up POOL.yaml)"
_VOCABULARY: Final = (
    "amber anchor basin beacon birch breeze candle canyon cedar cinder cobalt copper coral crane delta dune ember "
    "fern garnet glacier granite harbor hazel heron indigo island ivory jasper juniper kelp lagoon lantern larch "
    "marble meadow mirror nectar oasis olive onyx orchid otter pebble pepper pine plume prairie quartz raven reef "
    "saddle saffron sparrow spruce summit thistle timber topaz tundra valley velvet walnut willow zephyr"
)


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Address of the gateway, the API key for it, "" for none, and what verifies its certificate: True as usual."""

    url: str
    key: str = field(default="", repr=False)
    trusted: ssl.SSLContext | bool = True


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


def gateway_access(url: str, key: str, certificate: Path | None = None) -> GatewayAccess:
    """Address and key of the gateway. FailureError (bad input) where the address is no URL, or the file no PEM."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise FailureError([f"--gateway: got {url!r}, allowed: an address like http://127.0.0.1:8080"], Exit.BAD_INPUT)
    try:
        trusted = True if certificate is None else client_context(certificate.read_text())
    except (OSError, ValueError) as error:  # OpenSSL's are OSErrors
        said = f"--certificate: no certificate can be read from {certificate}"
        raise FailureError([said], Exit.BAD_INPUT) from error
    return GatewayAccess(url.rstrip("/").removesuffix("/v1"), key, trusted)


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
    async with _client(access) as client:
        deadline = clock() + wait_seconds
        name, longest = await _until(lambda: client.model(model), deadline, clock)
        messages = [{"role": "user", "content": opening(random, words=_prompt_words(longest))}]
        first, answer = await _until(lambda: client.turn(1, name, messages), deadline, clock)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And in one more word?"}]
        await asyncio.sleep(PAUSE_SECONDS)
        second, _ = await _until(lambda: client.turn(2, name, messages), deadline, clock)
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


class _LaterError(Exception):
    """Not served yet; ``failure`` is raised where that lasts until the deadline."""

    def __init__(self, failure: FailureError) -> None:
        super().__init__(str(failure))
        self.failure = failure


class _Client:
    """The gateway over one session; FailureError for permanent failures, _LaterError for others."""

    def __init__(self, session: aiohttp.ClientSession, access: GatewayAccess) -> None:
        self._session = session
        self._url = access.url
        self._keyed = bool(access.key)

    async def model(self, wanted: str | None) -> tuple[str, int | None]:
        """The name of a chat model, and its context length in tokens."""
        _, told = await self._ask("GET", "/v1/models")
        cards = [card for card in told.get("data", ()) if _chats(card)]
        found = next((card for card in cards if wanted in (None, card["id"])), None)
        if found is None:
            served = ", ".join(card["id"] for card in cards) or "none"
            what = f"model {wanted} is not served (served: {served})" if wanted else "no model is served that chats"
            raise _LaterError(FailureError([f"{self._url}: {what}; {_APPLY}"]))
        return found["id"], found.get("max_model_len")

    async def turn(self, number: int, model: str, messages: Sequence[Mapping[str, str]]) -> tuple[TurnReport, str]:
        """Send one turn; what its answer says, and the model's text."""
        body = {"model": model, "messages": list(messages), "max_tokens": ANSWER_TOKENS, "temperature": 0}
        headers, told = await self._ask("POST", CHAT, json=body)
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

    async def _ask(self, method: str, path: str, **more: Any) -> tuple[Mapping[str, str], dict[str, Any]]:
        try:
            async with self._session.request(method, self._url + path, **more) as answer:
                if answer.status >= 400:
                    raise _refused(answer.status, f"{method} {path}", await answer.text(), keyed=self._keyed)
                return answer.headers, dict(await answer.json())
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error
            raise _LaterError(FailureError([f"cannot reach the gateway at {self._url}: {reason}"])) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise FailureError([f"{self._url}{path}: this is no gateway of cachefleet: {error}"]) from error


@asynccontextmanager
async def _client(access: GatewayAccess) -> AsyncIterator[_Client]:
    headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
    connector = aiohttp.TCPConnector(ssl=access.trusted)
    timeout = aiohttp.ClientTimeout(ASK_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield _Client(session, access)


async def _until(attempt: Callable[[], Any], deadline: float, clock: Callable[[], float]) -> Any:
    """The result of ``attempt``, which is repeated after a _LaterError until the deadline."""
    while True:
        try:
            return await attempt()
        except _LaterError as error:
            if clock() + PAUSE_SECONDS > deadline:
                raise error.failure from error
        await asyncio.sleep(PAUSE_SECONDS)


def _chats(card: Mapping[str, Any]) -> bool:
    told = (card.get("capabilities") or {}).get("endpoints")
    return told is None or CHAT in told


def _refused(status: int, asked: str, body: str, *, keyed: bool) -> Exception:
    if status == 401:
        what = "the API key is not accepted" if keyed else "an API key is needed, and none was given"
        variable = "$CACHEFLEET_API_KEY, or the variable that --api-key-env names, is to have it"
        return FailureError([f"{asked}: 401, {what}; {variable}"])
    failure = FailureError([f"{asked}: {status}, {body[:500]}"])
    return _LaterError(failure) if status in _LATER else failure
