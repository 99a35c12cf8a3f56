"""The console in a real browser, over a control plane with two fake engines and their real agents."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from playwright.async_api import Browser, Page, expect

from e2e.console.axe import serious
from e2e.console.conftest import opened
from e2e.console.console_fleet import TOKEN, Watched

pytestmark = [pytest.mark.console, pytest.mark.asyncio(loop_scope="session")]
LONG = "The fleet's prefix caches are one managed resource, and this sentence is a part of many prompts. " * 8
VIEWS = ("/", "/requests", "/prefixes", "/lost-hits", "/capacity", "/tenants", "/usage", "/alerts", "/flush")


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so; a limit only ends a hang."""
    async with asyncio.timeout(120):
        while not await found():  # noqa: ASYNC110 - what is awaited is in a page or behind an API
            await asyncio.sleep(0.1)


async def lost(plane: Watched) -> str:
    """Have one prompt cached, flushed and asked for again; the decision id of the last time."""
    text = f"{LONG} Which one is evicted? "
    assert (await plane.chat(text))[0] == 200
    _, second = await plane.chat(text)
    await until(lambda: _told(plane, second))
    await plane.admin("POST", "/flush", {"scope": {"pool": "default/demo"}, "dryRun": False})
    await until(lambda: _empty(plane))
    status, third = await plane.chat(text)
    assert status == 200
    await until(lambda: _told(plane, third))
    return third


async def _told(plane: Watched, decision: str) -> bool:
    return (await plane.admin("GET", f"/decisions/{decision}")).get("cachedTokens") is not None


async def _empty(plane: Watched) -> bool:
    return all(one["heldBlocks"] == 0 for one in (await plane.admin("GET", "/workers"))["items"])


async def test_a_token_is_pasted_and_a_wrong_one_told(chromium: Browser, plane: Watched) -> None:
    context = await chromium.new_context()
    page, _ = await opened(context)
    await page.goto(f"{plane.plane.internal}/console/requests")
    await page.get_by_label("Token of the admin API").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("not the admin API's")
    await page.get_by_label("Token of the admin API").fill(TOKEN)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Requests")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("status")).to_have_text("You have signed out.")
    await context.close()


async def test_a_link_signs_in_once(chromium: Browser, plane: Watched) -> None:
    link = await plane.link()
    context = await chromium.new_context()
    page, _ = await opened(context)
    await page.goto(link)
    await expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    assert "#" not in page.url
    cookie = next(one for one in await context.cookies() if one["name"].startswith("cachefleet-console"))
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/console")
    other = await (await chromium.new_context()).new_page()
    await other.goto(link)
    await expect(other.get_by_role("alert")).to_contain_text("was used")
    await other.context.close()
    await context.close()


async def test_numbers_change_while_one_looks(page: Page, plane: Watched) -> None:
    pool = page.locator("tbody tr[id^=pool-]").first
    ratio, before = pool.locator("td[data-label='Hit ratio']"), await pool.inner_text()
    for number in range(4):
        assert (await plane.chat(f"{LONG} {number % 2}"))[0] == 200
    await expect(pool).not_to_have_text(before)
    await expect(ratio).to_contain_text("%")
    held = page.locator("tr[id^=worker-] td[data-label=Indexed]")
    await until(lambda: _any_over(held, 20))
    await expect(page.locator("#live-state")).to_have_text("live")


async def _any_over(cells: object, least: int) -> bool:
    texts: list[str] = await cells.all_inner_texts()  # type: ignore[attr-defined]
    return any(int(text.replace(",", "") or 0) > least for text in texts)


async def test_the_last_hour_is_drawn(page: Page, plane: Watched) -> None:
    await plane.chat("something for the history")
    await until(lambda: _drawn(page))
    label = await page.locator("figure[data-chart=tokens] .plot").get_attribute("aria-label")
    assert re.search(r"Last: from cache \S+, computed \S+", label or "")


async def test_the_hour_says_since_when_and_legends_have_the_latest_values(page: Page, plane: Watched) -> None:
    await plane.chat("something for the legends", stream=True)

    async def known() -> bool:
        label = "figure[data-chart={}] .plot[aria-label]"
        told = [str(await page.get_attribute(label.format(kind), "aria-label")) for kind in ("ratio", "latency")]
        return await _drawn(page) and all(re.search(r"(ratio|token) \d", text) for text in told)

    await until(known)
    since = r"^since \d\d:\d\d:\d\d: nothing is known of before$"
    await expect(page.locator("#history-since")).to_have_text(re.compile(since))
    await expect(page.locator("#hour-facts")).to_have_text(re.compile(r"^[1-9][\d,]* requests answered, \d+ failed"))
    for kind in ("ratio", "tokens", "queue", "latency", "errors"):
        figure = page.locator(f"figure[data-chart={kind}]")
        told = str(await figure.locator(".plot").get_attribute("aria-label")).partition("Last: ")[2]
        rows = [text.split("\n")[-1].strip() for text in await figure.locator(".u-legend .u-value").all_inner_texts()]
        assert re.fullmatch(r"\d\d:\d\d:\d\d", rows[0]), (kind, rows)
        assert "--" not in rows, (kind, rows)
        assert any(value.strip() and value in told for value in rows[1:]), (kind, rows, told)
    over = page.locator("figure[data-chart=tokens] .u-over")
    await over.hover()
    await page.mouse.move(0, 0)
    assert "--" not in await page.locator("figure[data-chart=tokens] .u-legend").inner_text(), "after pointing, too"


