"""A tenant's limits at a real gateway, and the account of its requests in flight."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.admit import tenant_admission
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.tenant_records import TenantRecord, UsageRecord
from cachefleet_controlplane.tenants.budgets import Budgets, Period, period_end
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.tenants.leases import OtherReplicas
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.fleet_status.tenant_limits import Limit
from cachefleet_core.tenancy import TenantId
from tests.controlplane.gateway.harness import FLEET_KEY, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, ask, directory, salts
from tests.controlplane.waiting import until


class AnyLoop(Known):
    """Needs no event loop."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory


async def test_over_its_requests_at_once_a_tenant_is_429_and_others_are_served() -> None:
    limited = TenantRecord(name=ACME.name, requests_at_once=1)
    slow = {"inter_token_seconds": 0.05, "natural_tokens": 200}
    async with engine(**slow) as worker, front([worker], known=Known(directory(limited, UMBRELLA))) as gate:
        first = asyncio.create_task(ask(gate, ACME, max_tokens=200, stream=True))
        await until(lambda: bool(salts(worker)))
        status, told, body = await ask(gate, ACME)
        assert (status, told["retry-after"], body["error"]["code"]) == (429, "1", "requests_at_once")
        assert body["error"]["type"] == "rate_limit_error"
        assert (await ask(gate, UMBRELLA, max_tokens=1))[0] == 200
        async with gate.http.get(gate.url + "/v1/models", headers={"x-api-key": KEYS[ACME.name]}) as answer:
            assert answer.status == 200, "which costs nothing"
        first.cancel()
        await asyncio.wait({first})
        await until(lambda: gate.gateway.under_way == 0)
        assert (await ask(gate, ACME, max_tokens=1))[0] == 200


async def test_over_its_tokens_a_minute_a_tenant_is_429_until_it_is_under_them() -> None:
    limited = TenantRecord(name=ACME.name, tokens_per_minute=5)
    async with engine() as worker, front([worker], known=Known(directory(limited, UMBRELLA))) as gate:
        assert (await ask(gate, ACME))[0] == 200
        status, told, body = await ask(gate, ACME)
        assert (status, body["error"]["code"]) == (429, "tokens_per_minute")
        used = told["x-ratelimit-reset-tokens"]
        assert int(told["retry-after"]) > 60, f"what was used beyond five tokens is paid back first: {used}"
        assert (await ask(gate, UMBRELLA))[0] == 200


async def test_over_its_requests_a_minute_a_tenant_is_429_until_it_is_under_them() -> None:
    limited = TenantRecord(name=ACME.name, requests_per_minute=2)
    async with engine() as worker, front([worker], known=Known(directory(limited, UMBRELLA))) as gate:
        assert [(await ask(gate, ACME, max_tokens=1))[0] for _ in range(2)] == [200, 200]
        status, told, body = await ask(gate, ACME)
        assert (status, body["error"]["code"]) == (429, "requests_per_minute")
        assert 15 <= int(told["retry-after"]) <= 30
        assert "may make 2 requests a minute" in body["error"]["message"]
        assert (await ask(gate, UMBRELLA))[0] == 200
        assert len(salts(worker)) == 2, "what is refused goes to no worker"


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("tokens_per_day", 5, "may use 5 tokens a day"),
        ("spend_per_month", 5 * 10**6, "may spend 0.000005 a month"),
        ("requests_per_day", 1, "may make 1 requests a day"),
        ("uncached_tokens_per_month", 2, "may use 2 uncached tokens a month"),
        ("output_tokens_per_day", 1, "may use 1 output tokens a day"),
    ],
)
async def test_over_a_limit_by_the_calendar_a_tenant_is_429_until_the_period_ends(
    limit: str, most: int, said: str
) -> None:
    limited = TenantRecord(name=ACME.name, **{limit: most})  # type: ignore[arg-type]
    budgets, prices = Budgets(), "{input: 1.0, output: 1.0}"
    budgets.watch([limited])
    known = Known(directory(limited, UMBRELLA))
    async with engine() as worker, front([worker], known=known, budgets=budgets, pricing=prices) as gate:
        assert (await ask(gate, ACME))[0] == 200
        await until(lambda: gate.gateway.under_way == 0)
        status, told, body = await ask(gate, ACME)
        assert (status, body["error"]["code"]) == (429, limit)
        assert said in body["error"]["message"]
        now, period = time.time(), Period(limit.rpartition("_")[2])
        assert abs(int(told["retry-after"]) - (period_end(period, now) - now)) < 5
        assert (await ask(gate, UMBRELLA))[0] == 200


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [
        ("uncached_tokens_per_minute", 2, "may use 2 uncached tokens a minute."),
        ("output_tokens_per_minute", 1, "may use 1 output tokens a minute."),
        ("spend_per_minute", 5 * 10**6, "may spend 0.000005 a minute."),
    ],
)
async def test_each_limit_of_a_minute_is_held_to_by_what_it_counts(limit: str, most: int, said: str) -> None:
    known = Known(directory(TenantRecord(name=ACME.name, **{limit: most}), UMBRELLA))  # type: ignore[arg-type]
    async with engine() as worker, front([worker], known=known, pricing="{input: 1.0, output: 1.0}") as gate:
        assert (await ask(gate, ACME))[0] == 200
        await until(lambda: gate.gateway.under_way == 0)
        status, told, body = await ask(gate, ACME)
        assert (status, body["error"]["code"], said in body["error"]["message"]) == (429, limit, True)
        assert int(told["retry-after"]) >= 1
        assert (await ask(gate, UMBRELLA))[0] == 200


