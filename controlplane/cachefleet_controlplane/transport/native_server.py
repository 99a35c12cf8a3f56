"""HTTP server of the native transport, which ends in two steps.

After ``leave`` connections are still taken, and each answer that begins says ``connection: close``, so that clients
with kept connections go elsewhere. ``stop`` takes no new ones and closes those that are idle, but only a second after
their last answer: a client may just be reusing one.

Connections are on the transport's threads; requests are answered by an ASGI application on the event loop. WebSockets
are passed on to a uvicorn server of this process, which listens on a Unix socket of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cachefleet_native

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.listening_sockets import START_SECONDS, NeverListenedError, listening_sockets
from cachefleet_controlplane.transport.native_exchange import ClientRequest, NativeExchange
from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_controlplane.transport.websocket_protocol import CautiousWebSocket, RefusingWebSocket
from cachefleet_controlplane.transport.websocket_server import WebSocketServer
from cachefleet_runtime.process_folders import process_folder

logger = logging.getLogger(__name__)

HEAD_SECONDS: Final = 10.0
"""How long a client may take for the whole head of a request."""
SEND_SECONDS: Final = 120.0
"""How long a client may take nothing of its answer before it counts as gone."""
CANCEL_SECONDS: Final = 1.0
"""How long answers may take to end that are cancelled."""
_POLL_SECONDS: Final = 0.005
_SOCKET_FOLDERS: Final = ("/tmp", "/var/tmp")  # noqa: S108 - each socket is in a folder of its own, for this user alone
_MAX_FOLDER_BYTES: Final = 76
"""A Unix socket's path has at most 107 bytes, of which the folder and name of its own take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBounds:
    """Times in seconds: for a request's head, for answers once the server stops, and for a client to take anything of
    its answer. ``websocket_bytes`` bounds a WebSocket's message, 0 serves none; ``websocket`` is their protocol.
    """

    head_seconds: float
    drain_seconds: float
    send_seconds: float = SEND_SECONDS
    websocket_bytes: int = 0
    websocket: type[RefusingWebSocket] = CautiousWebSocket
    taps: cachefleet_native.ReportTaps | None = None
    """Take messages out of WebSockets before Python."""
    tls: ServedTls | None = None


