"""Asks the control plane's admin API about pools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

import aiohttp

from cachefleet_operator.controlplane.facts import Facts, FactsError, parse
from cachefleet_operator.reasons import Reason

log = logging.getLogger(__name__)

MAX_BYTES: Final = 16 * 1024 * 1024
"""A pool of a thousand workers takes about one."""


class FactsSource(Protocol):
    """What knows of pools."""

    async def ask(self, key: str, *, seconds: float) -> Facts: ...


class NoControlPlane:
    """Where no control plane is named."""

    async def ask(self, _key: str, *, seconds: float) -> Facts:  # noqa: ARG002  # nobody to wait for
        return Facts()


class ControlPlaneClient:
    """``failed`` is told the reason of each question that had no answer. ``at_once`` bounds the questions."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        token_file: Path | None,
        at_once: int,
        failed: Callable[[str], None],
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._slots = asyncio.Semaphore(at_once)
        self._failed = failed

    async def ask(self, key: str, *, seconds: float) -> Facts:
        """What is known of the pool "namespace/name", answered within so many seconds; never an error."""
        try:
            # Waiting for a turn is not the control plane's silence.
            async with self._slots, asyncio.timeout(seconds):
                return await self._ask(key)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._failed("no_answer" if not isinstance(error, FactsError) else "not_understood")
            words = f"{type(error).__name__}: {error}".strip(": ")
            return Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, f"the control plane does not answer: {words}")

    async def _ask(self, key: str) -> Facts:
        namespace, _, name = key.partition("/")
        url = f"{self._url}/admin/v1/pools/{quote(namespace, safe='')}/{quote(name, safe='')}"
        async with self._session.get(url, headers=await self._headers(), allow_redirects=False) as response:
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
        # Each time anew: the kubelet replaces it before it runs out.
        token = (await asyncio.to_thread(self._token_file.read_text)).strip()
        return {"Authorization": f"Bearer {token}"}
