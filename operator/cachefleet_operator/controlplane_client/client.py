"""HTTP client of the control plane's admin API, for facts about pools."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import aiohttp

from cachefleet_operator.controlplane_client.pool_facts import Facts, FactsError, parse
from cachefleet_operator.reasons import Reason

log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 1024 * 1024
"""Bound on an answer; a pool of a thousand workers takes about 1 MiB."""


class FactsSource(Protocol):
    """Where facts about pools come from."""

    async def ask(self, key: str, *, seconds: float) -> Facts: ...


class NoControlPlane:
    """The source of facts where no control plane is configured."""

    async def ask(self, _key: str, *, seconds: float) -> Facts:  # noqa: ARG002  # nobody to wait for
        """Unknown facts, at once."""
        return Facts()


class ControlPlaneClient:
    """Facts over HTTP. ``at_once`` bounds concurrent requests; ``failed`` is called with each failure's reason.

    ``trusted`` gives what an https URL's certificate is verified with, as aiohttp takes it.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        token_file: Path | None,
        at_once: int,
        failed: Callable[[str], None],
        trusted: Callable[[], ssl.SSLContext | bool] = lambda: True,
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._slots = asyncio.Semaphore(at_once)
        self._failed = failed
        self._trusted = trusted

    async def ask(self, key: str, *, seconds: float) -> Facts:
        """Facts of the pool "namespace/name"; failures and timeouts are facts with a reason, never an error."""
        try:
            # The timeout begins when a slot is free: waiting for one is no silence of the control plane.
            async with self._slots, asyncio.timeout(seconds):
                return await self._ask(key)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._failed("no_answer" if not isinstance(error, FactsError) else "not_understood")
            words = f"{type(error).__name__}: {error}".strip(": ")
            return Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, f"the control plane does not answer: {words}")

    async def _ask(self, key: str) -> Facts:
        namespace, _, name = key.partition("/")
        url = f"{self._url}/admin/v1/pools/{quote(namespace, safe='')}/{quote(name, safe='')}"
        headers, trusted = await self._headers(), self._trusted()
        async with self._session.get(url, headers=headers, ssl=trusted, allow_redirects=False) as response:
            if response.status == 404:
                return Facts(None, Reason.POOL_NOT_KNOWN, "the control plane has not seen this pool yet")
            if response.status != 200:
                self._failed(str(response.status))
                words = f"the control plane answers {response.status} {response.reason or ''}".strip()
                return Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, words)
            body = await response.content.read(MAX_BYTES + 1)
            while len(body) <= MAX_BYTES and (more := await response.content.read(MAX_BYTES + 1 - len(body))):
                body += more
        if len(body) > MAX_BYTES:
            raise FactsError(f"an answer of more than {MAX_BYTES} bytes")
        return Facts(parse(body), Reason.CONSISTENT, "")

    async def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        # Read each time: the kubelet replaces it before it expires.
        token = (await asyncio.to_thread(self._token_file.read_text)).strip()
        return {"Authorization": f"Bearer {token}"}