async def test_a_limit_of_cached_tokens_counts_nothing_else() -> None:
    text, limited = "tell me about the weather " * 40, TenantRecord(name=ACME.name, cached_tokens_per_minute=1)
    async with engine() as worker, front([worker], known=Known(directory(limited))) as gate:
        known = {"authorization": f"Bearer {KEYS[ACME.name]}"}
        assert [(await gate.post(CHAT, chat(text, max_tokens=1), **known))[0] for _ in range(2)] == [200, 200]
        await until(lambda: gate.gateway.under_way == 0)
        status, _, body = await gate.post(CHAT, chat(text, max_tokens=1), **known)
        assert (status, json.loads(body)["error"]["code"]) == (429, "cached_tokens_per_minute")


@pytest.mark.parametrize(("used", "soon"), [(0, True), (3, False)], ids=["others have some left", "all is used"])
def test_a_replica_whose_part_of_a_day_is_used_up_says_when_to_try_again(used: int, *, soon: bool) -> None:
    limited, others = TenantRecord(name=ACME.name, requests_per_day=3), OtherReplicas(shared=True)
    others.free, budgets = {(ACME.name, Limit.REQUESTS_PER_DAY): 0.0}, Budgets(others=others)
    budgets.watch([limited])
    hour = int(time.time()) // 3600 * 3600
    budgets.add(UsageRecord(hour=hour, tenant=ACME.name, model="m", requests=used))
    admission = AdmissionMiddleware(
        AnyLoop(directory(limited)),
        hash_key=FLEET_KEY.api_key_hash_key,
        metrics=Metrics(),
        budgets=budgets,
        others=others,
        wall_clock=lambda: hour + 1.0,
    )
    with pytest.raises(ApiError) as refused:
        admission.enter([(b"x-api-key", KEYS[ACME.name].encode())], limited=True)
    assert (refused.value.code, dict(refused.value.headers)[b"retry-after"] == b"1") == (Limit.REQUESTS_PER_DAY, soon)
    assert others.short.is_set() == soon, "others are asked for a lease only where that may help"


async def test_requests_that_no_worker_was_sent_count_against_no_day() -> None:
    limited, budgets = TenantRecord(name=ACME.name, requests_per_day=2), Budgets()
    budgets.watch([limited])
    async with engine() as worker, front([worker], known=Known(directory(limited)), budgets=budgets) as gate:
        assert [(await ask(gate, ACME, model="nobody's"))[0] for _ in range(3)] == [404] * 3
        assert [(await ask(gate, ACME, max_tokens=1))[0] for _ in range(3)] == [200, 200, 429]


async def test_requests_under_way_count_against_a_day_at_once() -> None:
    limited, budgets = TenantRecord(name=ACME.name, requests_per_day=2), Budgets()
    budgets.watch([limited])
    slow, known = {"inter_token_seconds": 0.05, "natural_tokens": 200}, Known(directory(limited))
    async with engine(**slow) as worker, front([worker], known=known, budgets=budgets) as gate:
        asking = [asyncio.create_task(ask(gate, ACME, max_tokens=200, stream=True)) for _ in range(2)]
        await until(lambda: gate.gateway.under_way == 2)
        status, told, _ = await ask(gate, ACME)
        assert (status, told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == (429, "2", "0")
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)


async def test_cached_tokens_do_not_count_against_the_limit() -> None:
    text = "tell me about the weather " * 40
    async with engine() as worker, front([worker], known=Known(directory(ACME))) as gate:
        known = {"authorization": f"Bearer {KEYS[ACME.name]}"}
        _, _, body = await gate.post(CHAT, chat(text, max_tokens=1), **known)
        prompt = json.loads(body)["usage"]["prompt_tokens"]
    limited = TenantRecord(name=ACME.name, tokens_per_minute=prompt + 2 * 20)
    async with engine() as worker, front([worker], known=Known(directory(limited))) as gate:
        statuses = [(await gate.post(CHAT, chat(text, max_tokens=1), **known))[0] for _ in range(3)]
        assert statuses == [200, 200, 200]