async def test_alerts_are_counted_on_the_first_page_and_lead_to_their_docs(page: Page) -> None:
    count = page.locator("#alerts")
    await expect(count).to_have_text(re.compile(r"^(none|\d+ (critical|warning).*)$"))
    await count.click()
    link = page.locator("td[data-label=More] a").first
    await expect(link).to_be_visible()
    anchor = str(await link.get_attribute("href")).partition("#")[2]
    await link.click()
    await expect(page.locator(f"#{anchor}")).to_be_in_viewport()


async def test_use_without_tenants_is_shown(page: Page, plane: Watched) -> None:
    assert (await plane.chat("of nobody's"))[0] == 200

    async def shown() -> bool:
        await page.goto(f"{plane.plane.internal}/console/tenants")
        return await page.locator("tr", has_text="requests without a key").count() == 1

    await until(shown)


async def _drawn(page: Page) -> bool:
    await page.reload()
    await page.wait_for_selector(".live.on")
    return await page.locator("figure[data-chart=tokens] canvas").count() == 1


async def test_a_lost_hits_cause_is_found(page: Page, plane: Watched) -> None:
    decision = await lost(plane)
    await page.get_by_role("link", name="Lost hits").click()
    await expect(page.locator("tr[data-cause]").first).to_be_visible()
    total = _number(await page.locator("#lost-total").inner_text())
    cells = await page.locator("tr[data-cause] td[data-label=Tokens]").all_inner_texts()
    assert sum(map(_number, cells)) == pytest.approx(total, rel=0.01)
    evicted = page.locator("tr[data-cause=evicted]")
    await expect(evicted).to_contain_text("raise prefixCache.budgetMiB")
    await expect(page.locator("figure[data-causes] canvas")).to_be_visible()
    await page.get_by_role("link", name="Requests", exact=True).click()
    await page.get_by_label("Decision or request id").fill(decision)
    await page.get_by_role("button", name="Search").click()
    await expect(page.get_by_role("heading", name=f"Request {decision}")).to_be_visible()
    await expect(page.locator("main")).to_contain_text("prompt tokens were computed")
    await expect(page.locator("ul.parts")).to_contain_text("evicted")
    await expect(page.locator("ul.parts")).to_contain_text("raise prefixCache.budgetMiB")
    assert await page.locator("svg.bar.big rect").count() > 1
    assert await page.locator("ol.legs li").count() == 1


def _number(text: str) -> int:
    return int(text.replace(",", ""))


async def test_a_search_narrows_while_one_types(page: Page, plane: Watched) -> None:
    await plane.chat("a request to be found")
    await page.get_by_role("link", name="Requests", exact=True).click()
    rows = page.locator("#results tbody tr")
    await expect(rows.first).to_be_visible()
    await page.get_by_label("Tenant").fill("nobody")
    await page.get_by_label("Tenant").press("Tab")
    await expect(page.locator("#results .empty")).to_contain_text("No request that is remembered fits")
    assert "tenant=nobody" in page.url


async def test_a_key_is_rotated(page: Page, plane: Watched) -> None:
    await page.get_by_role("link", name="Tenants").click()
    await page.get_by_label("Name").fill("acme")
    await page.get_by_role("button", name="Make it").click()
    await page.get_by_role("button", name="Make a key").click()
    first = await page.locator("#new-key").inner_text()
    await page.get_by_label("Rotate").select_option("at once")
    await page.get_by_role("button", name="Rotate").click()
    await expect(page.locator("#new-key")).not_to_have_text(first)
    second = await page.locator("#new-key").inner_text()
    try:
        assert [(await plane.chat("x", key=key))[0] for key in (first, second)] == [401, 200]
        await page.reload()
        assert await page.locator("#new-key").count() <= 1
        await page.goto(f"{plane.plane.internal}/console/tenants/acme")
        await expect(page.locator("#new-key")).to_have_count(0)
        await page.get_by_role("button", name=re.compile("^Revoke")).first.click()
        await expect(page.get_by_role("status")).to_contain_text("is refused from now on")
        assert (await plane.chat("x", key=second))[0] == 401
    finally:
        await plane.admin("DELETE", "/tenants/acme")
        await plane.admin("POST", "/access/open")


