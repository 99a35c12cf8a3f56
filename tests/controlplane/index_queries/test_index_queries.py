"""What other routers are told of the index: shapes of Dynamo's and Mooncake's queries, held to what workers report."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from cachefleet_controlplane.admin.problem_responses import http_problem
from cachefleet_controlplane.index_queries.index_queries import MAX_TOKENS, IndexQueries
from cachefleet_controlplane.index_queries.query_routes import query_routes
from cachefleet_controlplane.index_queries.query_shapes import worker_number
from cachefleet_controlplane.internal_auth.authorizer import Asked
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.block_keys import Tier, unpack_keys
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId, tenant_salt
from tests.controlplane.admin.conftest import TOKEN, Doorkeeper
from tests.controlplane.chains import stored
from tests.controlplane.fleets import MODEL, LiveFleet, pool, ranked, view
from tests.controlplane.frames import delta

SALT_KEY: Final = b"s" * 32
TOKENS: Final = list(range(70))
"""Four whole blocks of 16, and six tokens more."""
HEADERS: Final = {"authorization": f"Bearer {TOKEN}"}


class Directory:
    """Two tenants."""

    async def informed(self) -> None:
        pass

    def named(self, tenant: str | None) -> TenantRecord:
        if tenant in {None, "acme"}:
            return TenantRecord(name=TenantId(tenant or DEFAULT_TENANT))
        raise ApiError(404, f"There is no tenant `{tenant}`.", param="tenant")


class Asking:
    """A fleet, and a client of the routes."""

    def __init__(self, fleet: LiveFleet, *, max_bytes: int = 8 << 20) -> None:
        self.fleet = fleet
        self.doorkeeper = Doorkeeper()
        queries = IndexQueries(fleet, Directory(), salt_key=SALT_KEY, clock=lambda: fleet.now)
        routes = query_routes(queries, authorize=self.doorkeeper, user_of=lambda _: "", max_bytes=max_bytes)
        app = Starlette(routes=routes, exception_handlers={HTTPException: http_problem})
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://control-plane")

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body)
        return await self.client.post(path, content=content, headers=HEADERS | headers)

    async def told(self, path: str, **body: Any) -> Any:
        answer = await self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, path: str, **body: Any) -> tuple[int, str]:
        answer = await self.post(path, body)
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code, answer.json()["detail"]


def keys_of(fleet: LiveFleet, tokens: list[int], tenant: str = DEFAULT_TENANT) -> list[int]:
    """Block keys as an agent makes them of what its engine holds for a tenant."""
    keyer = fleet.keyer(MODEL, salt=tenant_salt(SALT_KEY, TenantId(tenant)))
    assert keyer is not None
    return list(map(int, unpack_keys(keyer.packed_keys(tokens))))


@pytest.fixture
def asking() -> Asking:
    """demo-0 holds four blocks of the default tenant's prompt, demo-1 two, demo-2 none."""
    fleet = LiveFleet()
    fleet.update_pools([view(pool(), ["demo-0", "demo-1", "demo-2"])])
    for name in ("demo-2", "demo-1", "demo-0"):
        fleet.report(name)
    keys = keys_of(fleet, TOKENS)
    fleet.report("demo-0", keys, epoch="e2")
    fleet.report("demo-1", keys[:2], epoch="e2")
    return Asking(fleet)


def full(name: str) -> str:
    return f"default/demo/{name}"


async def test_overlap_scores_have_the_members_of_dynamos_and_what_each_worker_holds(asking: Asking) -> None:
    told = await asking.told("/overlap_scores", model_name=MODEL, token_ids=TOKENS, router_config_override=None)
    assert told.keys() == {"block_size", "num_blocks", "workers", "shared_cache"}
    assert (told["block_size"], told["num_blocks"]) == (16, 4)
    assert told["shared_cache"] == {"enabled": False, "total_hit_blocks": 0, "ranges": [], "error": None}
    by_worker = {one["worker"]: one for one in told["workers"]}
    assert {name: one["device_blocks"] for name, one in by_worker.items()} == {
        full("demo-0"): 4,
        full("demo-1"): 2,
        full("demo-2"): 0,
    }
    assert by_worker[full("demo-1")] == {
        "worker_id": worker_number(full("demo-1")),
        "dp_rank": 0,
        "device_blocks": 2,
        "host_pinned_blocks": 2,
        "disk_blocks": 2,
        "host_pinned_extension_blocks": 0,
        "disk_extension_blocks": 0,
        "shared_beyond_device_blocks": None,
        "router_credit_blocks": 2.0,
        "worker": full("demo-1"),
        "endpoint": "http://demo-1",
    }
    assert [one["worker_id"] for one in told["workers"]] == sorted(map(worker_number, by_worker))


