"""Parts killed under traffic, on real parts: two workers of real vLLM, their agents, a control plane.

What must hold: no request fails but a stream that its dying worker had begun; what a dead engine held is gone from the
index; what a restarted control plane or agent knows is again what the engines hold, never more.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.engine.fleet import READY_SECONDS, Up, is_gone, running_up, until
from e2e.engine.traffic import SYSTEM, Traffic

POOL_FILE = Path("examples/cpu-two-workers.yaml")
MODEL = "tiny"
DEVELOPMENT = '{name: VLLM_SERVER_DEV_MODE, value: "1"}'
"""Opens vLLM's routes for sleep and pause."""
GONE_SECONDS = 60.0
"""Until nothing of a dead engine is in the index: silence alone has that effect after 15 s."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("faults")
    pool = folder / "pool.yaml"
    pool.write_text(POOL_FILE.read_text().replace("  engine:\n", f"  engine:\n    env: [{DEVELOPMENT}]\n"))
    with running_up(pool, folder) as up:
        yield up


@pytest.fixture(autouse=True)
def _whole(fleet: Up) -> None:
    until(lambda: fleet.live(2), READY_SECONDS, "whole")


async def test_a_killed_engine_fails_only_the_streams_it_had_begun(fleet: Up) -> None:
    engines = {worker["name"]: (fleet.engine(worker["name"]), worker["epoch"]) for worker in fleet.workers()}
    async with _traffic(fleet) as traffic:
        name = await _until(lambda: len(traffic.sent) > 40 and _streaming(traffic))
        engine, epoch = engines[name]
        engine.kill()
        killed = time.monotonic()
        await _until(lambda: not _worker(fleet, name)["ready"])
        await _until(lambda: _has_nothing_of(fleet, name, epoch), seconds=GONE_SECONDS)
        await _until(lambda: _worker(fleet, name)["epoch"] != epoch, seconds=READY_SECONDS)
        await _until(lambda: len([one for one in traffic.answered if one.began > killed]) > 20)
    begun = [one for one in traffic.sent if one.stream and one.worker == name and one.first_byte and one.began < killed]
    assert [one for one in traffic.failed if one not in begun] == []
    await _until(lambda: _worker(fleet, name)["ready"], seconds=READY_SECONDS)
    await _until(lambda: _is_credited_with_what_it_has(fleet, name))
    async with _alone(fleet, name), _traffic(fleet) as traffic:
        await _until(lambda: any(one.worker == name for one in traffic.answered))
    assert traffic.failed == []
    await _until(lambda: _worker(fleet, name)["heldBlocks"] > 0)


async def test_a_killed_control_plane_knows_the_blocks_again(fleet: Up) -> None:
    async with _traffic(fleet) as traffic:
        await _until(lambda: len(traffic.sent) > 40)
    before = await _at_rest(fleet)
    assert all(held for _, held in before.values())
    (control_plane,) = fleet.below("cachefleet_controlplane")
    control_plane.kill()
    killed = time.monotonic()
    await _until(lambda: is_gone(control_plane))
    await _until(lambda: _answers(fleet))
    answered = time.monotonic()
    await _until(lambda: _known(fleet) == before)
    healed = time.monotonic() - answered
    print(f"index whole again {healed:.1f} s after it answered, {answered - killed + healed:.1f} s after the kill")


async def test_a_killed_agent_leaves_the_engine_serving(fleet: Up) -> None:
    async with _traffic(fleet) as traffic:
        await _until(lambda: len(traffic.answered) > 20)
        name, killed = traffic.answered[-1].worker, time.monotonic()
        await _agent_replaced(fleet, name)
        await _until(lambda: len([one for one in traffic.answered if one.began > killed]) > 20)
    assert traffic.failed == []
    async with _alone(fleet, name):
        assert (await _complete(fleet, "What is left is asked."))["worker"] == name


async def test_a_killed_agent_recovers_its_blocks_from_the_engine(fleet: Up) -> None:
    async with _traffic(fleet) as traffic:
        await _until(lambda: len(traffic.sent) > 20)
    workers = await _at_rest(fleet)
    name = max(workers, key=lambda worker: workers[worker][1])  # traffic may keep to one, where others hold nothing
    epoch, held = workers[name]
    assert held
    await _agent_replaced(fleet, name)
    await _until(lambda: _worker(fleet, name)["heldBlocks"] == held)
    assert _worker(fleet, name)["epoch"] == epoch, "the engine has not restarted"
    assert await _predictions_are_served(fleet) > 0


@pytest.mark.parametrize(
    ("sleep", "wake", "state"), [("sleep?level=1", "wake_up", "asleep"), ("pause?mode=keep", "resume", "paused")]
)
async def test_an_engine_that_serves_nothing_gets_nothing_and_is_asked_again_cold(
    fleet: Up, sleep: str, wake: str, state: str
) -> None:
    prompt = f"One that {state} engines are asked. " * 30
    first = await _complete(fleet, prompt)
    worker, other = first["worker"], {"demo-0": "demo-1", "demo-1": "demo-0"}[first["worker"]]
    await _until(lambda: _worker(fleet, worker)["heldBlocks"] > 0)
    _call(fleet, worker, sleep)
    await _until(lambda: _worker(fleet, worker)["suspended"] == state)
    await _until(lambda: _worker(fleet, worker)["heldBlocks"] == 0)
    assert state in fleet.command("workers").stdout
    assert {(await _complete(fleet, prompt))["worker"] for _ in range(4)} == {other}
    _call(fleet, worker, wake)
    _call(fleet, other, sleep)
    try:
        await _until(lambda: not _worker(fleet, worker)["suspended"] and _worker(fleet, other)["suspended"])
        again = await _complete(fleet, prompt)
        assert (again["worker"], again["predictedTokens"], again["cachedTokens"]) == (worker, 0, 0)
    finally:
        _call(fleet, other, wake)
    await _until(lambda: not _worker(fleet, other)["suspended"])


async def test_a_nap_shorter_than_a_report_is_not_predicted_from(fleet: Up) -> None:
    prompt = "One that naps are asked. " * 40
    asked = {"model": MODEL, "prompt": prompt}
    await _complete(fleet, prompt)
    await _until(lambda: fleet.predicted(asked))
    worker = (await _complete(fleet, prompt))["worker"]
    await _until(lambda: fleet.predicted(asked))
    _call(fleet, worker, "sleep?level=1")
    _call(fleet, worker, "wake_up")  # no poll, of which there is one a second, need have seen it asleep
    await _until(lambda: not fleet.predicted(asked))
    after = await _complete(fleet, prompt)
    assert (after["predictedTokens"], after["cachedTokens"]) == (0, 0)


async def test_an_answer_of_an_engine_that_falls_asleep_goes_on_elsewhere(fleet: Up) -> None:
    for way in ("sleep?level=1", "pause?mode=keep"):
        await _until(lambda: all(map(_is_idle, fleet.workers())))
        asking = asyncio.create_task(_complete(fleet, f"A long one, {way}.", max_tokens=1500, ignore_eos=True))
        (worker,) = await _until(lambda: [one["name"] for one in fleet.workers() if not _is_idle(one)])
        _call(fleet, worker, way)
        try:
            record = await asking
        finally:
            _call(fleet, worker, "wake_up" if "sleep" in way else "resume")
        workers = [attempt["worker"] for attempt in record["attempts"]]
        assert (record["finish"], workers[0]) == ("length", worker), way
        assert workers[-1] != worker, way
        await _until(lambda worker=worker: not _worker(fleet, worker)["suspended"])


async def _complete(fleet: Up, prompt: str, **more: Any) -> dict[str, Any]:
    """The record of a completion, with its finish reason."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4} | more
    number, answer = await asyncio.to_thread(_post, f"{fleet.gateway}/v1/completions", body)
    record = await asyncio.to_thread(fleet.decision, number)
    return record | {"finish": answer["choices"][0]["finish_reason"]}


