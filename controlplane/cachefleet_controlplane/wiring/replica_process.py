"""The process of one replica of the control plane, configured by CACHEFLEET_* variables.

Exits with 2 and one line per problem on stderr where a setting is wrong. On SIGTERM or SIGINT it exits with 0: /readyz
fails at once, new requests are still taken for ``withdraw_seconds``, then answers under way get ``drain_seconds``;
those that are not finished then end with an error that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import uvloop
from prometheus_client import disable_created_metrics

from cachefleet_controlplane.inherited_sockets import inherited_sockets
from cachefleet_controlplane.transport.client_websocket import MessageBounds, UnfinishedMessages, client_websocket
from cachefleet_controlplane.transport.listening_sockets import NeverListenedError
from cachefleet_controlplane.transport.native_server import NativeServer, PickerServer, ServerBounds
from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.settings import Settings, SettingsError, load
from cachefleet_core.environment.removed_variables import removed_lines
from cachefleet_core.report_frames import MAX_FRAME_BYTES
from cachefleet_runtime import logs

logger = logging.getLogger(__name__)

GARBAGE: Final = (10_000, 20, 20)
"""Objects after which the collector looks for cycles among new ones, and how often among older ones: requests under way
are thousands of objects and no garbage, and hardly any leaves a cycle.
"""
ENDING_SECONDS: Final = 3.0
"""How long answers may take to end that are not finished after ``drain_seconds``: each ends with an error."""
INTERNAL_DRAIN_SECONDS: Final = 2.0
"""How long the internal port's answers may take to end: connections without a request stay for a second of it."""
KNOWN_SECONDS: Final = 10.0
"""How long clients that wait at an inherited socket wait for a replica that is not ready, beside the time that this may
wait for agents: another replica may take them meanwhile.
"""
POLL_SECONDS: Final = 0.02


def main() -> int:
    """Configure the process and serve; the exit status."""
    try:
        settings = load()
        logs.configure(settings.log_format, settings.log_level)
        for line in removed_lines("control plane", os.environ):
            logger.warning(line)
        plane = ControlPlane(settings)
    except SettingsError as error:
        logs.refuse(error.lines)
        return 2
    except (OSError, ValueError) as error:
        logs.refuse([f"CACHEFLEET_FLEET_KEY_FILE: {error}"])
        return 2
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it logs start and stop at INFO; so does this
    disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series per counter, unused
    gc.freeze()  # objects made by imports stay: keep them out of garbage collections
    gc.set_threshold(*GARBAGE)
    gc.enable()
    try:
        sockets = inherited_sockets(os.environ)
    except ValueError as error:
        logs.refuse([str(error)])
        return 2
    return uvloop.run(serve(plane, settings, sockets=sockets))


async def serve(
    plane: ControlPlane,
    settings: Settings,
    stop: asyncio.Event | None = None,
    *,
    sockets: Mapping[int, socket.socket] = MappingProxyType({}),
) -> int:
    """Serve until ``stop`` is set (SIGTERM and SIGINT set it); 0, or 1 where a port cannot be opened.

    ``sockets`` are those that listen already, by port.
    """
    stop = stop or asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with plane:
        gateway, internal = servers(plane, settings)
        fronts = {"gateway": gateway} | picker_servers(plane, settings)
        ready = partial(_ready, plane, settings)
        ports = {"gateway": settings.gateway_port, "picker": settings.picker_port or 0}
        answering = [
            asyncio.create_task(_run(name, server, sockets.get(ports[name]), ready)) for name, server in fronts.items()
        ]
        running = [*answering, asyncio.create_task(_run("internal", internal, sockets.get(settings.internal_port)))]
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({*running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        failed = not stop.is_set()
        stopped.cancel()
        plane.withdraw()
        for server in fronts.values():
            server.leave()
        seconds = 0.0 if failed else settings.withdraw_seconds
        logger.info("not ready any more; requests are taken for %g s", seconds)
        await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for server in fronts.values():
            server.stop()
        ending = asyncio.get_running_loop().call_later(settings.drain_seconds, plane.gateway.end_answers)
        await asyncio.wait(answering)
        ending.cancel()
        # The internal port stays up while answers end, for probes and agents.
        internal.stop()
        await running[-1]
    return 1 if failed else 0


async def _ready(plane: ControlPlane, settings: Settings) -> None:
    """Wait until the replica is ready or leaves, KNOWN_SECONDS longer at most than it may wait for agents."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KNOWN_SECONDS + settings.startup_seconds):
            while not (plane.readiness()[0] or plane.state.leaving):  # noqa: ASYNC110 - of many parts
                await asyncio.sleep(POLL_SECONDS)


async def _run(
    name: str,
    server: NativeServer,
    listener: socket.socket | None,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve; at an inherited socket, where clients may be waiting, once ``ready`` has returned."""
    telling = asyncio.create_task(_tell(name, server))
    try:
        if listener is not None and ready is not None:
            await ready()
        await server.serve(None if listener is None else [listener])
    except SystemExit:  # why is logged
        logger.error("the %s port cannot be opened: %s", name, server.origin)  # noqa: TRY400 - no trace of use
    finally:
        telling.cancel()


async def _tell(name: str, server: NativeServer) -> None:
    with contextlib.suppress(NeverListenedError):  # its reason is logged where there is one
        logger.info("%s listens on %s:%s", name, server.origin.rpartition(":")[0], await server.listening())


def picker_servers(plane: ControlPlane, settings: Settings) -> dict[str, NativeServer]:
    """The endpoint picker's server by its name, where it has a port."""
    if settings.picker_port is None:
        return {}
    bounds = ServerBounds(
        head_seconds=plane.bounds.head_seconds,
        drain_seconds=settings.drain_seconds + ENDING_SECONDS,
        tls=plane.tls.internal,
    )
    server = PickerServer(
        plane.gateway,
        plane.completions,
        host=settings.gateway_host,
        port=settings.picker_port,
        bounds=bounds,
        body_bytes=settings.request_max_bytes,
        buffer_bytes=settings.buffer_bytes,
    )
    return {"picker": server}


def servers(plane: ControlPlane, settings: Settings) -> tuple[NativeServer, NativeServer]:
    """The gateway's server and the internal one; the gateway bounds the time of request bodies itself."""
    messages = MessageBounds(
        seconds=settings.request_body_seconds,
        stall_seconds=plane.bounds.stall_seconds,
        unfinished=UnfinishedMessages(settings.buffer_bytes),
    )
    bounds = ServerBounds(
        head_seconds=plane.bounds.head_seconds,
        drain_seconds=settings.drain_seconds + ENDING_SECONDS,
        websocket_bytes=settings.request_max_bytes,
        websocket=client_websocket(messages),
        tls=plane.tls.public,
    )
    of_internal = ServerBounds(
        head_seconds=plane.bounds.head_seconds,
        drain_seconds=INTERNAL_DRAIN_SECONDS,
        websocket_bytes=MAX_FRAME_BYTES,
        taps=plane.fleet.taps,
        tls=plane.tls.internal,
    )
    completions, host, port = plane.completions, settings.gateway_host, settings.gateway_port
    gateway = NativeServer(plane.gateway, completions, host=host, port=port, bounds=bounds)
    host, port = settings.internal_host, settings.internal_port
    return gateway, NativeServer(plane.internal, completions, host=host, port=port, bounds=of_internal)
