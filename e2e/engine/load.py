"""Requests of every kind against one engine with the plugin, many of them broken off, while its policy changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import aiohttp

from cachefleet_local.models.words import WORDS
from e2e.engine.requests import CHAT, COMPLETION, GENERATE, Sent
from e2e.engine.side import Side

AT_ONCE: Final = 16
ANSWER_SECONDS: Final = 600.0
SETTLE_SECONDS: Final = 120.0
POLICY_SECONDS: Final = 0.25
THRESHOLDS: Final = (None, None, None, None, 0, 0.2, 0.5, 0.9, 1)
OUTPUTS: Final = (1, 8, 8, 24, 24, 120, 400)
"""Tokens to answer with; the long ones run an engine of 63 blocks out of them."""
REASONS: Final = frozenset({"length", "stop", "cache_threshold"})

LEAVES: Final = 0.12
"""Share of the clients that close their connection at some moment, and of those that give up after some time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One request; a client that does not wait for the end goes after ``patience`` seconds."""

    sent: Sent
    choices: int
    patience: float | None = None
    closes: bool = False
    """Whether it closes after the first bytes instead."""


@dataclass(slots=True)
class Report:
    """What became of the requests."""

    finished: Counter[str] = field(default_factory=Counter)
    """Choices by finish reason."""
    answered: int = 0
    left: int = 0
    """Clients that went away before the end."""
    wrong: list[str] = field(default_factory=list)


def plans(count: int, *, seed: int = 0) -> list[Plan]:
    """Chat, completions and token requests; streams and not; one choice or two; all thresholds; some marked."""
    return [_plan(random.Random(f"{seed} {number}"), number) for number in range(count)]


def _plan(chance: random.Random, number: int) -> Plan:
    choices, stream = chance.choice((1, 1, 2)), chance.random() < 0.5
    shared = random.Random(number % 5)
    size = chance.choice((40, 80, 160))
    if number % 3 == 2:
        prompt: Any = [shared.randrange(300, 2000) for _ in range(size)]
        prompt += [chance.randrange(300, 2000) for _ in range(size)]
    else:
        prompt = " ".join([*shared.choices(WORDS, k=size), *chance.choices(WORDS, k=chance.randint(10, size))])
    sent = _sent(number % 3, prompt, _sampling(chance, choices), stream=stream)
    leaving = chance.random()
    if leaving < LEAVES:
        return Plan(sent, choices, patience=chance.uniform(0.005, 0.4))
    return Plan(sent, choices, closes=stream and leaving < 2 * LEAVES)


def _sampling(chance: random.Random, choices: int) -> dict[str, Any]:
    """Sampling parameters, with what is asked of the plugin under ``extra``."""
    extra: dict[str, Any] = {}
    threshold = chance.choice(THRESHOLDS)
    if threshold is not None:
        extra["cache_hit_threshold"] = threshold
    if chance.random() < 0.4:
        extra["cachefleet_resumable"] = 1
    return {
        "n": choices,
        "max_tokens": chance.choice(OUTPUTS),
        "temperature": 1,
        "ignore_eos": chance.random() < 0.9,
        "extra": extra,
    }


def _sent(kind: int, prompt: Any, sampling: dict[str, Any], *, stream: bool) -> Sent:
    extra = sampling.pop("extra")
    body: dict[str, Any] = {"stream": True} if stream else {}
    if kind == 2:
        return Sent(GENERATE, {**body, "token_ids": prompt, "sampling_params": {**sampling, "extra_args": extra}})
    body |= {**sampling, "vllm_xargs": extra}
    if kind == 1:
        return Sent(COMPLETION, {**body, "prompt": prompt})
    return Sent(CHAT, {**body, "messages": [{"role": "user", "content": prompt}]})


async def put_under_load(side: Side, count: int, *, seed: int = 0, at_once: int = AT_ONCE) -> Report:
    """Send so many requests, ``at_once`` at a time, under ever new policies; stock's policy stands afterwards."""
    report = Report()
    waiting = iter(plans(count, seed=seed))

    async def client() -> None:
        for plan in waiting:
            await _follow(side, plan, report)

    policies = Policies(side)
    changing = asyncio.ensure_future(policies.change(random.Random(seed)))
    try:
        await asyncio.gather(*(client() for _ in range(at_once)))
    finally:
        changing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await changing
    await policies.put()
    return report


