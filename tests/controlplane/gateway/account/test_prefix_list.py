"""The hottest prefixes, as people are shown them, by a whole gateway before fake engines."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_controlplane.gateway.account.prefix_list import PrefixList
from cachefleet_controlplane.gateway.account.warm_keys import RETRY_SECONDS, WarmKeys
from cachefleet_controlplane.hot_prefixes.hot_prefix import HotBounds
from cachefleet_controlplane.hot_prefixes.tracker import HotPrefixes
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.gateway.harness import BLOCK_SIZE, MODEL, POOL, Front, engine, front
from tests.controlplane.waiting import until

SYSTEM = "You are a support agent of a shop that sells many things to many people. " * 3
OTHER = "You write poems about the sea and about the ships that sail on it, all day long. " * 3
WARM = f'{{warmPrefixes: [{{name: support, tenants: [default], messages: [{{role: system, content: "{SYSTEM}"}}]}}]}}'


async def ask(gate: Front, system: str, text: str) -> None:
    ended = len(gate.records)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 2}
    status, _, _ = await gate.post("/v1/chat/completions", body)
    assert status == 200
    await until(lambda: len(gate.records) > ended)


def listing(gate: Front, hot: HotPrefixes, **changes: Any) -> PrefixList:
    assert gate.lookup is not None
    own: dict[str, Any] = {"name_key": b"n" * 32} | changes
    return PrefixList(hot, gate.fleet, WarmKeys(gate.fleet, gate.lookup, lambda _: 1), **own)


async def test_who_holds_a_prefix_and_what_it_saved() -> None:
    hot = HotPrefixes(HotBounds())
    async with engine() as one, engine() as two, front([one, two], hot=hot, prefix_cache=WARM) as gate:
        gate.report(0)
        gate.report(1)
        shown = listing(gate, hot)
        assert await shown(None, 9) == []
        for number in range(3):
            await ask(gate, SYSTEM, f"{number}")
            gate.report(0)
            gate.report(1)
        await ask(gate, OTHER, "a")
        await ask(gate, OTHER, "b")
        first, second = await shown(None, 9)
        assert (first.requests, second.requests) == (3, 2)
        assert (first.warm, second.warm) == (True, False)
        assert first.tokens >= len(SYSTEM) - BLOCK_SIZE
        assert first.saved_tokens == 2 * first.tokens, "of the second, which made it known, and the third"
        assert (first.model, first.tenant) == (f"default/{MODEL}", "default")
        assert first.holders == (f"{POOL}/{gate.records[0].worker}#0",)
        assert first.holder_count == 1
        assert [one.name for one in await shown(POOL, 1)] == [first.name]
        assert await shown("default/nobody", 9) == []
        told = f"{first!r}"
        assert SYSTEM[:12] not in told
        assert len(first.name) == 16
        [again, _] = await listing(gate, hot, name_key=b"o" * 32)(None, 9)
        assert again.name != first.name, "who does not know the key cannot tell a prefix by its name"
        await shown.close()


async def test_a_prefix_nobody_holds_any_more() -> None:
    hot = HotPrefixes(HotBounds())
    async with engine() as one, front([one], hot=hot) as gate:
        gate.report(0)
        for number in range(2):
            await ask(gate, SYSTEM, f"{number}")
        assert one.reset_prefix_cache()
        gate.report(0)
        [prefix] = await listing(gate, hot)(None, 9)
        assert (prefix.holders, prefix.holder_count, prefix.warm) == ((), 0, False)


async def test_what_cannot_be_rendered_is_tried_again_and_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = [0.0], 0
    hot = HotPrefixes(HotBounds())
    async with engine() as one, front([one], hot=hot, prefix_cache=WARM) as gate:
        assert gate.lookup is not None
        warm = WarmKeys(gate.fleet, gate.lookup, lambda _: 1, clock=lambda: now[0])
        shown = PrefixList(hot, gate.fleet, warm, name_key=b"n" * 32)
        gate.report(0)
        for number in range(2):
            await ask(gate, SYSTEM, f"{number}")

        async def fail(*_: object) -> None:
            nonlocal tried
            tried += 1
            raise ApiError(503, "no worker")

        with monkeypatch.context() as patched:
            patched.setattr(gate.lookup, "complete", fail)
            for _ in range(3):
                assert [prefix.warm for prefix in await shown(None, 9)] == [False]
        assert tried == 1
        assert [prefix.warm for prefix in await shown(None, 9)] == [False]
        now[0] = RETRY_SECONDS
        assert [prefix.warm for prefix in await shown(None, 9)] == [True]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_warm_prefix_is_one_under_the_salt_of_its_tenant(version: int) -> None:
    hot = HotPrefixes(HotBounds())
    async with engine() as one, front([one], hot=hot, prefix_cache=WARM) as gate:
        assert gate.lookup is not None
        gate.report(0)
        for number in range(2):
            await ask(gate, SYSTEM, f"{number}")
        warm = WarmKeys(gate.fleet, gate.lookup, lambda _: version)
        [prefix] = await PrefixList(hot, gate.fleet, warm, name_key=b"n" * 32)(None, 9)
        assert prefix.warm is (version == 1)
