"""Batches through the official client, over the protocol-true fake engines: what comes of every line, once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import openai
import pytest

from cachefleet_controlplane.gateway.batches.batch_object import BatchBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.tenants.budgets import Budgets
from cachefleet_controlplane.tenants.directory import Directory
from tests.controlplane.gateway.batches.running import QUICK, Batches, Gate, line
from tests.controlplane.gateway.harness import Known, engine
from tests.controlplane.gateway.tenancies import ACME, CHAT, UMBRELLA, directory, record
from tests.controlplane.waiting import until, value

ONE_AT_A_TIME = BatchBounds(requests=1, poll_seconds=0.02, lease_seconds=30.0)


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    with closing(Database(f"sqlite:///{tmp_path / 'kept.db'}", timeout_seconds=10)) as database:
        yield Batches(database)


async def every_line(gate: Gate, batch: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is told of each line of a batch that is over; each is told once."""
    output, errors = await gate.told(batch.output_file_id), await gate.told(batch.error_file_id)
    named = Counter(one["custom_id"] for one in (*output, *errors))
    assert set(named.values()) <= {1}
    assert len({one["id"] for one in (*output, *errors)}) == len(named) == batch.request_counts.total
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(output), len(errors))
    return output, errors


async def test_a_batch_on_each_database(database: Database) -> None:
    batches = Batches(database)
    async with engine() as worker, batches.served([worker]) as gate, gate.running():
        lines = [line("a"), line("b", max_tokens=2), line("wrong", n=99), b"", line("c")]
        begun = await gate.begun(lines, metadata={"for": "tests"})
        assert (begun.status, begun.metadata, begun.completion_window) == ("validating", {"for": "tests"}, "24h")
        batch = await gate.ended(begun)
        assert batch.status == "completed", batch
        output, errors = await every_line(gate, batch)
        assert [one["custom_id"] for one in output] == ["a", "b", "c"]
        assert {one["response"]["status_code"] for one in output} == {200}
        assert output[1]["response"]["body"]["usage"]["completion_tokens"] == 2
        assert all(one["response"]["request_id"] and one["error"] is None for one in output)
        assert (errors[0]["custom_id"], errors[0]["response"]["status_code"]) == ("wrong", 400)
        assert "from 1 to 8" in errors[0]["response"]["body"]["error"]["message"]
        assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        assert batches.keeping.rows("batch_lines") == []
        assert {one.tenant for one in gate.front.records} == {ACME.name}
        await is_its_tenants_alone(gate, batch)
        assert [one.id async for one in gate.acme.batches.list(limit=1)] == [batch.id]


async def is_its_tenants_alone(gate: Gate, batch: Any) -> None:
    for asked in (gate.umbrella.batches.retrieve, gate.umbrella.batches.cancel):
        with pytest.raises(openai.NotFoundError, match=batch.id):
            await asked(batch.id)
    assert (await gate.umbrella.batches.list()).data == []
    with pytest.raises(openai.NotFoundError):
        await gate.umbrella.files.content(batch.output_file_id)
    with pytest.raises(openai.NotFoundError):
        await gate.umbrella.batches.create(
            input_file_id=batch.input_file_id, endpoint=batch.endpoint, completion_window="24h"
        )


async def test_lines_that_begin_alike_run_together_and_prompts_are_stored_encrypted(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'kept.db'}", timeout_seconds=10)) as database:
        batches = Batches(database, ONE_AT_A_TIME)
        begins = ["first long beginning " * 30, "second long beginning " * 30]
        lines = [line(str(number), begins[number % 2] + str(number)) for number in range(6)]
        async with engine() as worker, batches.served([worker]) as gate, gate.running():
            await every_line(gate, await gate.ended(await gate.begun(lines)))
        asked = [json.loads(seen.body)["messages"][0]["content"][:5] for seen in worker.requests if seen.path == CHAT]
        assert sum(one != other for one, other in pairwise(asked)) == 1
    assert b"long beginning" not in (tmp_path / "kept.db").read_bytes()


async def test_an_input_file_with_errors(batches: Batches) -> None:
    async with batches.served([]) as gate, gate.running():
        batch = await gate.ended(await gate.begun([line("a"), line("a"), b"nope"]))
        assert batch.status == "failed"
        told = [(one.code, one.line, one.param) for one in batch.errors.data]
        assert told == [("duplicate_custom_id", 2, "custom_id"), ("invalid_json_line", 3, None)]
        assert (batch.output_file_id, batch.error_file_id, batch.request_counts.total) == (None, None, 0)


