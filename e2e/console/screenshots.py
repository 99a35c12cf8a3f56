"""``python -m e2e.console.screenshots``: the pictures of the console in docs/images/, from a fleet that is at work."""

from __future__ import annotations

import asyncio
import io
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.async_api import Page, async_playwright

from e2e.console.conftest import CHROMIUM
from e2e.console.console_fleet import Watched, watched
from tests.controlplane.gateway.harness import POOL

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
SECONDS: Final = 90
"""Of traffic before the pictures: the charts have a point every ten."""
COLOURS: Final = 256
WIDTH: Final = 1200


def said(number: int, words: int) -> str:
    """A prompt of a kind, always the same."""
    chosen = random.Random(number)
    return " ".join(chosen.choice(("cache", "prefix", "block", "worker", "fleet", "token")) for _ in range(words))


async def talks(plane: Watched, key: str, *, seconds: float) -> None:
    """Conversations that grow and begin alike."""
    ended, turn = asyncio.get_running_loop().time() + seconds, 0
    while asyncio.get_running_loop().time() < ended:
        talk = turn % 9
        await plane.chat(f"{said(1, 60)} {said(100 + talk, 40 + 4 * (turn // 9 % 12))}", key=key, stream=True)
        turn += 1
        await asyncio.sleep(0.15)


async def traffic(plane: Watched, key: str) -> str:
    """Talks, some that were evicted meanwhile; the decision id of one that lost much."""
    await talks(plane, key, seconds=SECONDS)
    text = f"{said(1, 60)} {said(7, 200)}"
    for _ in range(2):
        await plane.chat(text, key=key)
    await asyncio.sleep(1.5)
    await plane.admin("POST", "/flush", {"scope": {"pool": POOL}, "dryRun": False})
    await asyncio.sleep(1.5)
    await plane.chat(f"{said(1, 60)} {said(8, 20)}", key=key)
    await asyncio.sleep(1.5)
    _, decision = await plane.chat(text, key=key)
    await talks(plane, key, seconds=SECONDS / 3)
    return decision


async def picture(page: Page, name: str, *, most: int = 1000) -> None:
    """Write a picture of the page, of few colours, as high as the page is and no higher than ``most``."""
    await page.wait_for_timeout(500)
    height = await page.evaluate("document.documentElement.scrollHeight")
    width = (page.viewport_size or {"width": WIDTH})["width"]
    shot = await page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": min(height, most)})
    image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(FOLDER / f"console-{name}.png", optimize=True)
    print(f"docs/images/console-{name}.png", (FOLDER / f"console-{name}.png").stat().st_size // 1024, "KiB")


async def pictures(page: Page, plane: Watched, decision: str) -> None:
    """All of them."""
    await page.goto(await plane.link())
    await page.wait_for_selector(".live.on")
    await page.wait_for_timeout(5000)
    await picture(page, "fleet")
    at = f"{plane.plane.internal}/console"
    for name, path in (("request", f"/requests/{decision}"), ("lost-hits", "/lost-hits"), ("prefixes", "/prefixes")):
        await page.goto(at + path)
        await picture(page, name)
    await page.goto(f"{at}/capacity")
    await page.get_by_role("button", name="Simulate").first.click()
    await page.get_by_text("simulated with the last").first.wait_for(timeout=120_000)
    await picture(page, "capacity", most=1400)
    await page.goto(f"{at}/tenants/acme")
    await page.get_by_role("button", name="Rotate").click()
    await page.evaluate("document.getElementById('new-key').textContent = 'cf-' + 'x'.repeat(43)")
    await picture(page, "tenant")
    await page.goto(f"{at}/flush")
    await page.get_by_label("Its name, or the text").fill(POOL)
    await page.get_by_role("button", name="Show what would go").click()
    await picture(page, "flush")
    await page.emulate_media(color_scheme="dark")
    await page.set_viewport_size({"width": 400, "height": 900})
    await page.goto(f"{at}/")
    await page.wait_for_selector(".live.on")
    await page.wait_for_timeout(2500)
    await picture(page, "phone", most=1100)


async def main() -> None:
    """Run a fleet, let it work, take the pictures."""
    if CHROMIUM is None:
        sys.exit("no chromium; on Debian: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        async with watched(Path(name)) as plane, async_playwright() as playwright:
            await plane.admin("POST", "/tenants", {"name": "acme", "tokensPerMinute": 200_000})
            key = (await plane.admin("POST", "/tenants/acme/keys", {}))["key"]
            decision = await traffic(plane, key)
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = await (await browser.new_context(viewport={"width": WIDTH, "height": 800})).new_page()
            page.on("dialog", lambda dialog: dialog.accept())
            await pictures(page, plane, decision)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