async def test_leaving_before_the_end_does_not_evade_the_limit() -> None:
    limited = TenantRecord(name=ACME.name, tokens_per_minute=5)
    slow = {"inter_token_seconds": 0.05, "natural_tokens": 200}
    async with engine(**slow) as worker, front([worker], known=Known(directory(limited))) as gate:
        leaving = asyncio.create_task(ask(gate, ACME, max_tokens=200, stream=True))
        await until(lambda: bool(salts(worker)))
        leaving.cancel()
        await asyncio.wait({leaving})
        await until(lambda: gate.gateway.under_way == 0)
        assert (await ask(gate, ACME))[0] == 429


@given(st.lists(st.tuples(st.sampled_from([ACME, UMBRELLA]), st.integers(-3, 3)), max_size=40))
def test_nobody_is_over_its_requests_at_once_whoever_comes_and_goes(moves: list[tuple[TenantRecord, int]]) -> None:
    """A positive number lets so many try to come in, a negative one has so many leave, oldest first."""
    limits = {ACME.name: 2, UMBRELLA.name: 3}
    tenants = [replace(tenant, requests_at_once=limits[tenant.name]) for tenant in (ACME, UMBRELLA)]
    admission = AdmissionMiddleware(
        AnyLoop(directory(*tenants)), hash_key=FLEET_KEY.api_key_hash_key, metrics=Metrics()
    )
    inside: dict[TenantId, list[ExitStack]] = {ACME.name: [], UMBRELLA.name: []}
    for tenant, number in moves:
        here, headers = inside[tenant.name], [(b"x-api-key", KEYS[tenant.name].encode())]
        for _ in range(number):
            refused = len(here) >= limits[tenant.name]
            with pytest.raises(ApiError) if refused else nullcontext(), ExitStack() as admitted:
                admitted.enter_context(admission.enter(headers, limited=True))
                here.append(admitted.pop_all())
        for _ in range(min(-number, len(here))):
            here.pop(0).close()
        assert {name: load.requests for name, load in admission._loads.items()} == {
            n: len(v) for n, v in inside.items() if v
        }
    for admitted in [admitted for here in inside.values() for admitted in here]:
        admitted.close()
    assert admission._loads == {}


async def test_choices_and_prompts_count_as_requests_at_once() -> None:
    limited = TenantRecord(name=ACME.name, requests_at_once=4)
    slow = {"inter_token_seconds": 0.05, "natural_tokens": 200}
    async with engine(**slow) as worker, front([worker], known=Known(directory(limited))) as gate:
        status, _, told = await ask(gate, ACME, n=5)
        assert (status, told["error"]["code"], told["error"]["param"]) == (400, "requests_at_once", "n")
        assert not salts(worker)
        three = asyncio.create_task(ask(gate, ACME, n=3, max_tokens=200, stream=True))
        await until(lambda: bool(salts(worker)))
        status, headers, _ = await ask(gate, ACME, n=2)
        assert (status, headers["retry-after"]) == (429, "1")
        one = asyncio.create_task(ask(gate, ACME, max_tokens=200, stream=True))
        await until(lambda: gate.gateway.under_way == 2)
        assert (await ask(gate, ACME))[0] == 429
        for each in (three, one):
            each.cancel()
        await asyncio.wait({three, one})
        await until(lambda: gate.gateway.under_way == 0)
        assert (await ask(gate, ACME, n=4))[0] == 200


@pytest.mark.parametrize(("most", "kept"), [(9, {}), (None, {ACME.name: 0})])
async def test_of_a_limited_tenant_that_does_nothing_nothing_is_kept(most: int | None, kept: dict[str, int]) -> None:
    tenant = replace(ACME, requests_at_once=most)
    async with engine() as worker, front([worker], known=Known(directory(tenant))) as gate:
        async with gate.http.get(gate.url + "/v1/models", headers={"x-api-key": KEYS[ACME.name]}):
            pass
        assert (await ask(gate, ACME, model="nobody's"))[0] == 404
        await until(lambda: gate.gateway.under_way == 0)
        assert {name: load.requests for name, load in gate.gateway._admission._loads.items()} == kept


async def test_no_more_tenants_without_limits_are_kept_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_admission, "MAX_UNLIMITED", 1)
    admission = AdmissionMiddleware(
        AnyLoop(directory(ACME, UMBRELLA)), hash_key=FLEET_KEY.api_key_hash_key, metrics=Metrics()
    )
    for tenant in (ACME, UMBRELLA, ACME):
        with admission.enter([(b"x-api-key", KEYS[tenant.name].encode())], limited=True):
            pass
    assert set(admission._loads) == {ACME.name}