async def test_a_query_has_the_members_of_mooncakes_and_tokens_by_worker(asking: Asking) -> None:
    body = {"model": MODEL, "token_ids": TOKENS, "block_size": 16}
    assert await asking.told("/query", **body) == {
        "default": {
            full("demo-0"): {"longest_matched": 64, "GPU": 64, "DP": {"0": 64}, "CPU": 0, "DISK": 0},
            full("demo-1"): {"longest_matched": 32, "GPU": 32, "DP": {"0": 32}, "CPU": 0, "DISK": 0},
            full("demo-2"): {"longest_matched": 0, "GPU": 0, "DP": {"0": 0}, "CPU": 0, "DISK": 0},
        }
    }
    one = await asking.told("/query", **body, instance_id=full("demo-1"), tenant_id="default")
    assert list(one["default"]) == [full("demo-1")]


async def test_ranks_and_the_hosts_memory_are_told_apart() -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(ranked(2), ["demo-0"])])
    fleet.report(rank=0)
    keys = keys_of(fleet, TOKENS)
    link = fleet.report(rank=0, holds=keys[:1], epoch="e2")
    fleet.report(rank=1, holds=keys[:3])
    fleet.receive(link.connection, delta(1, stored(keys[1:3], keys[0], Tier.HOST)))
    asking = Asking(fleet)
    told = await asking.told("/overlap_scores", model_name=MODEL, token_ids=TOKENS)
    assert [
        (one["dp_rank"], one["device_blocks"], one["host_pinned_blocks"], one["router_credit_blocks"])
        for one in told["workers"]
    ] == [(0, 1, 3, 2.5), (1, 3, 3, 3.0)]
    assert (await asking.told("/query", model=MODEL, token_ids=TOKENS))["default"][full("demo-0")] == {
        "longest_matched": 48,
        "GPU": 48,
        "DP": {"0": 16, "1": 48},
        "CPU": 48,
        "DISK": 0,
    }


async def test_a_tenants_query_is_of_its_own_blocks(asking: Asking) -> None:
    told = await asking.told("/query", model=MODEL, token_ids=TOKENS, tenant_id="acme")
    assert {one["longest_matched"] for one in told["acme"].values()} == {0}
    asking.fleet.report("demo-2", keys_of(asking.fleet, TOKENS, "acme"), epoch="e2")
    told = await asking.told("/query", model=MODEL, token_ids=TOKENS, tenant_id="acme")
    assert told["acme"][full("demo-2")]["longest_matched"] == 64


async def test_the_group_of_an_overlap_query_is_the_models_namespace(asking: Asking) -> None:
    told = await asking.told("/overlap_scores", model_name=MODEL, routing_group="default", token_ids=TOKENS)
    assert told["num_blocks"] == 4
    assert (await asking.refused("/overlap_scores", model_name=MODEL, routing_group="other", token_ids=[1]))[0] == 404


async def test_workers_whose_reports_are_stale_hold_nothing(asking: Asking) -> None:
    asking.fleet.now += 6
    told = await asking.told("/query", model=MODEL, token_ids=TOKENS)
    assert {one["longest_matched"] for one in told["default"].values()} == {0}


async def test_while_nobody_has_told_how_keys_are_made_nothing_is_held() -> None:
    fleet = LiveFleet()
    fleet.update_pools([view(pool(), ["demo-0"])])
    told = await Asking(fleet).told("/overlap_scores", model_name=MODEL, token_ids=TOKENS)
    assert (told["num_blocks"], [one["device_blocks"] for one in told["workers"]]) == (4, [0])