class NativeServer:
    """A server; end it with ``leave``, if time allows, and ``stop``."""

    def __init__(self, app: Any, completions: Completions, *, host: str, port: int, bounds: ServerBounds) -> None:
        self._address = host, port
        self._app = app
        self._completions = completions
        self._bounds = bounds
        self._stopping = asyncio.Event()
        self._leaving = False
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exchanges: dict[int, NativeExchange] = {}
        self._native: Any = None
        self._websockets: WebSocketServer | None = None

    @property
    def origin(self) -> str:
        """Where it is to listen, as a URL."""
        host, port = self._address
        scheme = "http" if self._bounds.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def connections(self) -> int:
        """Open connections, but for those whose client has only to read its last answer."""
        return 0 if self._native is None else int(self._native.connections)

    def leave(self) -> None:
        """From now on every answer that begins says ``connection: close``; new connections are still taken."""
        self._leaving = True
        if self._native is not None:
            self._native.leave()

    def stop(self) -> None:
        """Take no new connections; answers under way may take ``drain_seconds`` more."""
        self.leave()
        for server in (self._native, self._websockets):
            if server is not None:
                server.stop()
        self._stopping.set()

    async def listening(self) -> int:
        """The port number, once open.

        NeverListenedError where it cannot be opened or was stopped before, TimeoutError after START_SECONDS.
        """
        async with asyncio.timeout(START_SECONDS):
            return await asyncio.shield(self._port)

    async def serve(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Serve until ``stop``; ``sockets`` listen already. SystemExit where a port cannot be opened."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._port.set_result(await self._open(stack, sockets))
            except NeverListenedError:  # a stop reached the server of WebSockets while it started
                self._never_listened()
                return
            except OSError as error:
                self._never_listened()
                logger.error("%s", error)  # noqa: TRY400 - no trace of use
                raise SystemExit(1) from error
            await self._stopping.wait()
            self._native.stop()
            await self._drain()

    def _never_listened(self) -> None:
        self._port.set_exception(NeverListenedError())
        self._port.exception()  # looked at, also where nobody waits

    async def _open(self, stack: contextlib.AsyncExitStack, sockets: Sequence[socket.socket] | None) -> int:
        """Listen, until the end of the stack; the port."""
        listening = list(sockets) if sockets else await listening_sockets(*self._address)
        for listener in listening:
            stack.callback(listener.close)
        websockets = await stack.enter_async_context(self._serving_websockets())
        await stack.enter_async_context(self._serving(websockets))
        port = int(listening[0].getsockname()[1])
        if self._leaving:
            self._native.leave()
        for listener in listening:
            self._native.listen(listener.detach())
        return port

    @contextlib.asynccontextmanager
    async def _serving(self, websockets: Path | None) -> AsyncIterator[None]:
        requests, departures = (
            self._completions.expect(self._receive_request),
            self._completions.expect(self._receive_departure),
        )
        self._native = self._made(requests, departures, websockets)
        tls = self._bounds.tls
        try:
            async with contextlib.nullcontext() if tls is None else tls.presenting(self._native.present):
                yield
        finally:
            self._native.cut()
            self._completions.forget(requests)
            self._completions.forget(departures)

    def _made(self, requests: int, departures: int, websockets: Path | None) -> Any:
        return cachefleet_native.Server(
            self._completions.native,
            requests=requests,
            departures=departures,
            head_seconds=self._bounds.head_seconds,
            idle_seconds=float(max(1, round(self._bounds.head_seconds))),
            send_seconds=self._bounds.send_seconds,
            websockets=None if websockets is None else str(websockets),
            taps=self._bounds.taps,
        )

    @contextlib.asynccontextmanager
    async def _serving_websockets(self) -> AsyncIterator[Path | None]:
        """Serve WebSockets at the path of a Unix socket; None where there are to be none."""
        bounds = self._bounds
        if not bounds.websocket_bytes:
            yield None
            return
        with process_folder("cachefleet-", _socket_folder()) as folder:
            path = folder / "websockets"
            self._websockets = WebSocketServer(
                self._app,
                path,
                drain_seconds=bounds.drain_seconds,
                message_bytes=bounds.websocket_bytes,
                protocol=bounds.websocket,
            )
            serving = asyncio.create_task(self._websockets.serve())
            try:
                await self._websockets.listening()
                yield path
            finally:
                self._websockets.stop()
                await serving

    async def _drain(self) -> None:
        """Wait for answers under way, cancel those that take too long."""
        try:
            async with asyncio.timeout(max(1, round(self._bounds.drain_seconds))):
                while self.connections or self._exchanges:  # noqa: ASYNC110 - counted by other threads
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            await self._give_up()

    async def _give_up(self) -> None:
        tasks = [exchange.task for exchange in self._exchanges.values() if exchange.task is not None]
        logger.error("answers were still under way when the time to stop was over: %d", len(tasks))
        for task in tasks:
            task.cancel("the server stops")
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    def _receive_request(self, request: ClientRequest) -> None:
        exchange = NativeExchange(request, self._completions, seconds=self._bounds.send_seconds)
        self._exchanges[request.key] = exchange
        exchange.task = asyncio.create_task(self._answer(exchange))

    def _receive_departure(self, key: int) -> None:
        if (exchange := self._exchanges.get(key)) is not None:
            exchange.left()

    async def _answer(self, exchange: NativeExchange) -> None:
        scope = exchange.scope()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:  # the root of a request's task: a defect fails this request only
            logger.exception("a request failed unexpectedly", extra={"path": scope["path"]})
        finally:
            del self._exchanges[exchange.request.key]
            exchange.close()


class PickerServer(NativeServer):
    """A server for Envoys (``ext_proc`` over gRPC), whose clients' requests are answered or sent to a worker.

    Only a body of at most ``body_bytes`` may come in one message, and all messages that are put together at once have
    at most ``buffer_bytes``.
    """

    def __init__(
        self,
        app: Any,
        completions: Completions,
        *,
        host: str,
        port: int,
        bounds: ServerBounds,
        body_bytes: int,
        buffer_bytes: int,
    ) -> None:
        super().__init__(app, completions, host=host, port=port, bounds=bounds)
        self._body_bytes, self._buffer_bytes = body_bytes, buffer_bytes

    def _made(self, requests: int, departures: int, websockets: Path | None) -> Any:  # noqa: ARG002 # none come here
        return cachefleet_native.Server.picker(
            self._completions.native,
            requests=requests,
            departures=departures,
            head_seconds=self._bounds.head_seconds,
            body_bytes=self._body_bytes,
            buffer_bytes=self._buffer_bytes,
        )


def _socket_folder() -> str | None:
    """A folder for temporary files whose path leaves room for a socket's; None where there is none."""
    folders = (folder for folder in (tempfile.gettempdir(), *_SOCKET_FOLDERS) if os.access(folder, os.W_OK))
    return next((folder for folder in folders if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES), None)
