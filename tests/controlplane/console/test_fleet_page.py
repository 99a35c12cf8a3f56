"""The fleet page: what rows say, that nothing in them is markup, and what is sent to those who look on."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from cachefleet_controlplane.console.live.fleet_rows import element_id, pool_row, problems, worker_row
from cachefleet_controlplane.console.live.live_fleet import MAX_ENCODED, TICK_SECONDS, LiveFleet
from cachefleet_controlplane.console.live.token_rates import TokenRates
from cachefleet_controlplane.console.pages import fleet_page
from cachefleet_controlplane.console.visit import ConsoleParts
from cachefleet_controlplane.workers.views import FleetView
from cachefleet_core.index_contract import Difference
from cachefleet_core.report_frames import Phase
from tests.controlplane.admin.conftest import Doorkeeper, Still
from tests.controlplane.fleet_views import DIFFERENT, REPORT, fleet_view, unknown_worker, worker_status
from tests.controlplane.waiting import until

SCRIPT = "<script>alert(1)</script>"


def changed(view: FleetView, **pool: Any) -> FleetView:
    return replace(view, pools=(msgspec.structs.replace(view.pools[0], **pool),))


async def test_it_shows_pools_and_workers(browser: httpx.AsyncClient) -> None:
    text = (await browser.get("/")).text
    for words in ("default/demo", "70.0 %", "60.0 %", "demo-0", "44 running, 12 idle, 8 free", "not counted"):
        assert words in text, words
    assert "Its contract differs: weights is other, its pool&#39;s is tiny." in text
    assert "no report yet" in text


async def test_an_empty_fleet_has_its_own_words(browser: httpx.AsyncClient, fleet: Still) -> None:
    fleet.shown = replace(fleet_view(), pools=())
    assert "There is no pool yet" in (await browser.get("/")).text


async def test_a_pool_without_workers_has_its_own_words(browser: httpx.AsyncClient, fleet: Still) -> None:
    fleet.shown = fleet_view()
    assert "No worker of this pool has been seen" in (await browser.get("/")).text


async def test_names_are_no_markup(browser: httpx.AsyncClient, fleet: Still, parts: ConsoleParts) -> None:
    evil = (Difference("weights", SCRIPT, SCRIPT),)
    worker = worker_status(SCRIPT, epoch="<b>", excluded=True, differences=evil)
    fleet.shown = changed(fleet_view(worker), model=SCRIPT, key=SCRIPT)
    text = (await browser.get("/")).text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert b"<script>alert" not in parts.live.changes(0)


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ready", ()),
        (
            {"ready": False, "report": msgspec.structs.replace(REPORT, reason="warming")},
            "left out",
            "not ready: warming",
        ),
        ({"ready": False, "report": msgspec.structs.replace(REPORT, phase=Phase.WARMING)}, "starting", "not ready"),
        ({"report": msgspec.structs.replace(REPORT, phase=Phase.DRAINING)}, "draining", "agent says: draining"),
        ({"suspended": "asleep"}, "asleep", "serves nothing (asleep): it gets nothing"),
        ({"suspended": "updating_weights"}, "updating weights", "(updating weights)"),
        ({"suspended": "asleep", "ready": False}, "left out", "not ready"),
        ({"listed": False}, "away", "in no list"),
        ({"vouched": False}, "left out", "No agent has proved"),
        ({"backing_off": True}, "left out", "could not be reached"),
        ({"key_refused": True}, "left out", "refuses the gateway's key"),
        ({"stale": True, "report_age_seconds": 75.0}, "not counted", "too old"),
        ({"connected": False}, "not counted", "No agent is connected"),
        ({"indexed": False}, "not counted", "do not fit"),
        ({"not_indexed": "hash_seed"}, "not counted", "cannot be counted: hash_seed"),
        (
            {"configuration": (Difference("block_size", "16", "32"),)},
            "not counted",
            "block_size 32, its pool asks for 16",
        ),
        ({"excluded": True, "differences": DIFFERENT}, "not counted", "contract differs"),
    ],
)
def test_why_a_worker_is_not_used(changes: dict[str, Any], state: str, words: str) -> None:
    status = worker_status("demo-0", **changes)
    assert worker_row(status).state == state
    assert not words or words in " ".join(problems(status))


def test_what_nobody_told_is_not_made_up() -> None:
    row = worker_row(unknown_worker("demo-9"))
    assert (row.running_blocks, row.free_blocks, row.freshness) == (None, None, "no report yet")
    silent = worker_status("demo-0", block_bytes=0)
    pool = fleet_view(silent, queried=0, hits=0).pools[0]
    made = pool_row(pool, [silent], None)
    assert (made.hit_ratio, made.idle_mib, made.saved, made.below) == (None, None, None, False)


def test_a_pool_below_its_objective() -> None:
    view = fleet_view(worker_status("demo-0", block_bytes=1 << 20), hits=500)
    row = pool_row(msgspec.structs.replace(view.pools[0], budget_mib=24), view.workers, None)
    assert (row.hit_ratio, row.objective, row.below) == (0.5, 0.6, True)
    assert (row.idle_mib, row.budget_mib, row.running, row.waiting) == (12, 24, 2, 1)


def test_rates_are_of_the_last_ten_seconds() -> None:
    rates = TokenRates()
    rates.note(0.0, {"a": (100, 50)})
    assert rates.rates() is None
    rates.note(2.0, {"a": (300, 150), "b": (1000, 1000)})
    found = rates.rates()
    assert found
    assert (found.saved, found.computed) == (50.0, 50.0)
    for second in range(4, 30, 2):
        rates.note(float(second), {"a": (300, 150)})
    rates.note(30.0, {"a": (10, 5)})  # it has started anew
    found = rates.rates()
    assert found
    assert (found.saved, found.computed) == (0.0, 0.0)


class Counted:
    """Renders, and counts what it rendered."""

    def __init__(self) -> None:
        self.rendered: list[str] = []

    def __call__(self, row: Any) -> str:
        self.rendered.append(row.id)
        return f"<{row.id}>"


def test_only_what_changed_is_rendered_and_once_a_tick() -> None:
    fleet, render, now = Still(), Counted(), [0.0]
    live = LiveFleet(fleet, render, clock=lambda: now[0])
    live.refresh()
    live.refresh()
    assert (live.version, len(render.rendered)) == (1, 5)
    first, shape = live.version, live.shape
    busy = worker_status("demo-0", report=msgspec.structs.replace(REPORT, running=3))
    fleet.shown = replace(fleet.shown, workers=(busy, *fleet.shown.workers[1:]))
    now[0] += TICK_SECONDS
    render.rendered.clear()
    live.refresh()
    worker, pool = element_id("worker", busy.id), element_id("pool", "default/demo")
    assert set(render.rendered) == {worker, pool}
    assert set(msgspec.json.decode(live.changes(first))["rows"]) == {worker, pool}
    assert len(msgspec.json.decode(live.changes(0))["rows"]) == 5
    assert msgspec.json.decode(live.changes(live.version))["rows"] == {}
    assert live.shape == shape
    fleet.shown = replace(fleet.shown, workers=fleet.shown.workers[:1])
    now[0] += TICK_SECONDS
    live.refresh()
    assert live.shape != shape


def test_whatever_versions_viewers_name_little_is_kept() -> None:
    now = [0.0]
    live = LiveFleet(Still(), Counted(), clock=lambda: now[0])
    for _ in range(50):
        live.refresh()
        now[0] += TICK_SECONDS
    known = {version: live.changes(version) for version in range(50)}
    assert len(live._encoded) <= MAX_ENCODED  # it is about memory
    assert {version: live.changes(version) for version in range(50)} == known


async def test_viewers_count_from_when_they_are_let_in(
    browser: httpx.AsyncClient, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_page, "MAX_VIEWERS", 2)
    entered = [asyncio.create_task(browser.get("/events")) for _ in range(5)]
    await until(lambda: sum(one.done() for one in entered) == 3)
    assert {one.result().status_code for one in entered if one.done()} == {503}
    parts.ended.set()
    assert sorted([(await one).status_code for one in entered]) == [200, 200, 503, 503, 503]
    parts.ended.clear()
    again = asyncio.create_task(browser.get("/events"))
    await asyncio.sleep(0)
    parts.ended.set()
    assert (await again).status_code == 200


def _events(text: str) -> list[tuple[str, str]]:
    return re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)


async def test_the_stream_ends_when_the_replica_withdraws(browser: httpx.AsyncClient, parts: ConsoleParts) -> None:
    asking = asyncio.create_task(browser.get("/events", params={"since": "0"}))
    await until(lambda: parts.live.version > 0)
    parts.ended.set()
    answer = await asking
    assert answer.headers["content-type"].startswith("text/event-stream")
    (name, data), last = _events(answer.text)
    assert (name, last) == ("rows", ("ended", "{}"))
    assert len(json_rows(data)) == 5


def json_rows(data: str) -> dict[str, str]:
    rows: dict[str, str] = msgspec.json.decode(data)["rows"]
    return rows


async def test_a_stream_ends_with_its_session_and_with_its_rights(
    browser: httpx.AsyncClient, doorkeeper: Doorkeeper, csrf: str, hurried: None
) -> None:
    asking = asyncio.create_task(browser.get("/events"))
    await until(lambda: len(doorkeeper.asked) > 1)
    doorkeeper.forbidden = True
    assert _events((await asking).text)[-1] == ("refused", "refused")
    doorkeeper.forbidden = False
    asking = asyncio.create_task(browser.get("/events"))
    await until(lambda: len(doorkeeper.asked) > 3)
    await browser.post("/sign-out", data={"csrf": csrf})
    assert _events((await asking).text)[-1] == ("refused", "ended")


async def test_who_may_not_see_workers_sees_none(browser: httpx.AsyncClient, doorkeeper: Doorkeeper) -> None:
    doorkeeper.forbidden = True
    for path in ("/", "/events"):
        answer = await browser.get(path)
        assert (answer.status_code, "demo-0" in answer.text) == (403, False)
    doorkeeper.away = True
    assert (await browser.get("/")).status_code == 503