async def test_limits_are_set(page: Page, plane: Watched) -> None:
    await plane.admin("POST", "/tenants", {"name": "limited"})
    try:
        await page.goto(f"{plane.plane.internal}/console/tenants/limited")
        tokens = page.get_by_label("Tokens a minute", exact=True)
        await tokens.fill("0")
        await page.get_by_role("button", name="Set the limits").click()
        assert await tokens.evaluate("field => field.validity.rangeUnderflow"), "the browser does not send it"
        await tokens.fill("5000")
        await page.get_by_label("Priority").fill("7")
        await page.get_by_role("button", name="Set the limits").click()
        await expect(page.get_by_role("status")).to_have_text("The limits hold from now on.")
        held = await plane.admin("GET", "/tenants/limited")
        assert (held["tokensPerMinute"], held["requestsAtOnce"], held["priority"]) == (5000, None, 7)
        await page.get_by_label("Tokens a minute", exact=True).fill("")
        await page.keyboard.press("Enter")
        await expect(page.locator("dl.facts-list")).to_contain_text("no limit")
        assert (await plane.admin("GET", "/tenants/limited"))["tokensPerMinute"] is None
    finally:
        await plane.admin("DELETE", "/tenants/limited")


async def test_a_flush_shows_first_what_would_go(page: Page, plane: Watched) -> None:
    assert (await plane.chat(f"{LONG} to be flushed"))[0] == 200
    await until(lambda: _holding(plane))
    await page.get_by_role("link", name="Flush").click()
    await page.get_by_label("What is to go").select_option("pool")
    await page.get_by_label("Its name, or the text").fill("default/demo")
    await page.get_by_role("button", name="Show what would go").click()
    await expect(page.get_by_role("heading", name="What would go")).to_be_visible()
    await expect(page.get_by_role("status")).to_contain_text("would be evicted")
    assert await _holding(plane)
    await page.get_by_role("button", name=re.compile(r"^Evict \d+ blocks")).click()
    await expect(page.get_by_role("status")).to_contain_text("were evicted")
    await until(lambda: _empty(plane))


async def _holding(plane: Watched) -> bool:
    return any(one["heldBlocks"] > 20 for one in (await plane.admin("GET", "/workers"))["items"])


async def test_a_control_plane_that_is_gone_is_told(page: Page) -> None:
    gone = re.compile(r"/console/($|events)")
    await page.route(gone, lambda route: route.abort())
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await expect(page.locator("#lost")).to_contain_text("cannot be reached")
    await expect(page.locator("#live-state")).to_have_text("not live")
    await page.unroute(gone)
    await expect(page.locator("#live-state")).to_have_text("live")
    await expect(page.locator("#lost")).to_be_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1600, "light")])
async def test_every_view_is_for_everybody(page: Page, plane: Watched, axe: str, width: int, scheme: str) -> None:
    _, decision = await plane.chat(f"{LONG} for everybody")
    await plane.admin("POST", "/tenants", {"name": "shown"})
    await until(lambda: _told(plane, decision))
    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    await page.set_viewport_size({"width": width, "height": 900})
    for view in (*VIEWS, f"/requests/{decision}", "/tenants/shown", "/docs/worker", "/sign-in"):
        await page.goto(f"{plane.plane.internal}/console{view}")
        assert await serious(page, axe) == [], view
        assert await page.evaluate("document.scrollingElement.scrollWidth") <= width, view
    await plane.admin("DELETE", "/tenants/shown")


async def test_the_keyboard_alone_will_do(page: Page) -> None:
    await page.reload()
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "content"
    details = page.locator("details").first
    shown = await details.get_attribute("open")
    await details.locator("summary").focus()
    await page.keyboard.press("Enter")
    assert await details.get_attribute("open") != shown


async def test_a_crowd_is_shown_and_followed(chromium: Browser, crowd: str, axe: str) -> None:
    context = await chromium.new_context(viewport={"width": 1600, "height": 1000})
    page, heard = await opened(context)
    async with aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with http.post(f"{crowd}/console/sign-in-links", headers=headers) as answer:
            await page.goto(crowd + (await answer.json())["path"])
    await page.wait_for_selector(".live.on")
    assert await page.locator("tbody tr[id^=pool-]").count() == 20
    assert await page.locator("tr[id^=worker-]").count() == 300
    assert await page.locator("details[open]").count() == 0
    first = page.locator("tbody tr[id^=pool-]").first
    before = await first.inner_text()
    await expect(first).not_to_have_text(before)
    await first.get_by_role("link").click()
    await expect(page.locator("details[open] tr[id^=worker-]").first).to_be_visible()
    await page.get_by_label("only those with a problem").check()
    assert await page.locator("details[open] tr[data-state=ready]:visible").count() == 0
    assert await serious(page, axe) == []
    await page.set_viewport_size({"width": 400, "height": 900})
    assert await page.evaluate("document.scrollingElement.scrollWidth") <= 400
    await context.close()
    assert heard.lines == []
