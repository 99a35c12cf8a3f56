"""Answers that more than one worker has a part in, on real vLLM: handed back under pressure, or their worker killed.

Each text is compared with that of the same request alone on a quiet fleet: all answers are greedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.long_answers import CHAT, COMPLETION, Said, ask, ask_all
from e2e.engine.storm import prompts

OUTPUT_TOKENS: Final = 700
REQUESTS: Final = 14
"""Of 29 blocks at their end each, where two workers of 128 take on as many as fit with 256 tokens of answer."""
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: storm}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  replicas: 2
  engine: {maxModelLen: 1900, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 508}
  prefixCache: {budgetMiB: 1}
  admission: {maxQueueSeconds: 300}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("resuming")
    pool = folder / "pool.yaml"
    pool.write_text(POOL)
    with running_up(pool, folder) as up:
        yield up


@pytest.fixture(autouse=True)
def _whole(fleet: Up) -> None:
    until(lambda: fleet.live(2), READY_SECONDS, "whole")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_b11_a_handed_back_answer_is_continued_elsewhere(fleet: Up, stream: bool) -> None:  # noqa: FBT001
    """Text, usage and finish reason are those of an answer that nobody handed back."""
    given = prompts(11 + stream, REQUESTS)
    least = OUTPUT_TOKENS if stream else 0  # a rest that is asked for too much at least would be refused
    bodies: list[dict[str, Any]] = [
        {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "min_tokens": least, "stream": stream}
        for prompt in given
    ]
    found = await ask_all(fleet.gateway, COMPLETION, bodies)
    assert [said.error for said in found if said.error] == []
    handed_back = [said for said in found if "handed_back" in _outcomes(fleet, said)]
    assert handed_back
    for said in found:
        assert said.finish == "length"
        assert (said.usage["prompt_tokens"], said.usage["completion_tokens"]) == (len(given[0]), OUTPUT_TOKENS)
        assert said.usage["total_tokens"] == len(given[0]) + OUTPUT_TOKENS
    for said in handed_back[:4]:
        alone = await ask(fleet.gateway, COMPLETION, bodies[found.index(said)])
        assert _outcomes(fleet, alone) in (["answered"], ["finished"])
        assert said.text == alone.text


async def test_an_answer_whose_worker_dies_is_continued_by_the_other(fleet: Up) -> None:
    """The client of a stream sees its text go on, every character once; of two choices, an error."""
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me all of it, from the beginning. " * 4}],
        "max_tokens": 1500,
        "stream": True,
    }
    whole = await ask(fleet.gateway, CHAT, body)
    assert (whole.error, whole.usage["completion_tokens"]) == ("", 1500)
    killed: list[str] = []
    engines = {worker["name"]: fleet.engine(worker["name"]) for worker in fleet.workers()}

    def kill(said: Said) -> None:
        if len(said.text) > len(whole.text) // 20 and not killed:
            killed.append(said.worker)
            engines[said.worker].kill()

    short = {"n": 2, "temperature": 1, "max_tokens": 600}  # wherever it is, it leaves room for all of the other
    several = asyncio.create_task(ask(fleet.gateway, CHAT, body | short))
    said = await ask(fleet.gateway, CHAT, body, heard=kill)
    broken = await several
    assert killed == [said.worker]
    assert (said.error, said.text, said.finish, said.usage) == ("", whole.text, "length", _uncached(said, whole))
    assert _outcomes(fleet, said) == ["cut_off", "finished"]
    assert bool(broken.error) == (broken.worker == killed[0])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_whose_worker_drains_is_continued_by_the_other(fleet: Up, stream: bool) -> None:  # noqa: FBT001
    """Its agent is told to go, and its engine lives on: nothing is computed twice, and nothing is missing."""
    prompt = prompts(31, 1)[0]
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 1500, "stream": stream}
    whole = await ask(fleet.gateway, COMPLETION, body)
    agents = {one.environ()["CACHEFLEET_WORKER"]: one for one in fleet.below("cachefleet_worker.agent")}
    asking = asyncio.create_task(ask(fleet.gateway, COMPLETION, body))
    while not (busy := [worker["name"] for worker in fleet.workers() if worker["inflightRequests"]]):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    agents[busy[0]].terminate()
    said = await asking
    assert (said.error, said.text, said.finish, said.usage) == ("", whole.text, "length", _uncached(said, whole))
    first, last = _outcomes(fleet, said)
    assert (first in {"handed_back", "moved"}, last) == (True, "finished" if stream else "answered")


def _uncached(said: Said, whole: Said) -> dict[str, Any]:
    """The usage of ``whole`` with the cached tokens of ``said``: the other worker may hold other blocks."""
    details = said.usage.get("prompt_tokens_details")
    return whole.usage | ({"prompt_tokens_details": details} if "prompt_tokens_details" in whole.usage else {})


def _outcomes(fleet: Up, said: Said) -> list[str]:
    return [attempt["outcome"] for attempt in fleet.decision(said.decision)["attempts"]]
