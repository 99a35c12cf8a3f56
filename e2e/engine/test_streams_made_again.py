"""Streams whose worker is killed within them, on real vLLM with real parsers: each goes on at the other worker.

Each is compared with the same request's answer by one worker: what it says, however vLLM has cut it into pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import pytest

from cachefleet_runtime.sse import EventSplitter
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.scripted_answers import OPTION, SCRIPT
from e2e.engine.spoken_streams import said

POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: agents}}
spec:
  model: {{name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}}
  replicas: 2
  engine: {{maxModelLen: 1900, dtype: float32, extraArgs: [{arguments}]}}
  device: {{resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 508}}
  prefixCache: {{budgetMiB: 1}}
"""
TOOLED: Final = ("--enable-auto-tool-choice", "--tool-call-parser=hermes", OPTION)
THOUGHTFUL: Final = ("--reasoning-parser=granite", OPTION)
THOUGHT: Final = f"Here is my thought process: {'the sea is wide and ' * 30} Here is my response: "
ENDING: Final = "The tide is low. 字 " * 20 + "So it is."
WHERE: Final = "Köln 字, " * 30
CALL: Final = f'<tool_call>\n{{"name": "tide", "arguments": {{"at": 3, "where": "{WHERE}"}}}}\n</tool_call>\n'
SCHEMA: Final = {"type": "object", "properties": {"at": {"type": "integer"}, "where": {"type": "string"}}}
FUNCTION: Final = {"name": "tide", "description": "the tide", "parameters": SCHEMA}
QUESTION: Final = [{"role": "user", "content": "What of the sea?"}]
STREAM: Final = {"model": "tiny", "temperature": 0, "stream": True}
CHAT: Final = STREAM | {"messages": QUESTION, "max_tokens": 1500, "stream_options": {"include_usage": True}}
MESSAGE: Final = STREAM | {"messages": QUESTION, "max_tokens": 1500}
RESPONSE: Final = STREAM | {"input": "What of the sea?", "max_output_tokens": 1500, "store": False}
TOOL: Final = {"name": "tide", "description": "the tide", "input_schema": SCHEMA}
SLOW: Final = pytest.mark.slow
FUNCTIONS: Final = {"tools": [{"type": "function", "function": FUNCTION}]}
FORMS: Final = [
    pytest.param(TOOLED, "/v1/chat/completions", CHAT | FUNCTIONS, id="tools"),
    pytest.param(TOOLED, "/v1/messages", MESSAGE | {"tools": [TOOL]}, id="messages", marks=SLOW),
    pytest.param(
        TOOLED, "/v1/responses", RESPONSE | {"tools": [{"type": "function", **FUNCTION}]}, id="responses", marks=SLOW
    ),
    pytest.param(THOUGHTFUL, "/v1/chat/completions", CHAT, id="reasoning", marks=SLOW),
    pytest.param(THOUGHTFUL, "/v1/messages", MESSAGE, id="reasoning-messages", marks=SLOW),
]
_NAMES: Final = re.compile(r"(chatcmpl|cmpl|resp|msg|rs|fc|call)[-_][\w-]+")
_VARYING: Final = re.compile(r"created(_at)?$|cach|\.id$|input_tokens")


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("made-again")
    pool = folder / "pool.yaml"
    pool.write_text(POOL.format(arguments=json.dumps(request.param)[1:-1]))
    with running_up(pool, folder) as up:
        yield up