def _post(url: str, body: dict[str, object]) -> tuple[str, dict[str, Any]]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - the fleet's own
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310 - as above
        return answer.headers["x-cachefleet-decision"], json.load(answer)


def _call(fleet: Up, worker: str, path: str) -> None:
    """Call a route of a worker's own vLLM, with its key."""
    (key,) = (fleet.data_dir / "secrets").rglob("*worker*key*")
    headers = {"authorization": f"Bearer {key.read_text().strip()}"}
    url = f"{_worker(fleet, worker)['url']}/{path}"
    request = urllib.request.Request(url, b"", headers, method="POST")  # noqa: S310 - the fleet's own
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
        answer.read()


async def _predictions_are_served(fleet: Up) -> int:
    """Send one conversation on an idle fleet; predicted tokens never exceed what the engine served. Their sum."""
    numbers = []
    for number in range(6):
        body = {
            "model": MODEL,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Again. " * 20 * number}],
            "max_tokens": 4,
        }
        numbers.append((await asyncio.to_thread(_post, f"{fleet.gateway}/v1/chat/completions", body))[0])
    decisions = [await asyncio.to_thread(fleet.decision, number) for number in numbers]
    assert all(one["predictedTokens"] <= one["cachedTokens"] for one in decisions)
    return sum(one["predictedTokens"] for one in decisions)


