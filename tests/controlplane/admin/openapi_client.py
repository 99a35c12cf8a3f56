"""A client made from an OpenAPI document: calls by operation id; every answer is held to the document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import requests
import schemathesis
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response

from tests.controlplane.admin.schema_cases import CHECKS

_SECONDS: Final = 60
_PLACES: Final = {"path": "path_parameters", "query": "query", "header": "headers"}


class OpenApiClient:
    """Calls operations by their ids; ``called`` are those that were."""

    def __init__(self, document: Mapping[str, Any], base_url: str, token: str) -> None:
        found = [
            one.ok()
            for one in schemathesis.openapi.from_dict(dict(document)).get_all_operations()
            if isinstance(one, Ok)
        ]
        self._base_url = base_url
        self._operations = {one.definition.raw["operationId"]: one for one in found}
        self._session = requests.Session()
        self._session.headers["authorization"] = f"Bearer {token}"
        self.called: set[str] = set()
        assert len(self._operations) == len(found), "ids are told apart"

    @property
    def ids(self) -> set[str]:
        """All operations."""
        return set(self._operations)

    def call(self, operation: str, *, body: Any = None, status: int = 200, **parameters: Any) -> Any:
        """What the operation answers; ``parameters`` by their names, "-" as "_". It must have that status."""
        self.called.add(operation)
        found = self._operations[operation]
        made: dict[str, Any] = {**self._placed(found, parameters), **({} if body is None else {"body": body})}
        case = found.Case(**made)
        if body is not None:
            case.media_type = "application/json"
        answer = self._session.request(**case.as_transport_kwargs(base_url=self._base_url), timeout=_SECONDS)
        assert answer.status_code == status, answer.text
        case.validate_response(Response.from_requests(answer, verify=False), checks=CHECKS)
        is_json = answer.headers.get("content-type", "").partition(";")[0].endswith("json")
        return answer.json() if is_json and answer.content else answer.text

    def close(self) -> None:
        """Close its connections."""
        self._session.close()

    @staticmethod
    def _placed(operation: Any, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        placed: dict[str, dict[str, Any]] = defaultdict(dict)
        places = {one["name"]: one["in"] for one in operation.definition.raw.get("parameters", ())}
        for name, value in given.items():
            known = name if name in places else name.replace("_", "-")
            placed[_PLACES[places[known]]][known] = value if places[known] == "path" else str(value)
        return dict(placed)
