"""One browser, one control plane and one fleet that is made up for all tests of the console."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from e2e.console.axe import axe_source
from e2e.console.console_fleet import Watched, pictured, watched
from tests.fakes.big_fleet import BigFleet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAIT_MS = 60_000
"""Ends a hang, of actions and of expectations: a busy machine decides no test."""
expect.set_options(timeout=WAIT_MS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium; on Debian: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    async with watched(tmp_path_factory.mktemp("console")) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def crowd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The console's address over 300 workers in 20 pools."""
    async with pictured(tmp_path_factory.mktemp("crowd"), BigFleet()) as address:
        yield address


@pytest.fixture(scope="session")
def axe() -> str:
    return axe_source()


ABORTED = "net::ERR_FAILED"
"""Of a request that a test has made fail."""


class Heard:
    """What a page's console said that it should not have: errors of scripts, and what the page's policy forbids."""

    def __init__(self, page: Page) -> None:
        self.lines: list[str] = []
        page.on("console", lambda said: self._note(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self._note(str(error)))

    def _note(self, line: str) -> None:
        if ABORTED not in line:
            self.lines.append(line)


async def opened(context: BrowserContext) -> tuple[Page, Heard]:
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS)
    return page, Heard(page)


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser, plane: Watched) -> AsyncIterator[Page]:
    """A browser that has signed in by a link; its console must stay silent."""
    context = await chromium.new_context(viewport={"width": 1600, "height": 1000})
    page, heard = await opened(context)
    page.on("dialog", lambda dialog: dialog.accept())
    await page.goto(await plane.link())
    await page.wait_for_selector(".live.on")
    yield page
    await context.close()
    assert heard.lines == []