async def test_queries_change_nothing(asking: Asking) -> None:
    before = asking.fleet.index.stats(), asking.fleet.view()
    await asking.told("/query", model=MODEL, token_ids=TOKENS)
    await asking.told("/overlap_scores", model_name=MODEL, token_ids=TOKENS)
    assert (asking.fleet.index.stats(), asking.fleet.view()) == before


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/query", {"token_ids": TOKENS}, 400, "missing required field `model`"),
        ("/query", {"model": MODEL}, 400, "`token_ids` is required"),
        ("/query", {"model": MODEL, "token_ids": "words"}, 400, "must be an array of whole numbers from 0 to"),
        ("/query", {"model": MODEL, "token_ids": [-1]}, 400, "must be an array of whole numbers from 0 to"),
        ("/query", {"model": MODEL, "token_ids": [1.5]}, 400, "must be an array of whole numbers from 0 to"),
        ("/query", {"model": MODEL, "token_ids": [[1]]}, 400, "must be an array of whole numbers from 0 to"),
        ("/query", {"model": MODEL, "token_ids": TOKENS, "block_size": 64}, 400, "is 64, the model's blocks have 16"),
        ("/query", {"model": MODEL, "token_ids": TOKENS, "cache_salt": "x"}, 400, "`cache_salt` must be left out"),
        ("/query", {"model": MODEL, "token_ids": TOKENS, "lora_name": "x"}, 400, "`lora_name` must be left out"),
        ("/query", {"model": MODEL, "token_ids": TOKENS, "lora_id": 7}, 400, "`lora_id` must be left out"),
        ("/query", {"model": MODEL, "token_ids": TOKENS, "tenant_id": "who"}, 404, "There is no tenant `who`"),
        ("/query", {"model": "gpt", "token_ids": TOKENS}, 404, "The model `gpt` does not exist"),
        ("/overlap_scores", {"model_name": 7, "token_ids": []}, 400, "Expected `str`, got `int` - at `$.model_name`"),
        ("/overlap_scores", {"block_hashes": [1], "token_ids": []}, 400, "`block_hashes` must be left out"),
        ("/overlap_scores", {"sequence_hashes": [1]}, 400, "`sequence_hashes` must be left out"),
        ("/overlap_scores", {"token_ids": [], "mm_routing_info": {}}, 400, "`mm_routing_info` must be left out"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_its_field(
    asking: Asking, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    told = await asking.refused(path, **body)
    assert told[0] == status
    assert words in told[1]


@pytest.mark.parametrize("path", ["/query", "/overlap_scores"])
async def test_a_body_that_is_no_json_or_is_too_long_is_refused(asking: Asking, path: str) -> None:
    assert (await asking.post(path, b"{")).status_code == 400
    assert (await asking.post(path, b"[]")).status_code == 400
    short = Asking(asking.fleet, max_bytes=1000)
    assert (await short.post(path, b" " * 1001)).status_code == 413
    tokens = b"1," * MAX_TOKENS + b"1"
    body = b'{"model":"%b","model_name":"%b","token_ids":[%b]}' % (MODEL.encode(), MODEL.encode(), tokens)
    answer = await asking.post(path, body)
    assert (answer.status_code, answer.json()["detail"]) == (
        400,
        f"`token_ids` must have at most {MAX_TOKENS} entries.",
    )


@pytest.mark.parametrize("path", ["/query", "/overlap_scores"])
async def test_who_may_not_list_decisions_is_told_nothing(asking: Asking, path: str) -> None:
    body = {"model": MODEL, "token_ids": TOKENS}
    assert (await asking.post(path, body, authorization="Bearer other")).status_code == 401
    asking.doorkeeper.forbidden = True
    answer = await asking.post(path, body)
    assert answer.status_code == 403
    assert "may not list decisions" in answer.json()["detail"]
    assert set(asking.doorkeeper.asked) == {Asked("list", resource="decisions")}
    assert (await asking.client.get(path, headers=HEADERS)).status_code == 405