@dataclass(slots=True)
class Policies:
    """Policies of a pool of its own, each replacing the one before."""

    side: Side
    uid: str = field(default_factory=lambda: str(uuid4()))
    generations: Iterator[int] = field(default_factory=itertools.count)

    async def put(self, **policy: Any) -> Any:
        """What the engine answers; without arguments its policy is to do as stock vLLM does."""
        body = {
            "pool": "default/load",
            "uid": self.uid,
            "generation": next(self.generations),
            "preemption": "Recompute",
        }
        exchange = await self.side.send("/v1/fleet/policy", body | policy, method="PUT")
        assert exchange.status == 200, exchange
        return exchange.body

    async def change(self, chance: random.Random) -> None:
        """Without end."""
        while True:
            await self.put(
                threshold=chance.choice((0, 0, 0, 0, 0.3, 0.6)),
                budget_mib=chance.choice((None, 0, 1)),
                preemption=chance.choice(("HandBack", "HandBack", "Recompute")),
                reject_below=chance.choice((0, 0.5, 1)),
            )
            await asyncio.sleep(POLICY_SECONDS)


async def _follow(side: Side, plan: Plan, report: Report) -> None:
    """Send one request and note what became of it."""
    timeout = aiohttp.ClientTimeout(total=plan.patience or ANSWER_SECONDS)
    try:
        async with side.session.post(
            side.url + plan.sent.path, json=plan.sent.body, headers=side.headers, timeout=timeout
        ) as answer:
            if plan.closes:
                await answer.content.readany()
                answer.close()
                report.left += 1
                return
            raw = await answer.read()
    except TimeoutError:
        if plan.patience is None:
            report.wrong.append(f"{plan.sent}: no answer in {ANSWER_SECONDS:.0f} s")
        report.left += 1
        return
    except aiohttp.ClientError as error:
        report.wrong.append(f"{plan.sent}: {error!r}")
        return
    _note(plan, answer.status, raw, report)


def _note(plan: Plan, status: int, raw: bytes, report: Report) -> None:
    reasons = finish_reasons(raw) if status == 200 else {}
    if len(reasons) != plan.choices or not REASONS.issuperset(reasons.values()):
        report.wrong.append(f"{plan.sent}: {status}, {reasons}, {raw[-300:]!r}")
        return
    report.answered += 1
    report.finished.update(reasons.values())


def finish_reasons(raw: bytes) -> dict[int, str]:
    """Of each choice that has one, of a body or of a stream that came to its end; none of another."""
    if raw.startswith(b"data: "):
        events = [event.removeprefix(b"data: ") for event in raw.strip().split(b"\n\n")]
        bodies = [json.loads(event) for event in events[:-1]] if events[-1] == b"[DONE]" else []
    else:
        bodies = [json.loads(raw)]
    choices = [choice for body in bodies for choice in body.get("choices", ())]
    return {choice["index"]: choice["finish_reason"] for choice in choices if choice.get("finish_reason")}


async def preemptions(side: Side) -> float:
    """Since the engine's start."""
    samples = (await side.metrics()).items()
    return sum(value for name, value in samples if name.startswith("vllm:num_preemptions_total"))


async def stats(side: Side) -> dict[str, Any]:
    """Of the first rank."""
    return dict((await side.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"])


async def settled(side: Side) -> dict[str, Any]:
    """The stats once the engine has nothing to do. TimeoutError."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while (found := await stats(side))["running"] or found["waiting"]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return found


def inconsistencies(audit: dict[str, Any]) -> list[str]:
    """What an engine's check of itself says against it."""
    wrong = [name for name in ("ledger_missing", "ledger_extra") if audit[name]]
    if audit["idle_counted"] != audit["idle_recounted"]:
        wrong.append("idle_counted")
    return wrong


async def audit(side: Side) -> dict[str, Any]:
    """Of the first rank."""
    return dict((await side.send("/v1/fleet/audit", method="GET")).body["ranks"]["0"])


async def refusal_seconds(side: Side, count: int, *, seed: int = 0) -> list[float]:
    """How long an engine that should be idle takes to refuse each of so many prompts that it does not know."""
    chance = random.Random(f"refused {seed}")
    seconds = []
    for number in range(count):
        prompt = " ".join(chance.choices(WORDS, k=200))
        body: dict[str, Any] = {"max_tokens": 8, "vllm_xargs": {"cache_hit_threshold": 0.9}}
        body |= {"prompt": prompt} if number % 2 else {"messages": [{"role": "user", "content": prompt}]}
        began = time.perf_counter()
        exchange = await side.send((CHAT, COMPLETION)[number % 2], body)
        seconds.append(time.perf_counter() - began)
        assert exchange.status == 200, exchange
        assert exchange.body["choices"][0]["finish_reason"] == "cache_threshold", exchange
    return seconds