async def ids_of(http: aiohttp.ClientSession, fleet: Up, text: str) -> list[int]:
    body = {"model": "tiny", "prompt": text, "add_special_tokens": False}
    async with http.post(f"{fleet.gateway}/tokenize", json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: list[int] = (await answer.json())["tokens"]
        return found


async def scripted(fleet: Up, body: dict[str, Any]) -> dict[str, Any]:
    """The body of a request that is answered with calls where it has tools, else with a thought."""
    text = "Let me see. " + CALL * 2 if "tools" in body else THOUGHT + ENDING
    async with aiohttp.ClientSession() as http:
        return body | {"vllm_xargs": {SCRIPT: await ids_of(http, fleet, text + "<|im_end|>")}}


async def ask(fleet: Up, path: str, body: dict[str, Any], *, kill_after: int = 0) -> tuple[list[bytes], str]:
    """The events of a stream, and its decision; after so many of them its worker is killed."""
    splitter, events = EventSplitter(1 << 20), list[bytes]()
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.post(fleet.gateway + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        worker = answer.headers["x-cachefleet-worker"]
        engine, epoch = (fleet.engine(worker), epoch_of(fleet, worker)) if kill_after else (None, "")
        async for data in answer.content.iter_any():
            events += splitter.feed(data)
            if engine is not None and len(events) > kill_after:
                engine.kill()
                engine = None
    if epoch:  # the next test has both workers, and none that only comes up is stopped
        until(lambda: epoch_of(fleet, worker) != epoch and fleet.live(2), READY_SECONDS, "whole again")
    return events, answer.headers["x-cachefleet-decision"]


def epoch_of(fleet: Up, worker: str) -> str:
    """Which start of a worker's engine is known."""
    return str(next(each["epoch"] for each in fleet.workers() if each["name"] == worker))


def unnamed(stream: list[bytes]) -> str:
    """What it says, without names, times and counts of what was cached."""
    texts, rest = said(stream)
    spoken = sorted((_NAMES.sub("", place), text) for place, text in texts.items())
    others = sorted((_NAMES.sub("", place), _NAMES.sub("", value)) for place, value in rest)
    return repr((spoken, [one for one in others if not _VARYING.search(one[0])]))


def completed(stream: list[bytes]) -> set[str]:
    """Tokens produced, as usage tells them."""
    return {value for place, value in said(stream)[1] if place.endswith(("completion_tokens", "output_tokens"))}


@pytest.mark.parametrize(("fleet", "path", "body"), FORMS, indirect=["fleet"])
async def test_a_stream_whose_worker_is_killed_goes_on(fleet: Up, path: str, body: dict[str, Any]) -> None:
    """What the parser of thoughts says depends on how its text is cut into pieces, so of these the end is compared."""
    until(lambda: fleet.live(2), READY_SECONDS, "whole")
    asked = await scripted(fleet, body)
    whole, _ = await ask(fleet, path, asked)
    stream, decision = await ask(fleet, path, asked, kill_after=len(whole) // 4)
    assert [attempt["outcome"] for attempt in fleet.decision(decision)["attempts"]] == ["cut_off", "finished"]
    if "tools" in body:
        assert unnamed(stream) == unnamed(whole)
        calls = [text for place, text in said(stream)[0].items() if "arguments" in place or "partial_json" in place]
        assert {json.loads(text)["where"] for text in calls if text} == {WHERE}
    else:
        assert any(text.endswith(ENDING) for text in said(stream)[0].values())
        assert completed(stream) == completed(whole)


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [TOOLED], indirect=True)
@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0.4, "ignore_eos": True, "allowed_token_ids": list(range(300, 320))},
        {"structured_outputs": {"regex": "([a-z]{3} ){80}"}},
        {"structured_outputs": {"regex": "([a-z]{3} ){80}"}, "presence_penalty": 1.0, "tools": FUNCTIONS["tools"]},
    ],
    ids=["penalties", "grammar", "both"],
)
async def test_what_its_engine_counts_goes_on_too(fleet: Up, fields: dict[str, Any]) -> None:
    """The model's own words, which depend on all that was said before."""
    until(lambda: fleet.live(2), READY_SECONDS, "whole")
    body = CHAT | {"max_tokens": 300} | fields
    whole, _ = await ask(fleet, "/v1/chat/completions", body)
    stream, decision = await ask(fleet, "/v1/chat/completions", body, kill_after=len(whole) // 3)
    attempts = fleet.decision(decision)["attempts"]
    assert [(each["outcome"], each["unresumed"]) for each in attempts] == [("cut_off", ""), ("finished", "")]
    assert unnamed(stream) == unnamed(whole)


@pytest.mark.parametrize("fleet", [TOOLED], indirect=True)
async def test_what_cannot_go_on_says_why(fleet: Up) -> None:
    until(lambda: fleet.live(2), READY_SECONDS, "whole")
    body = CHAT | FUNCTIONS | {"seed": 7, "ignore_eos": True}
    stream, decision = await ask(fleet, "/v1/chat/completions", body, kill_after=20)
    assert b"broke off" in b"".join(stream[-3:])
    (attempt,) = fleet.decision(decision)["attempts"]
    assert (attempt["outcome"], attempt["unresumed"]) == ("lost", "seed")
    assert "not resumed: seed" in fleet.command("explain", decision).stdout
