"""Members that come late are set in requests like vLLM's; real vLLM is in e2e/engine."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from cachefleet_core.engine.held_requests import LateMembers
from cachefleet_worker.plugin.prompts import late_members
from cachefleet_worker.plugin.prompts.held_prompt import FEATURE, HeldPrompt, held
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.asked import process

TRANSFER = {"remote_engine_id": "one", "remote_block_ids": [[1, 2]]}


class Request:
    """Makes its parameters of its members, as vLLM's requests do."""

    def __init__(self) -> None:
        self.cache_hit_threshold: float | None = 0.0
        self.kv_transfer_params: dict[str, Any] | None = None

    def to_sampling_params(self, max_tokens: int) -> dict[str, Any]:
        return {"max_tokens": max_tokens, **vars(self)}


async def tell(_: Any) -> None:
    """Nothing: its prompt waits for nobody."""


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[type[Request]]:
    """What vLLM's modules have for its two types."""
    made = [type(name, (Request,), {}) for _, name in late_members.REQUESTS]
    for (path, name), kind in zip(late_members.REQUESTS, made, strict=True):
        module = ModuleType(path)
        setattr(module, name, kind)
        monkeypatch.setitem(sys.modules, path, module)
    return made


def installed(fields: str = "patched") -> bool:
    made = process(PluginSettings())
    made.capabilities.add("fields", fields)
    return late_members.install(made)


MEMBERS = [
    (LateMembers(), {"cache_hit_threshold": 0.0, "kv_transfer_params": None}),
    (LateMembers(0.5), {"cache_hit_threshold": 0.5, "kv_transfer_params": None}),
    (LateMembers(None), {"cache_hit_threshold": None, "kv_transfer_params": None}),
    (LateMembers(kv_transfer_params=TRANSFER), {"cache_hit_threshold": 0.0, "kv_transfer_params": TRANSFER}),
    (
        LateMembers(kv_transfer_params=TRANSFER | {"prompt_token_ids": [1]}),  # it is rendered already
        {"cache_hit_threshold": 0.0, "kv_transfer_params": TRANSFER},
    ),
]


@pytest.mark.parametrize(("members", "expected"), MEMBERS)
def test_parameters_have_the_members_that_came_late(
    requests: list[type[Request]], members: LateMembers, expected: dict[str, Any]
) -> None:
    assert installed()
    prompt = HeldPrompt(tell)
    prompt.members = members
    token = held.set(prompt)
    try:
        for kind in requests:
            assert kind().to_sampling_params(7) == {"max_tokens": 7, **expected}
    finally:
        held.reset(token)


def test_requests_that_nobody_held_are_as_they_came(requests: list[type[Request]]) -> None:
    assert installed()
    assert requests[0]().to_sampling_params(7) == {"max_tokens": 7, **vars(Request())}


def test_where_thresholds_are_not_read_members_do_not_come_late(requests: list[type[Request]]) -> None:
    assert not installed(fields="off")
    assert [kind.to_sampling_params for kind in requests] == [Request.to_sampling_params] * 2


def test_a_fault_leaves_the_request_as_it_came(requests: list[type[Request]], monkeypatch: pytest.MonkeyPatch) -> None:
    made = process(PluginSettings())
    made.capabilities.add("fields", "patched")
    assert late_members.install(made)
    monkeypatch.setattr(late_members, "set_members", lambda *_: 1 / 0)
    token = held.set(HeldPrompt(tell))
    try:
        assert requests[0]().to_sampling_params(7) == {"max_tokens": 7, **vars(Request())}
    finally:
        held.reset(token)
    assert (made.capabilities.mode(FEATURE), made.faults.counts[FEATURE]) == ("off", 1)
