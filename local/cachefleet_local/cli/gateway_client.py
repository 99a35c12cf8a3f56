"""HTTP client of a gateway; every failure is a FailureError with lines for the user, or may pass (LaterError)."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_runtime.tls import client_context

ASK_SECONDS: Final = 300.0
"""Timeout of one request: the first may be the first ever on a slow machine."""
_LATER: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Address of the gateway, the API key for it, "" for none, and what verifies its certificate: True as usual."""

    url: str
    key: str = field(default="", repr=False)
    trusted: ssl.SSLContext | bool = True


def gateway_access(url: str, key: str, certificate: Path | None = None) -> GatewayAccess:
    """Address and key of the gateway. FailureError (bad input) where the address is no URL, or the file no PEM."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise FailureError([f"--gateway: got {url!r}, allowed: an address like http://127.0.0.1:8080"], Exit.BAD_INPUT)
    try:
        trusted = True if certificate is None else client_context(certificate.read_text())
    except (OSError, ValueError) as error:  # OpenSSL's are OSErrors
        said = f"--certificate: no certificate can be read from {certificate}"
        raise FailureError([said], Exit.BAD_INPUT) from error
    return GatewayAccess(url.rstrip("/").removesuffix("/v1"), key, trusted)


def _reason(error: Exception) -> str:
    """Why the gateway was not reached."""
    refused = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    if isinstance(refused, ConnectionError) and refused.errno:
        return os.strerror(refused.errno)
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)


class LaterError(Exception):
    """Not served yet; ``failure`` is raised where that lasts until the deadline."""

    def __init__(self, failure: FailureError) -> None:
        super().__init__(str(failure))
        self.failure = failure


class GatewayClient:
    """The gateway over one session; FailureError for permanent failures, LaterError for others."""

    def __init__(self, session: aiohttp.ClientSession, access: GatewayAccess) -> None:
        self._session = session
        self.url = access.url
        self._keyed = bool(access.key)

    async def ask(self, method: str, path: str, **more: Any) -> tuple[Mapping[str, str], dict[str, Any]]:
        """Headers and JSON of an answer; ``more`` is the session's: ``json``, or ``data``."""
        try:
            async with self._session.request(method, self.url + path, **more) as answer:
                if answer.status >= 400:
                    raise _refused(answer.status, f"{method} {path}", await answer.text(), keyed=self._keyed)
                return answer.headers, dict(await answer.json())
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            said = f"cannot reach the gateway at {self.url}: {_reason(error)}"
            raise LaterError(FailureError([said])) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise FailureError([f"{self.url}{path}: this is no gateway of cachefleet: {error}"]) from error


@asynccontextmanager
async def gateway_client(access: GatewayAccess) -> AsyncIterator[GatewayClient]:
    """A client for some requests."""
    headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
    connector = aiohttp.TCPConnector(ssl=access.trusted)
    timeout = aiohttp.ClientTimeout(ASK_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield GatewayClient(session, access)


def _refused(status: int, asked: str, body: str, *, keyed: bool) -> Exception:
    if status == 401:
        what = "the API key is not accepted" if keyed else "an API key is needed, and none was given"
        variable = "$CACHEFLEET_API_KEY, or the variable that --api-key-env names, is to have it"
        return FailureError([f"{asked}: 401, {what}; {variable}"])
    failure = FailureError([f"{asked}: {status}, {body[:500]}"])
    return LaterError(failure) if status in _LATER else failure
