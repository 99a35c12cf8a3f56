"""A clock that jumps by an hour, forwards and back: who was let in is, and who was not is not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.attacks.target import Target

HOUR = 3600.0
_now = time.time
Jump = Callable[[float], None]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Set the wall clock so many seconds off; the monotonic one goes on."""

    def off(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: _now() + seconds)

    return off


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_jump_changes_nothing_for_keys_without_an_end(target: Target, jump: Jump, seconds: float) -> None:
    key = await target.tenant("acme", tokensPerMinute=1_000_000, requestsAtOnce=2)
    assert (await target.chat(key=key))[0] == 200
    jump(seconds)
    for _ in range(3):
        assert (await target.chat(key=key))[0] == 200
        assert (await target.chat())[0] == 401
    jump(0)
    assert (await target.chat(key=key))[0] == 200
    assert (await target.admin("GET", "/decisions"))[0] == 200


async def test_limits_go_by_a_clock_that_does_not_jump(target: Target, jump: Jump) -> None:
    key = await target.tenant("acme", tokensPerMinute=5)
    assert (await target.chat("a prompt of some tokens", key=key))[0] == 200
    for seconds in (0, HOUR, -HOUR):
        jump(seconds)
        assert (await target.chat(key=key))[0] == 429
