"""Preempted requests on real vLLM with few blocks: handed back with what they produced, or resumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import aiohttp
import pytest
from transformers import AutoTokenizer

from e2e.engine.gate_scenario import threshold
from e2e.engine.load import preemptions, settled
from e2e.engine.requests import COMPLETION
from e2e.engine.side import Side
from e2e.engine.storm import MARK, OUTPUT_TOKENS, Storm, prompts, storm
from e2e.engine.vllm import VllmOptions, VllmServer

PLUGIN: Final = VllmOptions(plugin=True)
ATTEMPTS: Final = 20
"""Two requests meet in the engine the first time, unless the machine is busy."""

pytestmark = pytest.mark.parametrize("vllm_server", [PLUGIN], indirect=True)


@pytest.fixture
async def engine(vllm_server: VllmServer) -> AsyncIterator[Side]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        yield Side(vllm_server.url, "", vllm_server.replay_endpoint, vllm_server.headers, session)


@pytest.fixture
def half(vllm_server: VllmServer) -> Iterator[None]:
    with threshold(vllm_server, 0.0, preemption="HandBack", reject_below=0.5):
        yield


async def stats(engine: Side) -> dict[str, Any]:
    found: dict[str, Any] = (await engine.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"]
    return found


def check(found: Storm, tokenizer: Any) -> None:
    """Each answer is whole, or handed back with text and ids that agree."""
    assert len(found.survivors) + len(found.handed_back) == len(found.answers)
    for answer in found.answers:
        assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"]
        said = tokenizer.decode(answer["token_ids"], skip_special_tokens=True)
        assert said.rstrip("�").startswith(answer["text"].rstrip("�"))
        assert len(said.rstrip("�")) - len(answer["text"].rstrip("�")) <= 1
    assert all(answer["usage"]["completion_tokens"] == OUTPUT_TOKENS for answer in found.survivors)


@pytest.mark.requirement("B10", "B11")
async def test_marked_victims_come_back_and_go_on_elsewhere(engine: Side, half: None, vllm_server: VllmServer) -> None:
    """What they had and what follows it is what an answer without preemption would have been."""
    before = (await stats(engine))["counts"].get("handed_back", 0)
    given = prompts(1)
    found = await storm(engine, given, **MARK)
    check(found, AutoTokenizer.from_pretrained(vllm_server.folder))
    assert found.handed_back
    assert found.survivors
    assert (await stats(engine))["counts"]["handed_back"] - before == len(found.handed_back)
    for answer in found.handed_back:
        assert answer["stop_reason"] == "cache_threshold"
        assert answer["details"]["prompt_tokens"] == len(given[0])
        assert (answer["details"]["threshold"], answer["details"]["preempted"]) == (0.5, 1)
        assert answer["details"]["hit_tokens"] < 0.5 * (len(given[0]) + len(answer["token_ids"]))
    victim = max(found.handed_back, key=lambda answer: len(answer["token_ids"]))
    assert 0 < len(victim["token_ids"]) < OUTPUT_TOKENS
    prompt = given[found.answers.index(victim)]
    rest = await storm(engine, [prompt + victim["token_ids"]], max_tokens=OUTPUT_TOKENS - len(victim["token_ids"]))
    (whole,) = (await storm(engine, [prompt])).answers
    assert victim["token_ids"] + rest.answers[0]["token_ids"] == whole["token_ids"]


async def test_also_in_the_middle_of_a_stream_with_what_was_kept_back(
    engine: Side, half: None, vllm_server: VllmServer
) -> None:
    """A stop text that never comes keeps the last characters back until the end."""
    found = await storm(engine, prompts(2), stream=True, stop=["this text never comes"], **MARK)
    check(found, AutoTokenizer.from_pretrained(vllm_server.folder))
    assert found.handed_back
    kept_back = [answer["last"]["text"] for answer in found.handed_back if answer["token_ids"]]
    assert max(len(text) for text in kept_back) > 10
    assert all(answer["last"]["finish_reason"] == "cache_threshold" for answer in found.handed_back)


async def test_unmarked_victims_are_computed_again(engine: Side, half: None) -> None:
    before = await stats(engine)
    preempted = await preemptions(engine)
    found = await storm(engine, prompts(3), cache_hit_threshold=0)
    assert len(found.survivors) == len(found.answers)
    assert (await stats(engine))["counts"].get("handed_back", 0) == before["counts"].get("handed_back", 0)
    assert await preemptions(engine) > preempted


async def test_one_whose_blocks_survive_goes_on(engine: Side, half: None) -> None:
    """Two that together need a little more than there is: when the first ends, the second's blocks are still there."""
    before = await preemptions(engine)
    for _ in range(ATTEMPTS):
        found = await storm(engine, prompts(4, count=2, length=900), max_tokens=120, **MARK)
        assert [answer["usage"]["completion_tokens"] for answer in found.survivors] == [120, 120]
        if await preemptions(engine) > before:
            return
    pytest.fail("the two never needed more than there is at once")


async def test_nothing_is_left_of_them(engine: Side, half: None) -> None:
    await storm(engine, prompts(5), **MARK)
    found = await settled(engine)
    assert found["faults"] == {}
    assert found["blocks_free"] == found["blocks_total"] - 1
    assert (await engine.send(COMPLETION, {"prompt": "x", "max_tokens": 1})).status == 200
