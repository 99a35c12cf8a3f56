"""HTTP client of a control plane's admin API; every failure is a FailureError with lines for the user."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.data_folder import DataFolder
from cachefleet_runtime.tls import client_context

TIMEOUT_SECONDS: Final = 10.0
URL_VARIABLE: Final = "CACHEFLEET_ADMIN_URL"
CA_FILE_VARIABLE: Final = "CACHEFLEET_ADMIN_CA_FILE"
TOKEN_FILE_VARIABLE: Final = "CACHEFLEET_ADMIN_TOKEN_FILE"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Address of the control plane, and the token for its admin API."""

    url: str
    token: str = field(repr=False)
    authorities: str = ""
    """Certificates (PEM) that the control plane is verified by; those of the machine where empty."""


def find_access(
    *, url: str | None, token_file: Path | None, data_dir: Path, environment: Mapping[str, str] = os.environ
) -> AdminAccess:
    """Address and token: the given ones, else from the environment, else from the data folder of a local fleet.

    An authority is named by the environment alone. FailureError (bad input) where none of them has it.
    """
    folder = DataFolder(data_dir.absolute())
    where = url or environment.get(URL_VARIABLE) or _local_url(folder)
    named = token_file or Path(environment.get(TOKEN_FILE_VARIABLE) or folder.admin_token_file)
    authorities = _authorities(environment.get(CA_FILE_VARIABLE))
    try:
        return AdminAccess(where.rstrip("/"), named.read_text().strip(), authorities)
    except (OSError, UnicodeDecodeError) as error:
        raise FailureError([f"cannot read the admin token from {named}"], Exit.BAD_INPUT) from error


def _authorities(file: str | None) -> str:
    if not file:
        return ""
    try:
        text = Path(file).read_text(errors="replace")
        client_context(text)
    except OSError as error:
        said = [f"{CA_FILE_VARIABLE}: no certificate can be read from {file}"]
        raise FailureError(said, Exit.BAD_INPUT) from error
    return text


def _local_url(folder: DataFolder) -> str:
    try:
        return str(json.loads(folder.fleet_file.read_text())["internal"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FailureError(
            [f"no fleet runs on the data folder {folder.root}; start one with: cachefleet up POOL.yaml, or give --url"],
            Exit.BAD_INPUT,
        ) from error


class AdminClient:
    """The admin API over one HTTP session; made by ``admin_client``. Every failure is a FailureError."""

    def __init__(self, session: aiohttp.ClientSession, access: AdminAccess) -> None:
        self._session = session
        self._access = access

    async def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """The JSON at ``/admin/v1/<path>``."""
        return await self._ask("GET", path, params=dict(parameters or {}))

    async def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """PUT to ``/admin/v1/<path>``; the JSON of the answer, None for status 204."""
        return await self._ask("PUT", path, json=dict(body))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST to ``/admin/v1/<path>``; the JSON of the answer, None for status 204."""
        return await self._ask("POST", path, json=dict(body))

    async def send(self, path: str, body: bytes, parameters: Mapping[str, str]) -> Any:
        """POST a body as it is: encoded JSON, which the control plane checks."""
        headers = {"Content-Type": "application/json"}
        return await self._ask("POST", path, params=dict(parameters), data=body, headers=headers)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH ``/admin/v1/<path>``; the JSON of the answer."""
        return await self._ask("PATCH", path, json=dict(body))

    async def delete(self, path: str) -> Any:
        """DELETE ``/admin/v1/<path>``; the JSON of the answer, None for status 204."""
        return await self._ask("DELETE", path)

    async def _ask(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        url = f"{self._access.url}/admin/v1/{path}"
        headers = {**(headers or {}), "Authorization": f"Bearer {self._access.token}"}
        try:
            async with self._session.request(method, url, headers=headers, **more) as response:
                if response.status >= 400:
                    raise await _refused(f"{method} {url}", response)
                return None if response.status == 204 else await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise FailureError([f"cannot reach the control plane at {self._access.url}: {_reason(error)}"]) from error


@asynccontextmanager
async def admin_client(access: AdminAccess, *, seconds: float = TIMEOUT_SECONDS) -> AsyncIterator[AdminClient]:
    """A client for as long as the context lasts; a request may take ``seconds``."""
    trusted = client_context(access.authorities) if access.authorities else True
    connector = aiohttp.TCPConnector(ssl=trusted)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(seconds), connector=connector) as session:
        yield AdminClient(session, access)


async def _refused(asked: str, response: aiohttp.ClientResponse) -> FailureError:
    words = {401: "the admin token is not accepted", 403: "the admin token may not do this"}
    if response.status in words:
        return FailureError([f"{asked}: {words[response.status]}"])
    status = Exit.BAD_INPUT if response.status in {400, 422} else Exit.FAILED
    return FailureError([f"{asked}: {line}" for line in _complaints(response.status, await response.text())], status)


def _complaints(status: int, body: str) -> list[str]:
    """The admin API's messages for a refused request: a line for each field, else its detail."""
    try:
        problem = json.loads(body)
        fields = [f"{error['field']}: {error['message']}" for error in problem["errors"]]
        return fields or [str(problem["detail"])]
    except (ValueError, KeyError, TypeError):
        return ["not found" if status == 404 else f"status {status}: {body[:200]}"]


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{error} (is ${CA_FILE_VARIABLE} its authority?)"
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)
