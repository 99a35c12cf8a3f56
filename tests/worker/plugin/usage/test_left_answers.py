"""Named requests are counted when they end, whatever ended them, and told by their name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_core.engine.left_answers import FEATURE, MAX_NAME, NAME_HEADER, LeftAnswer
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.usage import left_answers
from cachefleet_worker.plugin.usage.left_answers import CountsNamed, NamedRequests, counts_of, patch


class Processor:
    """As vLLM's output processor takes requests."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: str | None = None) -> None:
        self.request_states[request.request_id] = request


def state(name: str, made: int, *, prompt: int = 100, cached: int = 0, parent: str = "") -> Any:
    return SimpleNamespace(
        request_id=name,
        parent_req=SimpleNamespace(request_id=parent) if parent else None,
        prompt_len=prompt,
        num_cached_tokens=cached,
        detokenizer=SimpleNamespace(num_output_tokens=lambda: made),
    )


@pytest.fixture
def faults() -> Faults:
    return Faults(Capabilities())


async def served(faults: Faults, known: NamedRequests, *states: Any, name: str = "r", leaves: bool = False) -> Any:
    """What one request adds, as vLLM serves it."""
    processor_type = type("Hooked", (Processor,), {})
    patch(processor_type, faults)
    processor = processor_type()
    working = asyncio.Event()

    async def app(*_: Any) -> None:
        async def handled() -> None:  # in a task of its own, as vLLM's
            for each in states:
                processor.add_request(each)
            working.set()
            if leaves:
                await asyncio.Event().wait()

        await asyncio.create_task(handled())

    headers = [(NAME_HEADER.encode(), name.encode())] if name else []
    scope = {"type": "http", "headers": headers}
    serving = asyncio.create_task(CountsNamed(app, lambda: known, faults)(scope, None, None))  # type: ignore[arg-type]
    await working.wait()
    if leaves:
        serving.cancel()
    await asyncio.wait({serving})
    return processor


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_named_request_is_counted_when_it_ends(faults: Faults, *, leaves: bool) -> None:
    known = NamedRequests()
    await served(faults, known, state("a", 5, cached=64), leaves=leaves)
    assert await known.counts(b"r") == LeftAnswer(100, 5, 64)
    assert await known.counts(b"other") is None
    assert known._requests[b"r"].states == [], "what the processor keeps is not kept here"


async def test_others_are_not(faults: Faults) -> None:
    known = NamedRequests()
    await served(faults, known, state("a", 5), name="")
    await served(faults, known, state("a", 5), name="x" * (MAX_NAME + 1))
    assert not known._requests


async def test_after_a_fault_a_request_is_served_all_the_same(faults: Faults) -> None:
    known = NamedRequests()
    processor = await served(faults, known, SimpleNamespace(request_id="a"))
    assert processor.request_states
    assert not faults.on(FEATURE)
    faults = Faults(Capabilities())
    faults.off(FEATURE, "")
    await served(faults, known, state("a", 5))
    assert await known.counts(b"r") == LeftAnswer(0, 0)


async def test_a_request_that_goes_on_is_waited_for_and_then_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_answers, "END_SECONDS", 0.01)
    known = NamedRequests()
    counted = known.begin(b"r")
    assert await known.counts(b"r") is None
    counted.states.append(state("a", 5))
    counted.end()
    assert await known.counts(b"r") == LeftAnswer(100, 5, 0)


def test_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_answers, "KEPT", 2)
    known = NamedRequests()
    for name in (b"a", b"b", b"a", b"c"):
        known.begin(name)
    assert list(known._requests) == [b"a", b"c"]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ([], LeftAnswer(0, 0)),
        ([state("a", 0)], LeftAnswer(100, 0)),
        ([state("a", 0, parent="p"), state("b", 3, parent="p", cached=96)], LeftAnswer(100, 3, 96)),
        ([state("a", 2, cached=96), state("b", 3, prompt=50, cached=32)], LeftAnswer(150, 5, 128)),
        ([SimpleNamespace(**vars(state("a", 1)) | {"detokenizer": None})], LeftAnswer(100, 0)),
    ],
)
def test_a_prompt_counts_once_and_all_choices_do(states: list[Any], told: LeftAnswer) -> None:
    assert counts_of(states) == told
