"""The admin API's OpenAPI document, with its errors as they are: problem JSON and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachefleet_controlplane.admin.problems import MEDIA_TYPE

_JSON = "application/json"


def told(document: Mapping[str, Any]) -> dict[str, Any]:
    """What FastAPI makes of the routes, which takes every answer with a model for plain JSON."""
    paths = {
        path: {method: _operation(operation) for method, operation in operations.items()}
        for path, operations in document["paths"].items()
    }
    return {**document, "paths": paths}


def _operation(operation: Mapping[str, Any]) -> dict[str, Any]:
    responses = {
        status: _problem(answer) if int(status) >= 400 else answer for status, answer in operation["responses"].items()
    }
    return {**operation, "responses": responses}


def _problem(answer: Mapping[str, Any]) -> dict[str, Any]:
    content = {MEDIA_TYPE if kind == _JSON else kind: schema for kind, schema in answer["content"].items()}
    return {**answer, "content": content}
