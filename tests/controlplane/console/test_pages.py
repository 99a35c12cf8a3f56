"""Views over the admin API: what they show, what they refuse, and what they say where something is not known."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from cachefleet_controlplane.console.admin_calls import AdminCalls
from cachefleet_controlplane.console.doc_pages import FOLDER, NAMES, DocPages, parsed
from cachefleet_controlplane.console.figures.lost_causes import CAUSES
from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_records import AttemptRecord, DecisionRecord, ShortfallRecord
from tests.controlplane.admin.conftest import Doorkeeper
from tests.controlplane.console.conftest import Said
from tests.controlplane.store.conftest import CANDIDATE

ROOT = Path(__file__).parents[3]
FINDINGS = ROOT / "controlplane" / "cachefleet_controlplane" / "admin" / "findings"
SCRIPT = "<script>alert(1)</script>"


def record(name: str = "d1", **changes: Any) -> DecisionRecord:
    fields: dict[str, Any] = {
        "id": name,
        "at": 1_800_000_000.0,
        "model": "demo",
        "pool": "default/demo",
        "endpoint": "chat",
        "policy": "cacheAware",
        "verdict": "route",
        "reason": "longest_prefix",
        "worker": "demo-0",
        "knowledge": "exact",
        "prompt_tokens": 2512,
        "predicted_tokens": 1024,
        "cached_tokens": 512,
        "status": 200,
        "ttft_seconds": 0.4,
        "queued_seconds": 0.1,
        "attempts": (AttemptRecord("demo-0", "finished", 200, 0.9),),
        "candidates": (CANDIDATE,),
        "shortfall": ShortfallRecord("evicted", 512, "demo-0"),
    }
    return DecisionRecord(**fields | changes)


async def test_requests_are_listed_and_one_is_explained(browser: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.record(record())
    text = (await browser.get("/requests")).text
    assert "/console/requests/d1" in text
    assert ">2,000<" in text
    page = (await browser.get("/requests/d1")).text
    for words in ("<b>2,000</b> of 2,512 prompt tokens were computed", "lost: evicted", "raise prefixCache.budgetMiB"):
        assert words in page, words
    assert "The worker evicted some of it between decision and answer." in page
    assert 'class="p-mark"' in page


async def test_an_id_leads_to_its_request(browser: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.record(record())
    assert (await browser.get("/requests", params={"id": " d1 "})).headers["location"] == "/console/requests/d1"
    assert (await browser.get("/requests", params={"id": "../tenants"})).status_code == 200
    for name in ("gone", "stream", "export", "a%2F..%2Ftenants", "x" * 65):
        assert (await browser.get(f"/requests/{name}")).status_code == 404, name


async def test_a_search_is_passed_on(browser: httpx.AsyncClient, admin: Said) -> None:
    admin.answers["GET", "/decisions"] = (200, {"items": [], "storeProblem": None, "next": "d7"})
    query = {"id": "mine", "tenant": "acme", "outcome": "failed", "shortfall": "any", "other": "x"}
    assert "No request that is remembered fits" in (await browser.get("/requests", params=query)).text
    (_, _, asked, _) = admin.asked[-1]
    assert set(asked.split("&")) == {"limit=50", "tenant=acme", "outcome=failed", "shortfall=any", "requestId=mine"}


async def test_what_was_sent_is_no_markup(browser: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.record(record(model=SCRIPT, tenant=SCRIPT, worker=SCRIPT, render_failure=SCRIPT))
    for path in ("/requests", "/requests/d1", f"/requests?tenant={SCRIPT}", f"/prefixes?pool={SCRIPT}"):
        text = (await browser.get(path)).text
        assert "<script>alert" not in text


@pytest.mark.parametrize("path", ["/prefixes", "/lost-hits", "/alerts", "/data/history"])
async def test_what_is_absent_is_said(browser: httpx.AsyncClient, admin: Said, path: str) -> None:
    for name in ("/prefixes", "/lost-hits", "/findings", "/history"):
        admin.answers["GET", name] = (404, {"detail": "nothing here"})
    assert "This control plane" in (await browser.get(path)).text
    for name in ("/prefixes", "/lost-hits", "/findings", "/history"):
        admin.answers["GET", name] = (403, {"detail": "the token's user may not"})
    assert "may not" in (await browser.get(path)).text


LOST = {
    "shortfallTokens": 16,
    "surplusTokens": 0,
    "promptTokens": 5000,
    "servedTokens": 3000,
    "causes": [
        {"cause": "first_seen", "tokens": 500, "why": "No worker held it."},
        {"cause": "evicted", "tokens": 1500, "why": "It was evicted."},
    ],
    "buckets": [{"at": "2026-01-01T00:00:00Z", "causes": {"evicted": 1500, "first_seen": 500}}],
}


async def test_lost_hits_by_cause(browser: httpx.AsyncClient, admin: Said) -> None:
    admin.answers["GET", "/lost-hits"] = (200, LOST)
    text = (await browser.get("/lost-hits", params={"pool": "default/demo"})).text
    assert text.index('data-cause="evicted"') < text.index('data-cause="first_seen"')
    for words in (
        "75.0 %",
        '<b id="lost-total">2,000</b>',
        "raise prefixCache.budgetMiB",
        "predicted <b>0.32</b> points too much, <b>0.00</b> too little",
        '"labels": ["evicted", "first seen"]',
    ):
        assert words in text, words
    assert admin.asked[-1][2] == "pool=default%2Fdemo"


async def test_causes_in_prompts_and_what_their_mends_are_worth(browser: httpx.AsyncClient, admin: Said) -> None:
    seen = [{"cause": "time", "tokens": 400, "why": "A time."}, {"cause": "new", "tokens": 100, "why": "New."}]
    admin.answers["GET", "/lost-hits"] = (200, LOST | {"firstSeen": seen})
    mend = {"pool": "default/demo", "tenant": SCRIPT, "cause": "time", "part": "system", "mend": "move the time"}
    worth = {"points": 31.04, "tokensPerDay": 4_100_000}
    admin.answers["GET", "/prompt-causes"] = (200, {"items": [mend | worth]})
    text = (await browser.get("/lost-hits")).text
    for words in ("a time or date", "80.0 %", "A time.", "move the time", "+31.0", "4,100,000", "new text"):
        assert words in text, words
    assert "<script>alert" not in text
    admin.answers["GET", "/prompt-causes"] = (403, {"detail": "the token's user may not"})
    text = (await browser.get("/lost-hits")).text
    assert "80.0 %" in text
    assert "What mends are worth" not in text


SIZE = {"workers": 2, "budgetFactor": 1.0, "budgetMiB": 8192, "hitRatio": 0.61, "computedTokensPerSecond": 3900.0}
ADVICE = {
    "action": "moreWorkers",
    "worth": True,
    "words": "a third worker: 61 -> 74 % hits",
    "points": 13.0,
    "savedTokensPerSecond": 1300.0,
    "savedWorkers": 1.1,
    "worthPerHour": None,
    "confirmed": None,
}
CHANGE = {
    "at": "2027-01-15T08:00:00Z",
    "words": "1 -> 2 workers: 61 % hits foretold, 58 % came (+3.0 points off)",
    "advised": "moreWorkers",
    "phase": "judged",
    "foretold": SIZE,
    "hitRatio": 0.58,
    "error": 0.03,
    "computedError": -120.4,
}
CAPACITY = {
    "pool": "default/demo",
    "verdict": "worth",
    "words": "a third worker: 61 -> 74 % hits",
    "requests": 812.4,
    "servedRatio": 0.609,
    "error": -0.014,
    "sampled": 0.125,
    "now": SIZE,
    "byWorkers": [SIZE, SIZE | {"workers": 3, "hitRatio": 0.74}],
    "byBudget": [SIZE | {"budgetMiB": 4096, "budgetFactor": 0.5, "hitRatio": 0.412}, SIZE],
    "byTenant": [
        {
            "tenant": "acme",
            "requests": 700.4,
            "servedRatio": 0.637,
            "byWorkers": [0.64, 0.771],
            "byBudget": [0.44, 0.64],
        },
        {"tenant": SCRIPT, "requests": 112.0, "servedRatio": 0.01, "byWorkers": [0.01, 0.02], "byBudget": [0.01, 0.01]},
    ],
    "advice": [ADVICE],
    "desiredWorkers": 3,
    "desiredReason": "cache",
    "desiredFit": {
        "minutes": 1440,
        "fittedMinutes": 1404,
        "fitted": 0.975,
        "missedMinutes": {"tokens": 30, "queue": 6},
    },
    "changes": [
        CHANGE
        | {"phase": "filling", "words": "2 -> 3 workers", "hitRatio": None, "error": None, "computedError": None},
        CHANGE,
    ],
    "scaleIn": {"worker": "demo-1", "words": "demo-1 goes first: its cache is worth least"},
}


async def test_hit_curves_with_their_error_and_what_is_worth_doing(browser: httpx.AsyncClient, admin: Said) -> None:
    unknown = CAPACITY | {"pool": SCRIPT, "verdict": "unknown", "words": "not known yet", "now": None, "scaleIn": None}
    admin.answers["GET", "/capacity"] = (200, {"items": [CAPACITY, unknown]})
    text = (await browser.get("/capacity", params={"pool": "default/demo"})).text
    for words in (
        "<b>a third worker: 61 -&gt; 74 % hits</b>",
        "Scaled in, demo-1 goes first",
        "the curve's error <b>-1.4</b> points",
        "of <b>812</b> requests, 12.5 % of their blocks",
        "<b>3</b> workers desired (cache)",
        "<b>74.0 %</b>",
        "2 workers of 4,096 MiB",
        'data-advice="moreWorkers"',
        'data-tenant="acme"',
        '<td data-label="3 workers" class="number">77.1 %</td>',
        '<td data-label="4,096 MiB" class="number">44.0 %</td>',
        "+1.1",
        "not known yet",
        "fitted it in <b>97.5 %</b> of <b>1,440</b> minutes, not for its queue in 6, tokens in 30",
        'data-change="filling"',
        "1 -&gt; 2 workers: 61 % hits foretold, 58 % came",
        "2027-01-15 08:00:00 UTC",
        '<td data-label="Points off" class="number">+3.0</td>',
        '<td data-label="Computed off" class="number">-120/s</td>',
    ):
        assert words in text, words
    assert text.count("<small>today</small>") == 4, "by workers and by budget, of all and by tenant"
    assert "<script>alert" not in text
    assert admin.asked[-1][2] == "pool=default%2Fdemo"


async def test_an_advice_is_simulated_by_a_button(browser: httpx.AsyncClient, admin: Said, csrf: str) -> None:
    admin.answers["GET", "/capacity"] = (200, {"items": [CAPACITY]})
    text = (await browser.get("/capacity")).text
    assert ">Simulate</button>" in text
    said = "simulated with the last 500 requests: 61.0 -> 73.1 % hits, +12.1 points; the curve says +13.0"
    advice = ADVICE | {"confirmed": {"words": said, "at": "2027-01-15T08:00:00Z"}}
    admin.answers["POST", "/capacity/confirm"] = (200, CAPACITY)
    admin.answers["GET", "/capacity"] = (200, {"items": [CAPACITY | {"advice": [advice]}]})
    form = {"csrf": csrf, "pool": "default/demo", "action": "moreWorkers", "shown": "default/demo"}
    text = (await browser.post("/capacity", data=form)).text
    assert said.replace(">", "&gt;") in text
    assert ">Simulate</button>" not in text
    asked = next(one for one in admin.asked if one[0] == "POST")
    assert asked[3] == {"pool": "default/demo", "action": "moreWorkers"}
    assert admin.asked[-1][2] == "pool=default%2Fdemo"


async def test_a_simulation_that_cannot_be_is_said(browser: httpx.AsyncClient, admin: Said, csrf: str) -> None:
    admin.answers["GET", "/capacity"] = (200, {"items": [CAPACITY]})
    admin.answers["POST", "/capacity/confirm"] = (409, {"detail": "another simulation is running"})
    form = {"csrf": csrf, "pool": "default/demo", "action": "moreWorkers"}
    text = (await browser.post("/capacity", data=form)).text
    assert "another simulation is running" in text
    assert "a third worker" in text, "what is known is shown all the same"
    assert (await browser.post("/capacity", data=form | {"csrf": "x"})).status_code == 403


async def test_a_control_plane_without_hit_curves_says_so(browser: httpx.AsyncClient, admin: Said) -> None:
    assert "has no hit curves" in (await browser.get("/capacity")).text
    admin.answers["GET", "/capacity"] = (200, {"items": []})
    assert "There is no such pool." in (await browser.get("/capacity")).text
    admin.answers["GET", "/capacity"] = (403, {"detail": "the token's user may not"})
    assert "may not" in (await browser.get("/capacity")).text


def test_every_cause_has_advice() -> None:
    assert {cause.value for cause in Cause} <= set(CAUSES)
    assert all(one.name and one.action for one in CAUSES.values())


async def test_prefixes(browser: httpx.AsyncClient, admin: Said) -> None:
    one = {"name": "k1", "tenant": "acme", "model": "m", "tokens": 2048, "requests": 9, "holders": ["w0"], "warm": True}
    admin.answers["GET", "/prefixes"] = (200, {"items": [one | {"savedTokens": 18_432, "holderCount": 3}]})
    text = (await browser.get("/prefixes")).text
    for words in ("k1", "2,048", "18,432", "w0 and 2 more", "by declaration"):
        assert words in text, words


async def test_alerts(browser: httpx.AsyncClient, admin: Said) -> None:
    admin.answers["GET", "/findings"] = (200, {"items": []})
    assert "Nothing is wrong" in (await browser.get("/alerts")).text
    found = {"severity": "critical", "subject": "store", "reason": "StoreDown", "message": SCRIPT, "action": "Mend it."}
    admin.answers["GET", "/findings"] = (200, {"items": [found | {"docs": "docs/operations.md#store"}]})
    text = (await browser.get("/alerts")).text
    for words in ("critical", "StoreDown", "&lt;script&gt;", "Mend it.", 'href="/console/docs/operations#store"'):
        assert words in text, words


@pytest.mark.parametrize(
    ("status", "severities", "alerts"),
    [
        (200, [], {"words": "none", "severity": ""}),
        (200, ["info"], {"words": "none", "severity": ""}),
        (200, ["warning", "info", "critical", "warning"], {"words": "1 critical, 2 warning", "severity": "critical"}),
        (200, ["warning"], {"words": "1 warning", "severity": "warning"}),
        (503, [], {"words": "not known", "severity": ""}),
    ],
)
async def test_the_first_page_counts_alerts(
    browser: httpx.AsyncClient, admin: Said, status: int, severities: list[str], alerts: dict[str, str]
) -> None:
    admin.answers["GET", "/findings"] = (status, {"items": [{"severity": severity} for severity in severities]})
    shown = f'id="alerts" class="{alerts["severity"]}">{alerts["words"]}</a>'
    assert shown in (await browser.get("/")).text
    assert (await browser.get("/data/history")).json()["alerts"] == alerts


async def test_every_page_that_findings_name_is_shown_with_its_anchor(browser: httpx.AsyncClient) -> None:
    text = "".join(path.read_text() for path in sorted(FINDINGS.rglob("*.py")))
    named = set(re.findall(r"docs/([\w-]+)\.md#?([\w-]*)", text))
    named |= set(re.findall(r'\b(operations|troubleshooting)\("([\w-]+)"\)', text))
    assert len(named) > 10
    for page, anchor in sorted(named):
        shown = await browser.get(f"/docs/{page}")
        assert shown.status_code == 200, page
        assert not anchor or f'id="{anchor}"' in shown.text, (page, anchor)


@pytest.mark.parametrize("name", ["none", "requirements", "%2e%2e%2fREADME", "block-index.md"])
async def test_no_other_page_is_shown(browser: httpx.AsyncClient, name: str) -> None:
    assert (await browser.get(f"/docs/{name}")).status_code == 404


def test_a_page_is_text_below_headings_with_links_to_others() -> None:
    text = "# One `it`!\n<b> [x](worker.md#a-b) [y](#z) [w](https://a) [v](cli.md)\n```\n# no heading\n```\n## Two\n"
    one, two = parsed(text)
    assert (one.level, one.title, one.anchor, two.title, two.text) == (1, "One `it`!", "one-it", "Two", "")
    assert one.text.splitlines()[0] == (
        '&lt;b&gt; <a href="/console/docs/worker#a-b">x</a> <a href="#z">y</a> [w](https://a) [v](cli.md)'
    )
    assert "# no heading" in one.text


def test_the_package_has_the_pages_as_they_are() -> None:
    there = sorted(FOLDER.iterdir())
    assert [page.stem for page in there] == sorted(NAMES)
    assert {page.resolve() for page in there} == {ROOT / "docs" / f"{name}.md" for name in NAMES}


def test_where_the_package_came_without_them_alerts_link_to_none(tmp_path: Path) -> None:
    assert (DocPages(tmp_path).names, DocPages(tmp_path).sections("worker")) == (frozenset(), [])


WOULD = {"workers": [{"worker": "w0", "blocks": 12, "tokens": 192, "error": None}], "blocks": 12, "tokens": 192}


async def test_a_flush_begins_with_a_dry_run(browser: httpx.AsyncClient, admin: Said, csrf: str) -> None:
    admin.answers["POST", "/flush"] = (200, WOULD | {"dryRun": True})
    form = {"csrf": csrf, "kind": "pool", "value": " default/demo "}
    text = (await browser.post("/flush", data=form)).text
    assert admin.asked[-1][3] == {"scope": {"pool": "default/demo"}, "dryRun": True}
    assert "Evict 12 blocks" in text
    admin.answers["POST", "/flush"] = (200, WOULD | {"dryRun": False})
    text = (await browser.post("/flush", data=form | {"confirmed": "yes"})).text
    assert admin.asked[-1][3] == {"scope": {"pool": "default/demo"}, "dryRun": False}
    assert "were evicted" in text
    await browser.post("/flush", data={"csrf": csrf, "kind": "prompt", "value": "You are", "model": "demo"})
    assert admin.asked[-1][3] == {"scope": {"prompt": {"prompt": "You are"}, "model": "demo"}, "dryRun": True}


async def test_a_flush_that_is_refused_or_names_nothing(
    browser: httpx.AsyncClient, admin: Said, csrf: str, doorkeeper: Doorkeeper
) -> None:
    assert (
        "Say what is to go." in (await browser.post("/flush", data={"csrf": csrf, "kind": "pool", "value": " "})).text
    )
    assert (await browser.post("/flush", data={"kind": "pool", "value": "x"})).status_code == 403
    admin.answers["POST", "/flush"] = (
        422,
        {"detail": "no", "errors": [{"field": "body.scope", "message": "no pool x"}]},
    )
    answer = await browser.post("/flush", data={"csrf": csrf, "kind": "pool", "value": "x"})
    assert (answer.status_code, "scope: no pool x" in answer.text) == (422, True)
    doorkeeper.forbidden = True
    text = (await browser.get("/flush")).text
    assert "may not flush" in text
    assert "<button>Show" not in text


async def test_an_admin_api_that_hangs_holds_up_no_page(hurried: None) -> None:
    async def silent(_scope: Scope, receive: Receive, _send: Send) -> None:
        while True:
            await receive()

    answer = await AdminCalls(silent).ask("GET", "/pools", token="t")
    assert (answer.status, answer.problem) == (503, "the admin API did not answer in time")
