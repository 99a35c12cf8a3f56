"""The two ways of a turn: stock vLLM with the whole history; the gateway, which sends its worker what is new."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.continuation_models import MAX_LENGTH, Family, write_model
from bench.continuation_work import Messages
from bench.engine_processes import EngineProcesses, engine_processes
from bench.parts import POOL, WORKER, Engine, Running, agent_environment, cores, plane, process
from bench.relay import Relay
from cachefleet_core.tenancy import FleetKey, fleet_index_key
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

CHAT: Final = "/v1/chat/completions"
BY_HANDLE: Final = "endpoint_local_shortcut_hit"
CONTINUATION: Final = ("continuation: {enabled: true, handles: true}",)
STOCK: Final = VllmOptions(max_model_len=MAX_LENGTH, num_blocks=6_500, max_batched_tokens=8_192)
READY_SECONDS: Final = 120.0
SETTLED_SECONDS: Final = 0.1
"""In which a worker is done with what a turn leaves to do after its answer."""


class UnsoundError(Exception):
    """An answer was not what it has to be: nothing is reported."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took: seconds to the first byte of the answer and of the worker's CPU, bytes to the worker.

    ``cpu`` is that of the worker's API server until its engine has the request, ``whole`` that until the turn's end.
    """

    first: float
    cpu: float
    whole: float
    sent: int
    decision: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What must be equal on both sides, and the share of the prompt that was cached."""

    said: Any
    cached: float


@dataclass(frozen=True, slots=True)
class Side:
    """One way, and the processes of the worker at its end."""

    url: str
    headers: dict[str, str]
    worker: EngineProcesses
    relay: Relay | None = None

    async def turn(self, http: aiohttp.ClientSession, messages: Messages) -> Turn:
        """Ask for one token, streamed."""
        body = _body(messages, max_tokens=1, stream=True)
        sent = self.relay.sent if self.relay else 0
        with self.worker.spent() as spent:
            began = time.perf_counter()
            async with http.post(self.url + CHAT, data=body, headers=self.headers) as answer:
                said = await answer.content.readany()
                first = time.perf_counter() - began
                said += await answer.read()
            if answer.status != 200 or not said.endswith(b"data: [DONE]\n\n"):
                raise UnsoundError(f"{answer.status}: {said[-500:]!r}")
            await asyncio.sleep(SETTLED_SECONDS)
        bytes_sent = self.relay.sent - sent if self.relay else len(body)
        decision = answer.headers.get("x-cachefleet-decision", "")
        return Turn(first, spent.to_engine, spent.whole, bytes_sent, decision)

    async def answer(self, http: aiohttp.ClientSession, messages: Messages) -> Answered:
        """Ask for eight tokens, in one piece."""
        body = _body(messages, max_tokens=8, stream=False)
        async with http.post(self.url + CHAT, data=body, headers=self.headers) as answer:
            said = await answer.json()
        if answer.status != 200:
            raise UnsoundError(f"{answer.status}: {said}")
        usage = said["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
        return Answered((said["choices"], usage["prompt_tokens"], usage["completion_tokens"]), cached)


@dataclass(frozen=True, slots=True)
class Sides:
    """Both, and the control plane."""

    stock: Side
    ours: Side
    plane: Running


@contextmanager
def both_sides(folder: Path, family: Family) -> Iterator[Sides]:
    """Two engines of one model, the second with plugin, agent and control plane, once it takes turns by handle."""
    key, model = FleetKey.generate(), folder / "model"
    model.mkdir()
    write_model(model, family)
    with ExitStack() as stack:
        stock, worker = stack.enter_context(_engines(folder, model, key))
        relay = stack.enter_context(Relay(worker.url).running())
        running = stack.enter_context(_control_plane(folder / "plane", key, worker, relay))
        json_type = {"content-type": "application/json"}
        sides = Sides(
            Side(stock.url, stock.headers | json_type, engine_processes(stock)),
            Side(running.gateway, json_type, engine_processes(worker), relay),
            running,
        )
        asyncio.run(_certified(running))
        yield sides


@contextmanager
def _engines(folder: Path, model: Path, key: FleetKey) -> Iterator[list[VllmServer]]:
    """Stock and ours, started together."""
    index_key = folder / "index.key"
    index_key.write_text(base64.urlsafe_b64encode(fleet_index_key(key.index_key, "default", STOCK.model)).decode())
    ours = replace(
        STOCK,
        plugin=True,
        api_key=key.worker_key(POOL),
        environment=(("CACHEFLEET_INDEX_KEY_FILE", str(index_key)),),
    )
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        logs = [folder / name / "vllm.log" for name in ("stock", "ours")]
        for log in logs:
            log.parent.mkdir()
        managers = [running_vllm(options, model, log) for options, log in zip((STOCK, ours), logs, strict=True)]
        starting = [pool.submit(manager.__enter__) for manager in managers]
        for manager, started in zip(managers, starting, strict=True):
            if started.exception() is None:
                stack.push(manager)
        yield [started.result() for started in starting]


@contextmanager
def _control_plane(folder: Path, key: FleetKey, worker: VllmServer, relay: Relay) -> Iterator[Running]:
    """The gateway asks the worker through the relay; its agent asks it directly."""
    folder.mkdir()
    engine = Engine(
        url=worker.url,
        events=worker.events_endpoint,
        replay=worker.replay_endpoint,
        model=worker.options.model,
        block_size=worker.options.block_size,
        max_model_len=worker.options.max_model_len,
        resource="",
    )
    (core,) = cores(1)
    before = {WORKER: replace(engine, url=relay.url)}
    anywhere = {*core, *cores(2)[1]}
    with plane(folder, key, before, core=anywhere, spec=CONTINUATION, continuation_certify_chats="5") as running:
        environment = agent_environment(folder, running, WORKER, engine)
        with process(
            ["-m", "cachefleet_worker.agent"], log=folder / "agent.log", core=anywhere, environment=environment
        ):
            yield running


async def _certified(running: Running) -> None:
    """Wait until the profile was examined: handles are for certified ones."""
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession(headers=_admin()) as http:
        while True:
            async with http.get(f"{running.internal}/admin/v1/certificates") as answer:
                found = (await answer.json())["items"]
            if any(one["certified"] for one in found):
                return
            if found:
                raise UnsoundError(f"the profile was refused: {found}")
            await asyncio.sleep(0.2)


async def outcomes(running: Running, decisions: set[str]) -> list[str]:
    """How the turns of these decisions were continued."""
    async with (
        aiohttp.ClientSession(headers=_admin()) as http,
        http.get(f"{running.internal}/admin/v1/decisions?limit=500") as answer,
    ):
        items = (await answer.json())["items"]
    return [str(one["continuation"]) for one in items if one["id"] in decisions]


def _admin() -> dict[str, str]:
    return {"authorization": "Bearer admin"}


def _body(messages: Messages, *, max_tokens: int, stream: bool) -> bytes:
    asked = {"model": STOCK.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
    return json.dumps(asked | {"ignore_eos": True, "stream": stream}).encode()
