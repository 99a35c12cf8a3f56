"""The route of explanations; what explains is the gateway's."""

from __future__ import annotations

import httpx
import pytest

from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.admin.conftest import Oracle
from tests.controlplane.admin.test_admin_app import assert_problem


async def test_it_answers_the_document_of_a_decision(client: httpx.AsyncClient, oracle: Oracle) -> None:
    answer = await client.post("/explain", params={"tenant": "acme"}, content=b'{"prompt": "x"}')
    assert answer.status_code == 200
    assert oracle.asked == [(b'{"prompt": "x"}', "acme")]
    shown = answer.json()
    assert (shown["id"], shown["tenant"], shown["candidates"][0]["matchedBlocks"]) == ("d7", "acme", 4)
    assert set(shown) == set(
        (await client.get("/openapi.json")).json()["components"]["schemas"]["Decision"]["properties"]
    )


async def test_what_a_client_would_be_told_is_a_problem_that_names_the_field(
    client: httpx.AsyncClient, oracle: Oracle
) -> None:
    oracle.error = ApiError(404, "The model `x` does not exist.", param="model", headers={"retry-after": "3"})
    answer = await client.post("/explain", content=b"{}")
    told = assert_problem(answer, 404)
    assert told["errors"] == [{"field": "body.model", "message": "The model `x` does not exist."}]
    assert answer.headers["retry-after"] == "3"


@pytest.mark.parametrize("tenant", ["", "A B", "x" * 129])
async def test_a_name_that_no_tenant_can_have_is_refused(
    client: httpx.AsyncClient, oracle: Oracle, tenant: str
) -> None:
    assert_problem(await client.post("/explain", params={"tenant": tenant}, content=b"{}"), 422)
    assert not oracle.asked


async def test_a_body_over_the_limit_is_413(client: httpx.AsyncClient, oracle: Oracle) -> None:
    assert_problem(await client.post("/explain", content=b" " * 2049), 413)
    assert not oracle.asked
