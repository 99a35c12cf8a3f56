"""Flushing the caches of fake engines, which evict block by block as the plugin does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from cachefleet_controlplane.flushing import flush_plan
from cachefleet_controlplane.flushing.flush_scope import Scope
from cachefleet_controlplane.flushing.flusher import Flusher, WorkerFlush
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.harness import FLEET_KEY, Front, Known, engine, front
from tests.controlplane.gateway.tenancies import ACME, UMBRELLA, ask, directory
from tests.fakes.engine import FakeEngine

ABLE = {"capabilities": (Capability(feature="flush", mode="blocks"),)}
TEXT = "one two three four five six seven eight nine ten " * 6


@dataclass
class Flushed:
    """A gateway before engines with the plugin, and what flushes them."""

    gate: Front
    flush: Flusher
    engines: Sequence[FakeEngine]

    async def dry(self, **scope: Any) -> list[WorkerFlush]:
        return await self.flush(Scope(**scope), dry_run=True)

    async def __call__(self, **scope: Any) -> list[WorkerFlush]:
        return await self.flush(Scope(**scope), dry_run=False)

    def held(self) -> list[int]:
        return [len(one.held()) for one in self.engines]

    def metric(self, name: str) -> float:
        return self.gate.metrics.registry.get_sample_value(f"cachefleet_{name}_total", {"pool": "default/demo"}) or 0.0


@asynccontextmanager
async def flushing(count: int = 1, *, seconds: float = 30, **options: Any) -> AsyncIterator[Flushed]:
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(plugin=True)) for _ in range(count)]
        known = Known(directory(ACME, UMBRELLA))
        gate = await stack.enter_async_context(front(engines, known=known, **options))
        parts = gate.gateway._context
        flusher = Flusher(parts, gate.gateway._admission, salt_key=FLEET_KEY.salt_key, seconds=seconds)
        for number in range(count):
            gate.report(number, said=ABLE)
        yield Flushed(gate, flusher, engines)


async def test_a_dry_run_foretells_what_goes_and_changes_nothing() -> None:
    async with flushing() as made:
        await ask(made.gate, ACME)
        held = made.held()
        (told,) = await made.dry(everything=True)
        assert (told.worker, told.pool, told.blocks, told.error) == ("demo-0", "default/demo", held[0], "")
        assert (made.held(), made.metric("flushed_blocks")) == (held, 0)
        assert await made(everything=True) == [told]
        assert (made.held(), made.metric("flushed_blocks")) == ([0], held[0])
        assert (await made(everything=True))[0].blocks == 0


async def test_a_tenants_blocks_go_under_every_salt_that_it_had() -> None:
    async with flushing() as made:
        for tenant in (ACME, UMBRELLA):
            await ask(made.gate, tenant, messages=[{"role": "user", "content": TEXT}])
        (held,) = made.held()
        (told,) = await made(tenant="umbrella")
        assert told.blocks == held // 2
        assert (await made(tenant="umbrella"))[0].blocks == 0
        assert (await made(tenant="acme"))[0].blocks == held - held // 2
        digests = made.flush._digests("umbrella")
        assert len(digests) == UMBRELLA.salt_version == 2


async def test_what_begins_with_a_prompt_goes_for_all_tenants_or_one() -> None:
    async with flushing() as made:
        for tenant in (ACME, UMBRELLA):
            await ask(made.gate, tenant, messages=[{"role": "user", "content": TEXT}])
            await ask(made.gate, tenant, messages=[{"role": "user", "content": f"else {TEXT}"}])
        (held,) = made.held()
        prompt = {"messages": [{"role": "user", "content": TEXT}]}
        (one,) = await made.dry(model="fake", prompt=prompt, tenant="acme")
        (both,) = await made.dry(model="fake", prompt=prompt)
        assert both.blocks == 2 * one.blocks > 0
        assert await made(model="fake", prompt=prompt) == [both]
        assert made.held() == [held - both.blocks]


async def test_the_fault_in_a_prompt_is_told_as_the_callers() -> None:
    async with flushing() as made:
        with pytest.raises(ApiError) as caught:
            await made(model="fake", prompt={"prompt": "x"})
        assert (caught.value.status, caught.value.param) == (422, "scope.prompt")
        assert "block of 16" in caught.value.message


async def test_an_unknown_tenant_is_named_and_nobody_is_asked() -> None:
    async with flushing() as made:
        with pytest.raises(ApiError) as caught:
            await made(tenant="nobody")
        assert (caught.value.status, caught.value.param) == (404, "scope.tenant")
        assert not any("flush" in seen.path for seen in made.engines[0].requests)


async def test_every_worker_answers_for_itself() -> None:
    async with flushing(5) as made:
        made.gate.report(1, said={"capabilities": ()})
        await made.engines[2].crash()
        made.engines[3].fail_next(500)
        told = {one.worker: one for one in await made(everything=True)}
        assert [told[f"demo-{number}"].error for number in (0, 4)] == ["", ""]
        assert told["demo-1"].error == flush_plan.NO_PLUGIN
        assert told["demo-2"].error == "the engine cannot be reached"
        assert told["demo-3"].error
        assert made.metric("flush_failures") == 3


async def test_one_that_hangs_holds_the_others_up_no_longer_than_the_bound() -> None:
    async with flushing(2, seconds=0.3) as made:
        made.engines[0].hang()
        async with asyncio.timeout(10):
            hung, fine = await made(everything=True)
        assert "no answer in time; it may flush all the same" in hung.error
        assert fine.error == ""
        made.engines[0].resume()


async def test_an_engine_without_the_plugin_whose_agent_has_not_noticed_yet() -> None:
    async with AsyncExitStack() as stack:
        stock = await stack.enter_async_context(engine())
        gate = await stack.enter_async_context(front([stock]))
        gate.report(0, said=ABLE)
        flusher = Flusher(gate.gateway._context, gate.gateway._admission, salt_key=FLEET_KEY.salt_key)
        (told,) = await flusher(Scope(everything=True), dry_run=False)
        assert told.error == flush_plan.NO_PLUGIN
