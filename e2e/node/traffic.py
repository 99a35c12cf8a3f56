"""Runs inside the cluster, as an application's pod does: asks the gateway's Service and writes down what came of it.

One JSON object as argument: url, model, rate (requests a second, 0 for one request at a time), seconds, conversations,
tokens (to generate), stream ("never", "always", "mixed"), seed. Ends after ``seconds`` or when its input ends, and
prints one JSON object a request. No request is tried twice.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

import aiohttp

PREFIX_WORDS = 260
TURN_WORDS = 12
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")


def messages(conversation: int, turn: int, seed: int) -> list[dict[str, str]]:
    """A long beginning that one conversation has alone, and a turn that nobody asked before."""
    chance = random.Random(f"{seed}/{conversation}")
    asked = random.Random(f"{seed}/{conversation}/{turn}")
    beginning = " ".join(chance.choices(WORDS, k=PREFIX_WORDS))
    return [
        {"role": "system", "content": beginning},
        {"role": "user", "content": " ".join(asked.choices(WORDS, k=TURN_WORDS))},
    ]


async def ask(http: aiohttp.ClientSession, asked: dict[str, Any], number: int) -> dict[str, Any]:
    """One request and what came of it."""
    streamed = asked["stream"] == "always" or (asked["stream"] == "mixed" and number % 2 == 0)
    conversation = number % asked["conversations"]
    body: dict[str, Any] = {
        "model": asked["model"],
        "messages": messages(conversation, number // asked["conversations"], asked["seed"]),
        "max_tokens": asked["tokens"],
        "temperature": 0,
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    told: dict[str, Any] = {"at": time.time(), "stream": streamed, "conversation": conversation, "error": ""}
    try:
        async with http.post(f"{asked['url']}/v1/chat/completions", json=body) as answer:
            told |= {"status": answer.status, "worker": answer.headers.get("x-cachefleet-worker", "")}
            told |= await (_streamed if streamed and answer.status == 200 else _whole)(answer, told)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        told["error"] = f"{type(error).__name__}: {error}"
    return told | {"seconds": round(time.time() - told["at"], 3)}


async def _whole(answer: aiohttp.ClientResponse, told: dict[str, Any]) -> dict[str, Any]:
    text = await answer.text()
    if answer.status != 200:
        return {"error": f"{answer.status}: {text[:500]}"}
    answered = json.loads(text)
    return _counted(answered["usage"]) | {"text": answered["choices"][0]["message"]["content"]}


async def _streamed(answer: aiohttp.ClientResponse, told: dict[str, Any]) -> dict[str, Any]:
    usage: dict[str, Any] | None = None
    async for line in answer.content:
        told["begun"] = True
        if line.startswith(b"data: [DONE]"):
            return _counted(usage) if usage else {"error": "no usage"}
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                return {"error": f"in stream: {event['error']}"}
            usage = event.get("usage") or usage
    return {"error": "the stream ended early"}


def _counted(usage: dict[str, Any]) -> dict[str, Any]:
    details = usage.get("prompt_tokens_details") or {}
    return {"prompt": usage["prompt_tokens"], "cached": details.get("cached_tokens") or 0}


async def main(asked: dict[str, Any]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().run_in_executor(None, _wait_for_end, asyncio.get_running_loop(), ended)
    until = time.monotonic() + asked["seconds"]
    under_way: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:
        number = 0
        while time.monotonic() < until and not ended.is_set():
            task = asyncio.ensure_future(_tell(http, asked, number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            number += 1
            await (asyncio.sleep(1 / asked["rate"]) if asked["rate"] else task)
        await asyncio.gather(*under_way)


async def _tell(http: aiohttp.ClientSession, asked: dict[str, Any], number: int) -> None:
    told = await ask(http, asked, number)
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _wait_for_end(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    sys.stdin.read()
    loop.call_soon_threadsafe(ended.set)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