async def test_what_is_refused(batches: Batches) -> None:
    async with batches.served([]) as gate:
        file = await gate.acme.files.create(file=("f", line("a")), purpose="batch")
        asked: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        wrong: list[dict[str, Any]] = [
            {"endpoint": "/v1/messages"},
            {"completion_window": "0h"},
            {"completion_window": "169h"},
            {"metadata": {str(number): "" for number in range(17)}},
            {"metadata": {"a": "b" * 513}},
            {"metadata": {"a": 1}},
            {"input_file_id": 3},
            {"input_file_id": ""},
        ]
        for changes in wrong:
            with pytest.raises(openai.BadRequestError, match=next(iter(changes))) as refused:
                await gate.acme.batches.create(**(asked | changes))
            assert refused.value.param == next(iter(changes))
        with pytest.raises(openai.NotFoundError, match="file-nope"):
            await gate.acme.batches.create(**(asked | {"input_file_id": "file-nope"}))
        await gate.acme.batches.create(**asked)
        with pytest.raises(openai.ConflictError, match="cancel that first"):
            await gate.acme.files.delete(file.id)
        for wrong_page in ({"limit": 101}, {"after": "batch_nope"}):
            with pytest.raises(openai.BadRequestError, match=next(iter(wrong_page))):
                await gate.acme.batches.list(**wrong_page)


async def test_a_cancelled_batch_tells_of_every_line(batches: Batches) -> None:
    async with engine() as worker, batches.served([worker]) as gate, gate.running():
        batches.may_begin = 1
        begun = await gate.begun(line(str(number)) for number in range(4))
        await gate.answered(1)
        assert (await gate.acme.batches.cancel(begun.id)).status == "cancelling"
        batch = await gate.ended(begun)
        assert (batch.status, (await gate.acme.batches.cancel(begun.id)).status) == ("cancelled", "cancelled")
        output, errors = await every_line(gate, batch)
        assert (len(output), [one["error"]["code"] for one in errors]) == (1, ["batch_cancelled"] * 3)
        batches.may_begin = inf
        ended = await gate.ended(await gate.begun([line("a")]))
        with pytest.raises(openai.BadRequestError, match="completed"):
            await gate.acme.batches.cancel(ended.id)


async def test_at_the_end_of_its_window_the_rest_expires(batches: Batches) -> None:
    async with engine() as worker, batches.served([worker]) as gate, gate.running():
        batches.may_begin = 1
        begun = await gate.begun((line(str(number)) for number in range(3)), completion_window="2h")
        await gate.answered(1)
        batches.clock.now += 2 * 3600
        batch = await gate.ended(begun)
        output, errors = await every_line(gate, batch)
        assert (batch.status, len(output)) == ("expired", 1)
        assert [one["error"]["code"] for one in errors] == ["batch_expired"] * 2
        assert batch.expired_at == int(batches.clock.now)


async def test_lines_wait_for_spare_room(batches: Batches) -> None:
    """A worker where something waits, or is nearly full, gets none; where there is room again, they run."""
    async with engine() as worker, batches.served([worker]) as gate, gate.running():
        gate.front.report(0, waiting=1)
        begun = await gate.begun([line("a")])
        await until(lambda: any(row["status"] == "in_progress" for row in batches.keeping.rows("batches")))
        gate.front.report(0, running=1, blocks_total=100, blocks_free=QUICK.free_percent - 1)
        for _ in range(5):
            await asyncio.sleep(QUICK.poll_seconds)  # it looks meanwhile
        assert [seen for seen in worker.requests if seen.path == CHAT] == []
        gate.front.report(0, **gate.front.load(0))
        await every_line(gate, await gate.ended(begun))


async def test_a_tenants_limits_hold_and_lines_are_asked_again(batches: Batches) -> None:
    limited = type(ACME)(name=ACME.name, requests_at_once=1)
    known = Known(directory(limited, UMBRELLA, keys=[record(ACME), record(UMBRELLA)]))
    async with engine() as worker, batches.served([worker], known=known) as gate:
        begun = await gate.begun([line("a"), line("b")])
        with gate.front.gateway._admission.enter_as(ACME.name, models=None):  # it has something under way
            async with gate.running():
                await until(lambda: value(batches.metrics, "batch_lines_total", outcome="retried") > 0)
        async with gate.running():
            batch = await gate.ended(begun)
        output, _ = await every_line(gate, batch)
        assert len(output) == 2


async def test_a_batch_may_ask_what_its_key_may(batches: Batches) -> None:
    known = Known(directory(ACME, keys=[record(ACME, models=("other",)), record(UMBRELLA)]))
    async with engine() as worker, batches.served([worker], known=known) as gate, gate.running():
        batch = await gate.ended(await gate.begun([line("a")]))
        _, errors = await every_line(gate, batch)
        assert errors[0]["response"]["status_code"] == 404
        assert list(worker.requests) == []


def of_key(**budget: int) -> tuple[Known, Budgets]:
    """Acme's key with a budget of its own, of which it is kept what is used."""
    known, budgets = Known(directory(ACME, keys=[record(ACME, **budget), record(UMBRELLA)])), Budgets()
    budgets.watch(known.directory.budgets.values())
    return known, budgets


