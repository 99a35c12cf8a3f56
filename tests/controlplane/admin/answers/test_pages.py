"""Pages of sorted lists."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.admin.answers.pages import page
from tests.controlplane.admin.conftest import Still
from tests.controlplane.fleet_views import fleet_view, worker_status


@given(names=st.sets(st.text(min_size=1, max_size=3), max_size=12), limit=st.integers(1, 13))
def test_pages_join_to_the_whole(names: set[str], limit: int) -> None:
    items, seen, after = sorted(names), list[str](), None
    while True:
        shown, after = page(items, str, after=after, limit=limit)
        seen += shown
        if after is None:
            break
        assert len(shown) == limit
    assert seen == items


def test_what_is_gone_since_the_last_page_leaves_no_gap() -> None:
    assert page(["a", "c", "d"], str, after="b", limit=1) == (["c"], "c")


@pytest.mark.parametrize(("query", "names", "following"), [("limit=2", "ab", True), ("limit=2&after=", "c", False)])
async def test_workers(client: httpx.AsyncClient, fleet: Still, query: str, names: str, *, following: bool) -> None:
    workers = [worker_status(name) for name in "abc"]
    fleet.shown = fleet_view(*workers)
    query = query + (workers[1].id.replace("#", "%23") if query.endswith("=") else "")
    told = (await client.get(f"/workers?{query}")).json()
    assert [one["name"] for one in told["items"]] == list(names)
    assert (told["next"] is not None, told["total"]) == (following, 3)


async def test_tenants(client: httpx.AsyncClient) -> None:
    for name in ("b", "C", "a"):
        assert (await client.post("/tenants", json={"name": name})).status_code == 201
    first = (await client.get("/tenants?limit=2")).json()
    rest = (await client.get("/tenants", params={"after": first["next"]})).json()
    assert [one["name"] for one in (*first["items"], *rest["items"])] == ["C", "a", "b"]
    assert rest["next"] is None
