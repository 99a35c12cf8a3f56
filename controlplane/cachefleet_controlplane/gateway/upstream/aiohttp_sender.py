"""Sends requests to workers over aiohttp: the reference, and what sends the requests that native code does not."""

from __future__ import annotations

import io
import logging
import socket
from collections.abc import Sequence
from errno import ECONNREFUSED
from typing import Any, Final

import aiohttp

from cachefleet_controlplane.gateway.upstream.held_answer import HeldAnswer, HeldBody, HeldKeys
from cachefleet_controlplane.gateway.upstream.worker_answer import WorkerResponse, readable
from cachefleet_controlplane.gateway.upstream.worker_tls import WorkerTls
from cachefleet_controlplane.wire.content_encoding import UndecodableError
from cachefleet_core.engine.held_requests import MEDIA_TYPE
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than vLLM's own five seconds, so that we rarely write into a connection it is closing."""
MAX_REFUSED: Final = 1024
"""Workers whose certificate was refused that are remembered, so that each is logged once."""
HEALTH_PATH: Final = "/health"
_UNAVAILABLE: Final = 503
_PROBES: Final = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A connection on which nothing comes is probed after 10 s, and lost 15 s later where its host does not reply."""
_STATUSES: Final = range(200, 600)
_READ_BYTES: Final = 64 * 1024
_LARGE_BYTES: Final = 1024 * 1024
"""Longer bodies are passed as a file, which aiohttp writes piece by piece."""


def _probed_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket whose connection breaks where its host is gone, though nothing is sent on it."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class AiohttpSender:
    """One aiohttp session, between ``start`` and ``close``. Bounds are in seconds.

    ``tls`` verifies workers at https URLs; without it these are verified as any server of the web.
    """

    def __init__(self, *, connect_seconds: float, idle_seconds: float, tls: WorkerTls | None = None) -> None:
        self._tls = tls
        self._refused: LruMap[str, str] = LruMap(MAX_REFUSED)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds, sock_read=idle_seconds)
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Make the session, on the running event loop."""
        # The gateway bounds its requests, and so its connections; a second bound here would only be a hidden queue.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_probed_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Content-Type", "User-Agent", "Accept"),
            read_bufsize=_READ_BYTES,
        )

    async def close(self) -> None:
        """Close the session and its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self,
        url: str,
        path: str,
        body: bytes | HeldBody,
        *,
        headers: Sequence[tuple[str, str]],
        beside: object = None,  # noqa: ARG002 # as Sender has it
    ) -> aiohttp.ClientResponse:
        """Send a request; return its response once the head is here. aiohttp.ClientError, OSError."""
        if self._session is None:
            raise RuntimeError("Upstream is used outside its context")
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) >= _LARGE_BYTES else body
        try:
            response = await self._session.post(
                url + path, data=data, headers=headers, allow_redirects=False, **self._verified(url)
            )
        except aiohttp.ClientSSLError as error:
            self._tell(url, str(error))
            raise
        if response.status not in _STATUSES:
            response.close()
            raise aiohttp.ClientPayloadError(f"status {response.status} is none")
        return response

    async def hold(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        beside: object = None,  # noqa: ARG002 # as Sender has it
    ) -> HeldKeys | WorkerResponse:
        """Send a request that the worker renders and holds; its response where it answers at once. As ``post``."""
        parts = HeldBody(body)
        response = await self.post(url, path, parts, headers=headers)
        try:
            return await _held(response, parts)
        except BaseException:
            response.close()
            raise

    async def ended(self, url: str) -> bool | None:
        """Whether a worker's engine has ended: it refuses connections, or says that its core is gone; None where its
        connection broke, which says nothing yet.
        """
        if self._session is None:
            return None
        try:
            async with self._session.get(url + HEALTH_PATH, allow_redirects=False, **self._verified(url)) as response:
                return response.status == _UNAVAILABLE
        except aiohttp.ClientConnectorError as error:
            return True if error.errno == ECONNREFUSED else None
        except (aiohttp.ClientError, OSError):
            return None

    def _tell(self, url: str, error: str) -> None:
        """Log, once for each worker and reason, why its TLS is refused: the outcome says no more than unreachable."""
        if self._refused.get(url) != error:
            self._refused.put(url, error)
            logger.warning("the certificate of a worker is refused: %s", error, extra={"worker": url})

    def _verified(self, url: str) -> dict[str, Any]:
        """How a worker's certificate is verified; nothing where it serves without one."""
        if self._tls is None or not (name := self._tls.server_name(url)):
            return {}
        return {"ssl": self._tls.trusted.context(), "server_hostname": name}


async def _held(response: aiohttp.ClientResponse, parts: HeldBody) -> HeldKeys | WorkerResponse:
    """Read the keys of a held request, or the head of its answer where it has one already."""
    if response.content_type != MEDIA_TYPE:
        return response
    if readable(response) is not response:  # whoever compresses it keeps back the keys that are waited for
        raise UndecodableError("a held request that is compressed")
    held = HeldAnswer(response, parts)
    keys = await held.keys()
    return await held.answered() if keys is None else HeldKeys(held, keys)