@asynccontextmanager
async def spent(batches: Batches, limit: str, window: str) -> AsyncIterator[tuple[Gate, Known, Any]]:
    """A batch of three lines whose key's budget the first one has spent."""
    (known, budgets), used = of_key(**{limit: 5}), list[UsageRecord]()
    own: dict[str, Any] = {"known": known, "budgets": budgets, "used": used.append}
    batches.may_begin = 1
    async with engine() as worker, batches.served([worker], **own) as gate:
        begun = await gate.begun(map(line, "abc"), completion_window=window)
        async with gate.running():
            await gate.answered(1)
        await until(lambda: bool(gate.front.records))
        gate.front.metrics.registry.settle()
        assert {(one.tenant, one.key) for one in used} == {(ACME.name, "acme/acme")}
        batches.may_begin = inf
        yield gate, known, begun


async def test_a_batch_ends_with_the_budget_of_its_key(batches: Batches) -> None:
    """Where that is spent until after the window: no line of the rest could be answered."""
    async with spent(batches, "tokens_per_month", "1h") as (gate, _, begun):
        batches.clock.now = begun.expires_at - 1  # the month may be nearly over
        async with gate.running():
            batch = await gate.ended(begun)
        output, errors = await every_line(gate, batch)
        assert (batch.status, [one["custom_id"] for one in output]) == ("completed", ["a"])
        assert [(one["custom_id"], one["response"], one["error"]["code"]) for one in errors] == [
            ("b", None, "insufficient_quota"),
            ("c", None, "insufficient_quota"),
        ]
        assert "budget" in errors[0]["error"]["message"]
        assert value(batches.metrics, "batch_lines_total", outcome="over_budget") == 2


async def test_a_batch_waits_for_a_budget_that_is_there_again_within_its_window(batches: Batches) -> None:
    async with spent(batches, "tokens_per_day", "168h") as (gate, known, begun):
        async with gate.running():
            await until(lambda: value(batches.metrics, "batch_lines_total", outcome="retried") > 0)
        assert (await gate.acme.batches.retrieve(begun.id)).status == "in_progress"
        known.directory = of_key(tokens_per_day=10**6)[0].directory
        async with gate.running():
            output, _ = await every_line(gate, await gate.ended(begun))
        assert len(output) == 3


async def test_runners_that_end_at_any_time_lose_and_repeat_nothing(batches: Batches) -> None:
    async with engine(inter_token_seconds=0.002) as worker, batches.served([worker]) as gate:
        begun = await gate.begun(line(str(number)) for number in range(24))
        for ended in range(1, 24, 6):
            async with AsyncExitStack() as runners:
                for _ in range(2):
                    await runners.enter_async_context(gate.running())
                await gate.answered(ended)
        async with gate.running():
            output, errors = await every_line(gate, await gate.ended(begun))
        assert (len(output), errors) == (24, [])


async def test_one_that_is_taken_for_dead_changes_nothing_any_more(batches: Batches) -> None:
    async with engine() as worker, batches.served([worker]) as gate:
        batches.may_begin = 0
        begun = await gate.begun([line("a"), line("b")])
        async with gate.running():
            await until(lambda: any(row["status"] == "in_progress" for row in batches.keeping.rows("batches")))
            batches.clock.now += QUICK.lease_seconds + 1
            held = batches.keeping.rows("batches")[0]["holder"]
            async with gate.running():
                await until(lambda: batches.keeping.rows("batches")[0]["holder"] not in {held, None})
                batches.may_begin = inf
                output, _ = await every_line(gate, await gate.ended(begun))
        assert len(output) == 2


async def test_what_a_tenant_had_goes_with_it(batches: Batches) -> None:
    tenants = SqlTenants(batches.database)
    tenants.open()
    tenants.create(ACME)
    batches.may_begin = 0
    async with batches.served([]) as gate, gate.running():
        begun = await gate.begun([line("a")])
        await until(lambda: batches.keeping.rows("batch_lines") != [])
        tenants.delete(ACME.name)
        for table in ("batches", "batch_lines", "files", "file_parts"):
            assert batches.keeping.rows(table) == []
        with pytest.raises(openai.NotFoundError):
            await gate.acme.batches.retrieve(begun.id)


async def test_batches_are_forgotten_with_their_files(batches: Batches) -> None:
    async with engine() as worker, batches.served([worker]) as gate, gate.running():
        await gate.ended(await gate.begun([line("a")]))
        batches.clock.now += QUICK.kept_seconds + 24 * 3600  # its input, for a window more
        await batches.thread.prune()
        await batches.keeping.store.prune()
    assert [batches.keeping.rows(table) for table in ("batches", "files")] == [[], []]


async def test_tenants_that_cannot_be_read_are_no_answer(batches: Batches) -> None:
    """A line is kept for later where the store of tenants is not read, and not told as refused."""
    known = Known(directory(ACME, UMBRELLA))
    async with engine() as worker, batches.served([worker], known=known) as gate:
        begun, read = await gate.begun([line("a")]), known.directory
        known.directory = Directory(required=True, read=False)
        async with gate.running():
            await until(lambda: value(batches.metrics, "batch_lines_total", outcome="retried") > 0)
            known.directory = read
        async with gate.running():
            output, _ = await every_line(gate, await gate.ended(begun))
        assert len(output) == 1
