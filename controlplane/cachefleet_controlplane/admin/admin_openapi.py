"""The admin API's OpenAPI document, in which all errors are problem JSON. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pydantic.json_schema import models_json_schema

from cachefleet_controlplane.admin.findings.finding import FindingList
from cachefleet_controlplane.admin.problem_responses import MEDIA_TYPE
from cachefleet_controlplane.admin.schemas import Problem
from cachefleet_controlplane.cache_contracts.contract_report import ContractStates
from cachefleet_controlplane.workers.views import IdleCacheList
from cachefleet_core.fleet_status.capacity_facts import CapacityList
from cachefleet_core.fleet_status.pool_facts import PoolDetail, PoolList
from cachefleet_core.fleet_status.worker_facts import WorkerList

Responses = dict[int | str, dict[str, Any]]

_REF: Final = "#/components/schemas/{model}"
_ANSWERS: Final = (PoolList, PoolDetail, WorkerList, FindingList, IdleCacheList, CapacityList, ContractStates)
_PUBLISHED: Final = {
    "PoolFacts": "Pool",
    "ContractFacts": "Contract",
    "WorkerFacts": "Worker",
    "AdapterReport": "Adapters",
    "CapacityFacts": "Capacity",
    "SizeFacts": "CapacityAtSize",
    "TenantCurveFacts": "CapacityOfTenant",
    "ConfirmationFacts": "CapacityConfirmation",
    "AdviceFacts": "CapacityAdvice",
    "ScaleInFacts": "ScaleIn",
}
"""Names of schemas that are not those of their types, as clients that are generated from the document have them."""


def refusals(*statuses: int) -> Responses:
    """Error statuses of a route; ``with_problems`` fills in what they hold.

    FastAPI would build a model given here for each status of each route: a tenth of a second at every start.
    """
    return {status: {} for status in statuses}


ERRORS: Final = refusals(400, 401, 403, 413, 422, 503)
"""Error statuses that every route may answer with."""


def answers(document: type[msgspec.Struct]) -> Responses:
    """The answer of a route that msgspec encodes."""
    reference = _REF.format(model=_PUBLISHED.get(document.__name__, document.__name__))
    return {200: {"content": {"application/json": {"schema": {"$ref": reference}}}}}


def with_problems(document: Mapping[str, Any]) -> dict[str, Any]:
    """FastAPI's document with problem JSON as the content of all errors."""
    paths = {
        path: {method: _operation(operation, method, path) for method, operation in operations.items()}
        for path, operations in document["paths"].items()
    }
    _, problems = models_json_schema([(Problem, "serialization")], ref_template=_REF)
    schemas = document["components"]["schemas"] | problems["$defs"] | _answer_schemas()
    components = {**document["components"], "schemas": dict(sorted(schemas.items()))}
    return {**document, "paths": paths, "components": components}


def _answer_schemas() -> dict[str, Any]:
    """Schemas of answers that msgspec makes. Answers have every field, so all are required."""
    _, schemas = msgspec.json.schema_components(_ANSWERS, ref_template=_REF.replace("model", "name"))
    text = msgspec.json.encode(schemas).decode()
    for name, published in _PUBLISHED.items():
        text = text.replace(f'/{name}"', f'/{published}"')
    found: dict[str, Any] = msgspec.json.decode(text)
    return {_PUBLISHED.get(name, name): _whole(schema) for name, schema in found.items()}


def _whole(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with all fields required, and words without the indentation that they have in the source."""
    words = inspect.cleandoc(schema["description"])
    return {**schema, "required": list(schema["properties"]), "description": words}


def operation_id(method: str, path: str) -> str:
    """A name for generated clients: "getTenantsByTenantKeys" for ``GET /tenants/{tenant}/keys``."""
    parts = [f"by-{part[1:-1]}" if part.startswith("{") else part for part in path.strip("/").split("/")]
    return method + "".join(word.capitalize() for word in re.split(r"[-_]", "-".join(parts)))


def _operation(operation: Mapping[str, Any], method: str, path: str) -> dict[str, Any]:
    responses = {
        status: _problem(answer) if int(status) >= 400 else answer for status, answer in operation["responses"].items()
    }
    return {**operation, "operationId": operation_id(method, path), "responses": responses}


def _problem(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {**answer, "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model=Problem.__name__)}}}}
