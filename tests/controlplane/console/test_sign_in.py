"""Signing in and out: cookies, forged requests, links that are good once, and words for what goes wrong."""

import httpx
import pytest

from cachefleet_controlplane.console.sign_in.failed_sign_ins import MOST_FAILURES, WINDOW_SECONDS, FailedSignIns
from cachefleet_controlplane.console.sign_in.one_time_codes import LIFE_SECONDS, OneTimeCodes
from cachefleet_controlplane.console.sign_in.visitor_sessions import IDLE_SECONDS, MAX_OF_TOKEN, Sessions
from cachefleet_controlplane.console.visit import ConsoleParts
from tests.controlplane.admin.conftest import TOKEN, Doorkeeper
from tests.controlplane.console.conftest import HOST, ORIGIN

OTHERS = "http://elsewhere.example"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_token_is_pasted_once(visitor: httpx.AsyncClient) -> None:
    asked = await visitor.get("/data/history?pool=x")
    assert (asked.status_code, asked.headers["location"]) == (
        303,
        "/console/sign-in?next=%2Fconsole%2Fdata%2Fhistory%3Fpool%3Dx",
    )
    page = await visitor.get("/sign-in", params={"next": "/console/data/history?pool=x"})
    assert 'value="/console/data/history?pool=x"' in page.text
    begun = await visitor.post("/sign-in", data={"token": f" {TOKEN} ", "next": "/console/data/history?pool=x"})
    assert (begun.status_code, begun.headers["location"]) == (303, "/console/data/history?pool=x")
    cookie = begun.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/console" in cookie
    assert "secure" not in cookie
    assert TOKEN not in cookie
    assert (await visitor.get("/")).status_code == 200


async def test_the_cookie_is_secure_where_the_port_is_tls(visitor: httpx.AsyncClient) -> None:
    url = f"https://{HOST}/console/sign-in"
    begun = await visitor.post(url, data={"token": TOKEN}, headers={"origin": f"https://{HOST}"})
    assert "; secure" in begun.headers["set-cookie"].lower()


async def test_the_cookie_is_secure_where_a_proxy_ends_tls(visitor: httpx.AsyncClient) -> None:
    begun = await visitor.post("/sign-in", data={"token": TOKEN}, headers={"origin": f"https://{HOST}"})
    assert begun.status_code == 303
    assert "; secure" in begun.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "wanted", ["//elsewhere.example", "https://elsewhere.example/console/", "/admin/v1", "/console/\\e"]
)
async def test_signing_in_leads_nowhere_else(visitor: httpx.AsyncClient, wanted: str) -> None:
    begun = await visitor.post("/sign-in", data={"token": TOKEN, "next": wanted})
    assert begun.headers["location"] == "/console/"


async def test_a_wrong_token_is_told(visitor: httpx.AsyncClient) -> None:
    page = await visitor.post("/sign-in", data={"token": "wrong"})
    assert page.status_code == 401
    assert "not the admin API&#39;s" in page.text
    assert "wrong" not in page.text
    assert "set-cookie" not in page.headers


async def test_without_rights_or_where_nobody_can_check(visitor: httpx.AsyncClient, doorkeeper: Doorkeeper) -> None:
    doorkeeper.forbidden = True
    page = await visitor.post("/sign-in", data={"token": TOKEN})
    assert (page.status_code, "may not list PrefixCachePools" in page.text) == (403, True)
    doorkeeper.away = True
    page = await visitor.post("/sign-in", data={"token": TOKEN})
    assert (page.status_code, page.headers["retry-after"]) == (503, "2")
    assert "cannot be checked now: nobody to ask" in page.text


async def test_a_token_that_is_withdrawn_ends_the_session(
    browser: httpx.AsyncClient, doorkeeper: Doorkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    doorkeeper.away = True
    assert (await browser.get("/")).status_code == 503
    doorkeeper.away = False
    assert (await browser.get("/")).status_code == 200
    monkeypatch.setattr("tests.controlplane.admin.conftest.TOKEN", "renewed")
    gone = await browser.get("/data/history")
    told = "/console/sign-in?told=refused&next=%2Fconsole%2Fdata%2Fhistory"
    assert (gone.status_code, gone.headers["location"]) == (303, told)
    assert not browser.cookies


async def test_signing_out(browser: httpx.AsyncClient, csrf: str) -> None:
    cookie = dict(browser.cookies)
    assert (await browser.post("/sign-out", data={"csrf": "guessed"})).status_code == 403
    assert (await browser.post("/sign-out", data={"csrf": csrf})).headers["location"] == "/console/sign-in?told=out"
    assert not browser.cookies
    browser.cookies.update(cookie)
    assert (await browser.get("/")).status_code == 303


@pytest.mark.parametrize("origin", [OTHERS, "null", "", f"https://{HOST}1"])
async def test_forms_of_others_are_refused(browser: httpx.AsyncClient, csrf: str, origin: str) -> None:
    for path in ("/sign-out", "/sign-in", "/enter"):
        answer = await browser.post(path, data={"csrf": csrf, "token": TOKEN}, headers={"origin": origin})
        assert answer.status_code == 403, path
    assert (await browser.get("/")).status_code == 200


@pytest.mark.parametrize("host", ["[", "x:99999999", "x:y", "", "x" * 300])
async def test_a_strange_host_is_no_fault_of_the_console(visitor: httpx.AsyncClient, host: str) -> None:
    answer = await visitor.get("/", headers={"host": host})
    assert answer.status_code == 303
    refused = await visitor.post("/sign-in", data={"token": TOKEN}, headers={"host": host, "origin": "http://["})
    assert refused.status_code == (303 if host == "[" else 403)


async def test_what_is_no_form_is_refused(browser: httpx.AsyncClient) -> None:
    assert (await browser.post("/sign-in", json={"token": TOKEN})).status_code == 400
    many = "&".join(f"f{number}=1" for number in range(60))
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await browser.post("/sign-in", content=many, headers=form)).status_code == 400
    assert (await browser.post("/sign-in", content="x" * 70_000, headers=form)).status_code == 413


