"""The page of usage: sums of days by tenant, model or day, and the rows that it leaves out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from cachefleet_controlplane.console.pages.usage_page import MOST
from tests.controlplane.console.conftest import Said

ROW = {
    "hour": "2027-01-14T00:00:00Z",
    "model": "demo",
    "requests": 7,
    "promptTokens": 400,
    "cachedTokens": 100,
    "computedTokens": 300,
    "completionTokens": 21,
    "recomputedTokens": 0,
    "charged": "0",
    "saved": "0",
    "wasted": "0",
    "computeSaved": "0",
    "computeWasted": "0",
}


def used(**changes: Any) -> dict[str, Any]:
    return ROW | {"tenant": "acme"} | changes


def names(page: str) -> list[str]:
    """Of the table's rows."""
    return [part.partition("</th>")[0] for part in page.split('<th scope="row">')[1:]]


@pytest.mark.parametrize(
    ("by", "expected"),
    [("tenant", ["umbrella", "acme"]), ("model", ["m2", "demo"]), ("hour", ["2027-01-15", "2027-01-14"])],
)
async def test_sums_are_by_tenant_model_or_day(
    browser: httpx.AsyncClient, admin: Said, by: str, expected: list[str]
) -> None:
    dear = used(tenant="umbrella", model="m2", hour="2027-01-15T00:00:00Z", charged="1000.000000000001", saved="0.5")
    rows = [used(), used(charged="0.25", wasted="0.125"), dear]
    admin.answers["GET", "/usage"] = (200, {"items": rows, "truncated": False})
    page = (await browser.get("/usage", params={"by": by, "days": "7"})).text
    assert names(page) == expected
    for words in ('id="charged">1,000.25<', "<b>21</b> requests", ">14</td>", ">0.2500</td>", ">0.1250</td>"):
        assert words in page, words
    asked = parse_qs(admin.asked[-1][2])
    first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=6)
    assert (asked["by"], datetime.fromisoformat(asked["from"][0])) == (["day"], first)


async def test_without_prices_tokens_are_shown(browser: httpx.AsyncClient, admin: Said) -> None:
    admin.answers["GET", "/usage"] = (200, {"items": [used()], "truncated": False})
    page = (await browser.get("/usage", params={"by": "<b>", "days": "8"})).text
    assert (names(page), "25.0 %" in page, "of devices' time" in page) == (["acme"], True, False)


async def test_what_is_left_out_is_told(browser: httpx.AsyncClient, admin: Said) -> None:
    rows = [used(tenant=f"t{number}") for number in range(MOST + 3)]
    admin.answers["GET", "/usage"] = (200, {"items": rows, "truncated": True})
    page = (await browser.get("/usage")).text
    assert (len(names(page)), "3 more rows" in page, "ask for fewer days" in page) == (MOST, True, True)
    admin.answers["GET", "/usage"] = (200, {"items": [], "truncated": False})
    assert "Nothing was used in this time." in (await browser.get("/usage")).text
    admin.answers["GET", "/usage"] = (503, {"detail": "the store is gone"})
    assert "the store is gone" in (await browser.get("/usage")).text
