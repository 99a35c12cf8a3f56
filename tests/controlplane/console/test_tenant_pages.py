"""Tenants in the console: their keys and limits, page by page, and only for who may."""

import re
from html import unescape

import httpx
import pytest

from cachefleet_controlplane.console.pages import tenant_pages
from cachefleet_controlplane.console.pages.tenant_limits import FIELDS
from cachefleet_controlplane.internal_auth.admin_rights import TENANTS
from cachefleet_controlplane.internal_auth.authorizer import Asked
from tests.controlplane.admin.conftest import Doorkeeper
from tests.controlplane.console.conftest import Said
from tests.controlplane.console.test_usage_page import used

SCRIPT = "<script>alert(1)</script>"


async def test_keys_are_made_rotated_and_revoked(browser: httpx.AsyncClient, csrf: str) -> None:
    made = await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    assert made.headers["location"] == "/console/tenants/acme"
    first = await browser.post("/tenants/acme/keys", data={"csrf": csrf})
    assert "shown this once" in first.text
    assert "This is the first key: every request is asked for one from now on" in first.text
    key = first.text.partition('id="new-key">')[2].partition("<")[0]
    assert key.startswith("cf-")
    second = await browser.post("/tenants/acme/keys/rotate", data={"csrf": csrf, "grace": "0"})
    assert "shown this once" in second.text
    assert "first key: every" not in second.text
    page = (await browser.get("/tenants/acme")).text
    assert key not in page
    assert "shown this once" not in page
    newest = page.split('name="key" value="')[-1].partition('"')[0]
    revoked = await browser.post("/tenants/acme/keys/revoke", data={"csrf": csrf, "key": newest})
    assert "is refused from now on" in revoked.text
    assert "Requests need an API key" in (await browser.get("/tenants")).text


async def test_a_keys_own_limits_are_shown(browser: httpx.AsyncClient, csrf: str, admin: Said) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    await browser.post("/tenants/acme/keys", data={"csrf": csrf})
    assert '<td data-label="Own limits">none</td>' in (await browser.get("/tenants/acme")).text
    key = {"id": "1", "hint": "cf-Zm9vYm", "state": "active", "created": "2027-01-15T08:00:00Z", "models": []}
    own = {"expires": None, "revoked": None, "tokensPerDay": 5000, "spendPerMonth": 2.5}
    admin.answers["GET", "/tenants/acme/keys"] = (200, {"items": [key | own]})
    shown = (await browser.get("/tenants/acme")).text
    assert "tokens a day 5,000, spending a month 2.5" in " ".join(shown.split())


async def test_limits_are_set_and_taken_away(browser: httpx.AsyncClient, csrf: str, doorkeeper: Doorkeeper) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    shown = limits_form((await browser.get("/tenants/acme")).text)
    limits = {field.name: "" for field in FIELDS}
    assert shown | {"etag": ""} == {"etag": ""} | limits | {"priority": "50", "weight": "100"}
    form = shown | {"csrf": csrf, "tokensPerMinute": "200000", "requestsAtOnce": " 4 ", "spendPerMonth": "19.99"}
    changed = await browser.post("/tenants/acme/limits", data=form)
    assert (changed.status_code, "The limits hold from now on." in changed.text) == (200, True)
    assert Asked("update", name="acme", resource=TENANTS) in doorkeeper.asked
    for words in ("<dd>200,000</dd>", "<dd>4</dd>", "<dd>50</dd>", "<dd>19.99</dd>"):
        assert words in changed.text, words
    again = limits_form(changed.text) | {"csrf": csrf, "tokensPerMinute": "", "priority": "0"}
    page = (await browser.post("/tenants/acme/limits", data=again)).text
    for words in ("<dd>no limit</dd>", "<dd>4</dd>", "<dd>0</dd>"):
        assert words in page, words


@pytest.mark.parametrize("sent", ["0", "-1", "1.5", "2147483648", "9" * 50, "ten", "1_0", "\u0663", "1e3", SCRIPT])
async def test_a_limit_out_of_range_is_told(browser: httpx.AsyncClient, csrf: str, sent: str) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    form = limits_form((await browser.get("/tenants/acme")).text) | {"csrf": csrf, "requestsAtOnce": "7"}
    wrong = await browser.post("/tenants/acme/limits", data=form | {"tokensPerMinute": sent})
    told = "Tokens a minute: a whole number from 1 to 2,147,483,647, or nothing for no limit."
    assert (wrong.status_code, told in wrong.text) == (422, True)
    assert limits_form(wrong.text)["requestsAtOnce"] == "7", "what was sent stands in the form"
    assert limits_form((await browser.get("/tenants/acme")).text)["requestsAtOnce"] == ""
    assert "<script>alert" not in wrong.text


@pytest.mark.parametrize("sent", ["0", "-1", "1000000.1", "0.0000001", "1e3", "1.2.3", "nan", "."])
async def test_an_amount_out_of_range_is_told(browser: httpx.AsyncClient, csrf: str, sent: str) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    form = limits_form((await browser.get("/tenants/acme")).text) | {"csrf": csrf, "spendPerDay": sent}
    wrong = await browser.post("/tenants/acme/limits", data=form)
    told = "Spending a day: a number from 0.000001 to 1,000,000, or nothing for no limit."
    assert (wrong.status_code, told in wrong.text) == (422, True)