async def test_a_link_signs_in_once(visitor: httpx.AsyncClient) -> None:
    assert (await visitor.post("/sign-in-links")).status_code == 401
    made = await visitor.post("/sign-in-links", headers={"authorization": f"Bearer {TOKEN}"})
    assert made.status_code == 201
    path, _, code = made.json()["path"].partition("#")
    page = await visitor.get(f"{ORIGIN}{path}")
    assert "enter.js" in page.text
    assert (await visitor.post("/enter", data={"code": code})).headers["location"] == "/console/"
    assert (await visitor.get("/")).status_code == 200
    again = await visitor.post("/enter", data={"code": code})
    assert (again.status_code, "was used" in again.text) == (403, True)


async def test_a_link_of_another_token_asks_first(
    browser: httpx.AsyncClient, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, code = dict(browser.cookies), parts.codes.make("others")
    asked = await browser.post("/enter", data={"code": code})
    assert (asked.status_code, "You are signed in already" in asked.text) == (200, True)
    assert "set-cookie" not in asked.headers
    assert "others" not in asked.text
    assert (await browser.get("/")).status_code == 200, "the session goes on"
    monkeypatch.setattr("tests.controlplane.admin.conftest.TOKEN", "others")
    taken = await browser.post("/enter", data={"code": code, "instead": "yes"})
    assert (taken.status_code, taken.headers["location"]) == (303, "/console/")
    assert dict(browser.cookies) != before
    assert parts.sessions.find(next(iter(before.values()))) is None, "the session that was replaced has ended"
    assert "was used" in (await browser.post("/enter", data={"code": code, "instead": "yes"})).text


async def test_a_link_of_the_same_token_leaves_the_session(browser: httpx.AsyncClient, parts: ConsoleParts) -> None:
    before, code = dict(browser.cookies), parts.codes.make(TOKEN)
    assert (await browser.post("/enter", data={"code": code})).headers["location"] == "/console/"
    assert dict(browser.cookies) == before
    assert parts.codes.peek(code) is None
    assert (await browser.post("/enter", data={"code": code})).status_code == 403
    assert (await browser.get("/")).status_code == 200


async def test_a_link_replaces_a_session_that_has_ended(
    browser: httpx.AsyncClient, parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.sessions.end(next(iter(browser.cookies.values())))
    monkeypatch.setattr("tests.controlplane.admin.conftest.TOKEN", "others")
    assert (await browser.post("/enter", data={"code": parts.codes.make("others")})).status_code == 303
    assert (await browser.get("/")).status_code == 200


def test_links_and_sessions_end_by_themselves() -> None:
    clock = Clock()
    codes, sessions = OneTimeCodes(clock), Sessions(clock, limit=2)
    code, first = codes.make(TOKEN), sessions.begin(TOKEN)
    clock.now = LIFE_SECONDS + 1
    assert codes.take(code) is None
    clock.now = IDLE_SECONDS
    assert sessions.find(first)
    clock.now = 2 * IDLE_SECONDS
    assert sessions.find(first, use=False)
    clock.now += 1
    assert sessions.find(first) is None
    kept = [sessions.begin(TOKEN) for _ in range(3)]
    assert [sessions.find(one) is not None for one in kept] == [False, True, True]
    assert TOKEN not in repr(sessions.find(kept[-1]))


async def test_every_answer_has_the_headers(browser: httpx.AsyncClient, parts: ConsoleParts) -> None:
    for path in ("/", "/nowhere", "/sign-in", "/static/live.js", "/data/history"):
        headers = (await browser.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
    kept = await browser.get(f"{ORIGIN}{parts.static.url('live.js')}")
    assert "immutable" in kept.headers["cache-control"]


async def test_an_address_from_which_many_sign_ins_fail_has_to_wait(
    visitor: httpx.AsyncClient, doorkeeper: Doorkeeper
) -> None:
    for _ in range(MOST_FAILURES):
        assert (await visitor.post("/sign-in", data={"token": "wrong"})).status_code == 401
    page = await visitor.post("/sign-in", data={"token": TOKEN})
    assert (page.status_code, page.headers["retry-after"]) == (429, "10")
    assert "Too many sign-ins from this address have failed" in page.text
    link = await visitor.post("/sign-in-links", headers={"authorization": f"Bearer {TOKEN}"})
    assert link.status_code == 429


def test_failures_count_for_a_while_and_for_their_address_alone() -> None:
    clock = Clock()
    failed = FailedSignIns(clock)
    for _ in range(MOST_FAILURES):
        assert failed.wait_seconds("a") == 0
        failed.add("a")
        clock.now += 1
    assert (failed.wait_seconds("a"), failed.wait_seconds("b")) == (WINDOW_SECONDS - MOST_FAILURES, 0)
    clock.now += failed.wait_seconds("a")
    assert failed.wait_seconds("a") == 0


def test_many_sessions_of_one_token_end_nobody_elses() -> None:
    sessions = Sessions()
    mine = sessions.begin("mine")
    theirs = [sessions.begin("theirs") for _ in range(1200)]
    assert sessions.find(mine) is not None
    assert [sessions.find(one) is not None for one in theirs].count(True) == MAX_OF_TOKEN
    assert sessions.find(theirs[-1]) is not None
