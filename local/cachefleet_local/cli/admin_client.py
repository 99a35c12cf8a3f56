"""HTTP client of a control plane's admin API; every failure is a FailureError with lines for the user."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from cachefleet_local.cli.contexts.access import CA_FILE_VARIABLE, AdminAccess
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_runtime.tls import client_context

TIMEOUT_SECONDS: Final = 10.0
_JSON: Final = {"Content-Type": "application/json"}


class UnreachableError(FailureError):
    """The control plane does not answer now, or says that it cannot: asking again may help."""


class AbsentError(FailureError):
    """The control plane has nothing under this path."""


class RefusedError(FailureError):
    """The token is not accepted: another one may be."""


class AdminClient:
    """The admin API, a connection for each request. Every failure is a FailureError."""

    def __init__(self, access: AdminAccess, *, seconds: float = TIMEOUT_SECONDS) -> None:
        self._access = access
        self._seconds = seconds

    def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """The JSON at ``/admin/v1/<path>``. AbsentError where there is none."""
        return self._ask("GET", path, parameters=parameters)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """PUT to ``/admin/v1/<path>``; the JSON of the answer, None for status 204."""
        return self._ask("PUT", path, body=_encoded(body))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to ``/admin/v1/<path>``; the JSON of the answer, None for status 204."""
        return self._ask("POST", path, body=_encoded(body))

    def readiness(self) -> Any:
        """The JSON of /readyz. UnreachableError where the replica is not ready."""
        return self._ask("GET", "readyz", root="")

    def sign_in_link(self) -> Any:
        """The JSON of a link that signs in to the console once. AbsentError where there is no console."""
        return self._ask("POST", "sign-in-links", root="/console")

    def send(self, path: str, body: bytes, parameters: Mapping[str, str]) -> Any:
        """POST a body as it is: encoded JSON, which the control plane checks."""
        return self._ask("POST", path, body=body, parameters=parameters)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH ``/admin/v1/<path>``; the JSON of the answer."""
        return self._ask("PATCH", path, body=_encoded(body))

    def delete(self, path: str) -> Any:
        """DELETE ``/admin/v1/<path>``; the JSON of the answer, None for status 204."""
        return self._ask("DELETE", path)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        parameters: Mapping[str, str] | None = None,
        root: str = "/admin/v1",
    ) -> Any:
        url = f"{self._access.url}{root}/{path}"
        headers = {"Authorization": f"Bearer {self._access.token}"} | ({} if body is None else _JSON)
        target = urlsplit(url).path + (f"?{urlencode(parameters)}" if parameters else "")
        try:
            connection = self._connection()
            try:
                connection.request(method, target, body=body, headers=headers)
                return _answer(f"{method} {url}", connection.getresponse())
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(
                [f"cannot reach the control plane at {self._access.url}: {_reason(error)}"]
            ) from error

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self._access.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            allowed = "allowed: an address like http://127.0.0.1:8081"
            raise FailureError([f"--url: got {self._access.url!r}, {allowed}"], Exit.BAD_INPUT)
        if parts.scheme == "http":
            return HTTPConnection(parts.hostname, parts.port, timeout=self._seconds)
        authorities = self._access.authorities
        context = client_context(authorities) if authorities else ssl.create_default_context()
        return HTTPSConnection(parts.hostname, parts.port, timeout=self._seconds, context=context)


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(body)).encode()


def _answer(asked: str, response: HTTPResponse) -> Any:
    status, text = response.status, response.read()
    if status >= 400:
        raise _refused(asked, status, text.decode(errors="replace"))
    return None if status == 204 else json.loads(text)


def _refused(asked: str, status: int, body: str) -> FailureError:
    if status == 401:
        return RefusedError([f"{asked}: the admin token is not accepted"])
    lines = [f"{asked}: {line}" for line in _complaints(status, body)]
    if status == 403:
        return FailureError([f"{lines[0]}; the admin token may not do this"])
    if status == 404:
        return AbsentError(lines)
    if status >= 500:
        return UnreachableError(lines)
    return FailureError(lines, Exit.BAD_INPUT if status in {400, 422} else Exit.FAILED)


def _complaints(status: int, body: str) -> list[str]:
    """The admin API's messages for a refused request: a line for each field, else its detail."""
    try:
        problem = json.loads(body)
        fields = [f"{error['field']}: {error['message']}" for error in problem["errors"]]
        return fields or [str(problem["detail"])]
    except (ValueError, KeyError, TypeError):
        return ["not found" if status == 404 else f"status {status}: {body[:200]}"]


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error} (is ${CA_FILE_VARIABLE} its authority?)"
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)