@asynccontextmanager
async def _traffic(fleet: Up) -> AsyncIterator[Traffic]:
    traffic = Traffic(fleet.gateway, MODEL)
    task = asyncio.create_task(traffic.run())
    try:
        yield traffic
    finally:
        traffic.stop()
        await task


@asynccontextmanager
async def _alone(fleet: Up, worker: str) -> AsyncIterator[None]:
    """The other worker sleeps: all that is asked comes to this one."""
    (other,) = [one["name"] for one in fleet.workers() if one["name"] != worker]
    _call(fleet, other, "sleep?level=1")
    try:
        await _until(lambda: _worker(fleet, other)["suspended"] == "asleep")
        yield
    finally:
        _call(fleet, other, "wake_up")
    await _until(lambda: not _worker(fleet, other)["suspended"])


def _streaming(traffic: Traffic) -> str:
    """A worker of which a stream is under way, "" where there is none."""
    under_way = (one.worker for one in reversed(traffic.sent) if one.stream and one.first_byte and not one.ended)
    return next(under_way, "")


def _has_nothing_of(fleet: Up, name: str, epoch: str) -> bool:
    """Whether no block of that start of a worker's engine is in the index."""
    worker = _worker(fleet, name)
    return bool(worker["epoch"] != epoch or worker["heldBlocks"] == 0)


async def _at_rest(fleet: Up) -> dict[str, tuple[str, int]]:
    """What is known of the workers once all is reported: the same in two looks that reports lie between."""
    looks: list[dict[str, tuple[str, int]]] = []
    async with asyncio.timeout(120):
        while len(looks) < 2 or looks[-1] != looks[-2]:
            await asyncio.sleep(2)
            await _until(lambda: all(_is_idle(worker) for worker in fleet.workers()))
            looks.append(_known(fleet))
    assert len(looks[-1]) == 2
    return looks[-1]


def _known(fleet: Up) -> dict[str, tuple[str, int]]:
    """Epoch and held blocks of each worker."""
    return {worker["name"]: (worker["epoch"], worker["heldBlocks"]) for worker in fleet.workers()}


def _is_idle(worker: dict[str, Any]) -> bool:
    return bool(worker["load"]) and not worker["load"]["running"] + worker["load"]["waiting"]


def _worker(fleet: Up, name: str) -> dict[str, Any]:
    (found,) = [worker for worker in fleet.workers() if worker["name"] == name]
    return found


def _is_credited_with_what_it_has(fleet: Up, name: str) -> bool:
    """The index has at most the blocks that an engine at rest counts itself: what it was warmed with, nothing old."""
    worker = _worker(fleet, name)
    idle = (worker["load"] or {}).get("blocksIdle")
    return bool(idle is not None and idle >= worker["heldBlocks"])


async def _agent_replaced(fleet: Up, worker: str) -> None:
    """Kill an agent and wait until another one reports in its place."""
    (killed,) = fleet.agents(worker)
    killed.kill()
    await _until(lambda: [agent for agent in fleet.agents(worker) if agent.pid != killed.pid])
    await _until(lambda: _worker(fleet, worker)["connected"] and _worker(fleet, worker)["stream"] == "live")


def _answers(fleet: Up) -> bool:
    try:
        with urllib.request.urlopen(f"{fleet.internal}/healthz", timeout=1) as answer:  # noqa: S310 - the fleet's own
            return bool(answer.status == 200)
    except OSError:
        return False


async def _until(condition: Any, seconds: float = 120.0) -> Any:
    """What the condition is once it is true of it."""
    return await asyncio.to_thread(until, condition, seconds, "in time")
