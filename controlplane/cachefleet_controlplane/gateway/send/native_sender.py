"""Sends requests to workers by native code, off Python's event loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from cachefleet_native import ClientRequest, WorkerClient

from cachefleet_controlplane.gateway.send.answer_budget import COUNTED_BYTES
from cachefleet_controlplane.gateway.send.worker_call import AttemptError, Call, HeldKeys, NativeResponse
from cachefleet_controlplane.gateway.send.worker_tls import WorkerTls, WorkerTrust
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_runtime.lru import LruMap

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 4.0
"""Shorter than vLLM's own five seconds, so that we rarely write into a connection it is closing."""
MAX_LOGGED: Final = 1024
"""Workers that could not be asked that are remembered, so that each is logged once."""
HEALTH_PATH: Final = "/health"
_UNAVAILABLE: Final = 503


class NativeSender:
    """Connections of native threads. Bounds in seconds; ``tls`` verifies workers at https URLs."""

    def __init__(
        self, completions: Completions, *, connect_seconds: float, idle_seconds: float, tls: WorkerTls | None = None
    ) -> None:
        self._completions = completions
        self._trust = WorkerTrust(tls)
        self._logged: LruMap[str, str] = LruMap(MAX_LOGGED)
        self._client = WorkerClient(
            completions.native,
            connect_seconds=connect_seconds,
            idle_seconds=idle_seconds,
            keep_alive_seconds=KEEP_ALIVE_SECONDS,
            max_whole_bytes=COUNTED_BYTES,
        )

    def close(self) -> None:
        """Close the connections that wait for a request."""
        self._client.close()

    async def post(
        self,
        url: str,
        path: str,
        body: bytes | None,
        *,
        headers: Sequence[tuple[str, str]],
        beside: ClientRequest | None = None,
    ) -> NativeResponse:
        """Send a request, a GET without a body; return its response once it is whole or, of a stream, has begun.

        It is sent on the thread of the client ``beside``. A body over COUNTED_BYTES is read on demand. AttemptError.
        """
        call = self._send(url, path, body, headers, beside=beside)
        try:
            return await call.response()
        except AttemptError as error:
            self._log_untrusted(url, error)
            raise

    async def hold(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        headers: Sequence[tuple[str, str]],
        beside: ClientRequest | None = None,
    ) -> HeldKeys | NativeResponse:
        """Send a request that the worker renders and holds; as ``post`` where it answers at once."""
        call = self._send(url, path, body, headers, hold=True, beside=beside)
        try:
            return await call.held()
        except AttemptError as error:
            self._log_untrusted(url, error)
            raise

    async def ended(self, url: str) -> bool | None:
        """Whether a worker's engine has ended: it refuses connections, or says that its core is gone; None where its
        connection broke, which says nothing yet.
        """
        try:
            response = await self.post(url, HEALTH_PATH, None, headers=())
        except AttemptError as error:
            return True if error.failure == "connection_refused" else None
        response.close()
        return response.status == _UNAVAILABLE

    def _send(
        self,
        url: str,
        path: str,
        body: bytes | None,
        headers: Sequence[tuple[str, str]],
        *,
        hold: bool = False,
        beside: ClientRequest | None,
    ) -> Call:
        """Begin a request. AttemptError for a URL that cannot be asked."""
        call = Call(self._completions)
        try:
            trust, name = self._trust.of(url)
            call.native = self._client.send(
                call.number, url, path, headers, body, hold=hold, beside=beside, trust=trust, name=name
            )
        except OSError as error:
            self._log(url, "a worker cannot be asked", str(error))
            raise AttemptError("unreachable") from error
        finally:
            if call.native is None:
                call.close()
        return call

    def _log_untrusted(self, url: str, error: AttemptError) -> None:
        """Log why a worker's TLS is refused: the outcome says no more than unreachable."""
        if error.reason:
            self._log(url, "the certificate of a worker is refused", error.reason)

    def _log(self, url: str, problem: str, reason: str) -> None:
        """Log a problem once for each worker and reason."""
        if self._logged.get(url) != reason:
            self._logged.put(url, reason)
            logger.warning("%s: %s", problem, reason, extra={"worker": url})
