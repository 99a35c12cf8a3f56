"""The document names what the gateway has, and nothing else."""

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.openapi import OPENAPI_PATH, document
from tests.controlplane.gateway.harness import MODEL, engine, front

ANTHROPIC = "#/components/schemas/AnthropicError"


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    told = json.loads(document())
    return {(path, method): one for path, methods in told["paths"].items() for method, one in methods.items()}


async def test_it_is_served() -> None:
    async with front([]) as gate, gate.http.get(gate.url + OPENAPI_PATH) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert await answer.read() == document()


async def test_it_names_every_path_and_method() -> None:
    """What is not named is a 404 or 405, what is named is none."""
    async with engine() as worker, front([worker]) as gate:
        named = {path for path, _ in operations()}
        assert named == {
            *gate.gateway._routes._methods.keys() - {OPENAPI_PATH},
            "/v1/models/{model}",
            "/v1/responses/{response_id}",
            "/v1/responses/{response_id}/input_items",
            "/v1/responses/{response_id}/cancel",
        }
        for path in named:
            for method in ("get", "post", "delete", "put"):
                url = gate.url + path.format(model=MODEL, response_id="resp_1")
                async with gate.http.request(method, url, data=b"{}") as answer:
                    if (path, method) in operations():
                        assert answer.status != 405
                        assert str(answer.status) in operations()[path, method]["responses"]
                    else:
                        assert answer.status == 405


@pytest.mark.parametrize(("path", "method"), sorted(operations()))
def test_errors_have_the_shape_of_their_api(path: str, method: str) -> None:
    for status, answer in operations()[path, method]["responses"].items():
        if status == "101":
            continue
        schema = answer["content"]["application/json"]["schema"]["$ref"]
        assert (schema == ANTHROPIC) == (path.startswith("/v1/messages") and status != "200")
