"""Random conversations by handle on real vLLM: every answer is that of the whole history, asked without handles.

Sixty conversations, five hundred nightly, over the chat templates of e2e/engine/templates.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

import aiohttp
import pytest
from hypothesis import settings

from e2e.engine.fleet import Up
from e2e.engine.talk_client import ask
from e2e.engine.talk_fleet import BY_HANDLE, Reference, outcome, talk_fleet
from e2e.engine.talks import Talk
from e2e.engine.templates import TEMPLATES

NIGHTLY: Final = 500
AT_ONCE: Final = 6


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with talk_fleet(tmp_path_factory.mktemp("continued"), replicas=1) as up:
        yield up


class Trial:
    """Conversations through the gateway, each turn asked of the worker itself too, and how turns were continued."""

    def __init__(self, fleet: Up, http: aiohttp.ClientSession) -> None:
        self._fleet, self._http = fleet, http
        self._reference = Reference(http, fleet)
        self.wrong: list[object] = []
        self.outcomes: dict[str, Counter[str]] = {template.name: Counter() for template in TEMPLATES}

    async def run(self, talk: Talk) -> None:
        said = ""
        for _ in range(talk.steps):
            bodies, headers = talk.step(said), {"x-cachefleet-session": talk.name}
            found = await asyncio.gather(*(ask(self._http, self._fleet.gateway, body, headers) for body in bodies))
            for body, one in zip(bodies, found, strict=True):
                self.outcomes[talk.template.name][await outcome(self._http, self._fleet, one)] += 1
                expected = await self._reference.differing(body, one)
                if one.error or expected:
                    self.wrong.append((talk.name, one, expected, body))
            said = found[-1].content


@pytest.mark.timeout(3600)
@pytest.mark.requirement("A1")
async def test_a9_answers_by_handle_are_those_of_the_whole_history(fleet: Up) -> None:
    """Edits, branches, retries, tool loops, two turns at once on one head, and templates that go back."""
    count = NIGHTLY if settings().max_examples >= NIGHTLY else 60
    talks = iter([Talk(number) for number in range(count)])
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        trial = Trial(fleet, http)

        async def client() -> None:
            for talk in talks:
                await trial.run(talk)

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    turns = sum(trial.outcomes.values(), Counter())
    print(f"{turns.total()} turns of {count} conversations: {dict(turns)}")
    assert trial.wrong == []
    for name, found in trial.outcomes.items():
        assert found[BY_HANDLE] > found.total() / 4, (name, found)
