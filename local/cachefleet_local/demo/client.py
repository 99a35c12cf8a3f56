"""Sends the trace through the gateway as agents would: several at a time, one conversation's turns in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp

from cachefleet_local.demo.report import Answer
from cachefleet_local.demo.workload import Request

AGENTS_AT_A_TIME: Final = 3
ANSWER_TOKENS: Final = 16
REQUEST_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """The gateway's address, the model to ask for, and a clock in seconds."""

    url: str
    model: str
    clock: Callable[[], float] = time.perf_counter


async def send_all(target: Target, trace: Sequence[Request], sent: Callable[[], None]) -> list[Answer]:
    """Answers in the trace's order. Requests begin in that order, each after the one before in its conversation."""
    slots = asyncio.Semaphore(AGENTS_AT_A_TIME)
    turns: dict[int, asyncio.Task[Answer]] = {}
    tasks: list[asyncio.Task[Answer]] = []
    timeout, start = aiohttp.ClientTimeout(REQUEST_SECONDS), target.clock()
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        for request in trace:
            await slots.acquire()
            if previous := turns.get(request.conversation):
                await asyncio.wait({previous})
            task = group.create_task(_send(session, target, request, start))
            task.add_done_callback(lambda _: slots.release())
            task.add_done_callback(lambda _: sent())
            turns[request.conversation] = task
            tasks.append(task)
    return [task.result() for task in tasks]


async def _send(session: aiohttp.ClientSession, target: Target, request: Request, start: float) -> Answer:
    body = {
        "model": target.model,
        "messages": list(request.messages),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = target.clock()
    try:
        async with session.post(f"{target.url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                return Answer(request.number, failure=f"status {response.status}: {(await response.text())[:200]}")
            answer = await _read(request, response, lambda: target.clock() - began)
            return replace(answer, at_seconds=began - start)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Answer(request.number, failure=f"{type(error).__name__}: {error}")


async def _read(request: Request, response: aiohttp.ClientResponse, elapsed: Callable[[], float]) -> Answer:
    first, usage = 0.0, None
    async for event in events(response):
        if not first and any(choice["delta"].get("content") for choice in event["choices"]):
            first = elapsed()
        usage = event.get("usage") or usage
    if usage is None:
        return Answer(request.number, failure="the answer has no usage")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        number=request.number,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        ttft_seconds=first,
        worker=response.headers.get("x-cachefleet-worker", ""),
        knowledge=response.headers.get("x-cachefleet-knowledge", ""),
        decision=response.headers.get("x-cachefleet-decision", ""),
    )


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event. ValueError where the stream ends without [DONE], or reports an error.

    It reads to the end of the answer, so that the connection can be used again.
    """
    done = False
    async for line in response.content:
        data = line.strip().removeprefix(b"data:").strip()
        if done or not line.startswith(b"data:"):
            continue
        if data == b"[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"error in the stream: {event['error']}")
        yield event
    if not done:
        raise ValueError("the stream ended early")