async def test_every_wrong_limit_is_named(browser: httpx.AsyncClient, csrf: str) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    wrong = await browser.post("/tenants/acme/limits", data={"csrf": csrf, "priority": "", "requestsAtOnce": "0"})
    for words in ("Requests at once: a whole number from 1 to", "Priority: a whole number from 0 to 100."):
        assert words in wrong.text, words


async def test_a_tenant_that_others_changed_meanwhile_stays(browser: httpx.AsyncClient, csrf: str) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    form = limits_form((await browser.get("/tenants/acme")).text) | {"csrf": csrf}
    await browser.post("/tenants/acme/limits", data=form | {"priority": "7"})
    late = await browser.post("/tenants/acme/limits", data=form | {"priority": "9"})
    assert (late.status_code, "changed by somebody else meanwhile" in late.text) == (412, True)
    assert limits_form(late.text)["priority"] == "7"


async def test_limits_that_cannot_be_set(browser: httpx.AsyncClient, admin: Said, csrf: str) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    admin.answers["PATCH", "/tenants/acme"] = (409, {"detail": "a database of its own"})
    answer = await browser.post("/tenants/acme/limits", data={"csrf": csrf, "priority": "7"})
    assert (answer.status_code, "a database of its own" in answer.text) == (409, True)
    assert admin.asked[-1][3] == {"priority": 7}, "what the form lacks stays"
    assert (await browser.post("/tenants/nobody/limits", data={"csrf": csrf, "priority": "7"})).status_code == 404


def limits_form(page: str) -> dict[str, str]:
    """The fields of the form for limits, with what stands in them."""
    form = page.partition('/limits"')[2].partition("</form>")[0]
    found = re.findall(r'name="(\w+)"[^>]*? value="([^"]*)"', form)
    return {name: unescape(value) for name, value in found if name != "csrf"}


async def test_tenants_are_shown_page_by_page(
    browser: httpx.AsyncClient, csrf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_pages, "PAGE", 2)
    for name in ("a", "b:1", "c"):
        await browser.post("/tenants", data={"csrf": csrf, "name": name})
    first = (await browser.get("/tenants")).text
    assert ('<a href="/console/tenants/a">' in first, '<a href="/console/tenants/c">' in first) == (True, False)
    assert 'href="/console/tenants?after=b%3A1"' in first
    last = (await browser.get("/tenants?after=b%3A1")).text
    assert ('<a href="/console/tenants/a">' in last, '<a href="/console/tenants/c">' in last) == (False, True)
    assert "More" not in last


async def test_cache_contracts_are_shown_met_or_not(browser: httpx.AsyncClient, admin: Said) -> None:
    page = (await browser.get("/tenants")).text
    assert "no: evicted" in page
    assert page.count("50.0 %") == 3, "of the hour, day and month"
    admin.answers["GET", "/contracts"] = (200, {"items": []})
    assert "Cache contracts" not in (await browser.get("/tenants")).text


async def test_use_without_tenants_is_shown(browser: httpx.AsyncClient, admin: Said, csrf: str) -> None:
    rows = [used(tenant="default"), used(tenant="gone")]
    admin.answers["GET", "/usage"] = (200, {"items": rows})
    page = (await browser.get("/tenants")).text
    for words in ("There is no tenant", "default <small>requests without a key</small>", "gone <small>deleted</small>"):
        assert words in page, words
    assert (page.count('class="number">7</td>'), page.count("25.0 %")) == (2, 2)
    await browser.post("/tenants", data={"csrf": csrf, "name": "default"})
    page = (await browser.get("/tenants")).text
    assert ("There is no tenant" in page, "requests without a key" in page) == (False, False)


async def test_changes_need_the_forms_token_and_the_rights(
    browser: httpx.AsyncClient, csrf: str, doorkeeper: Doorkeeper
) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    for path in ("", "/acme/limits", "/acme/keys", "/acme/keys/rotate", "/acme/keys/revoke"):
        assert (await browser.post(f"/tenants{path}", data={"name": "x"})).status_code == 403, path
    assert (await browser.post("/tenants", data={"csrf": csrf, "name": "no good!"})).status_code == 422
    assert (await browser.post("/tenants/acme/keys/rotate", data={"csrf": csrf, "grace": "9"})).status_code == 400
    assert (await browser.get("/tenants/nobody")).status_code == 404
    unnamed = await browser.post("/tenants/acme/keys/revoke", data={"csrf": csrf, "key": ""})
    assert (unnamed.status_code, "status 307" in unnamed.text) == (200, True)
    doorkeeper.forbidden = True
    assert (await browser.post("/tenants", data={"csrf": csrf, "name": "x"})).status_code == 403


async def test_readers_see_no_buttons(browser: httpx.AsyncClient, csrf: str, doorkeeper: Doorkeeper) -> None:
    await browser.post("/tenants", data={"csrf": csrf, "name": "acme"})
    doorkeeper.verbs = {"get", "list"}
    page = (await browser.get("/tenants/acme")).text
    assert "may not change keys" in page
    assert "may not change limits" in page
    assert "Set the limits" not in page
    assert "Make a key" not in page
    assert "A new tenant" not in (await browser.get("/tenants")).text
    assert (await browser.post("/tenants/acme/keys", data={"csrf": csrf})).status_code == 403
    assert (await browser.post("/tenants/acme/limits", data={"csrf": csrf, "priority": "1"})).status_code == 403
