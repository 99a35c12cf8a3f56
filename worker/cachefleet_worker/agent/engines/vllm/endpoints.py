"""The ZeroMQ endpoints of a rank's event stream: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from cachefleet_core.report_frames import Capability
from cachefleet_worker.agent.settings import AgentSettings

_WILDCARDS: Final = ("*", "0.0.0.0", "::", "[::]", "")  # noqa: S104 (names that stand for any address)


@dataclass(frozen=True, slots=True)
class PublisherEndpoints:
    """Endpoints at which a rank publishes and replays, as configured in the engine; ``replay`` "" for none."""

    endpoint: str
    replay: str


@dataclass(frozen=True, slots=True)
class Endpoints:
    """A rank's ZeroMQ endpoints. ``bind``: the engine connects to us. ``replay`` is "" where there is none."""

    events: str
    replay: str
    bind: bool = False


def endpoints_for(endpoint: str, replay: str, engine_url: str) -> Endpoints:
    """The sockets for an engine configured to publish at ``endpoint`` and replay at ``replay``.

    vLLM binds wildcards and everything that is not TCP, and connects to the rest; its replay socket always binds.
    """
    bind = endpoint.startswith("tcp://") and "*" not in endpoint and "::" not in endpoint
    host = urlsplit(engine_url).hostname or "127.0.0.1"
    return Endpoints(endpoint if bind else _reachable(endpoint, host), _reachable(replay, host), bind)


def offset(endpoint: str, rank: int) -> str:
    """The endpoint of a rank, given rank 0's: its port plus the rank."""
    head, separator, port = endpoint.rpartition(":")
    return f"{head}{separator}{int(port) + rank}" if endpoint.startswith("tcp://") and port.isdigit() else endpoint


def _reachable(endpoint: str, host: str) -> str:
    if not endpoint.startswith("tcp://"):
        return endpoint
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return f"tcp://{host if address in _WILDCARDS else address}:{port}"


def endpoints_of(
    settings: AgentSettings, sources: Mapping[int, PublisherEndpoints] | None, rank: int
) -> Endpoints | None:
    """A rank's sockets: as the engine reports, else as configured; None where it publishes no events."""
    if sources is not None:
        source = sources.get(rank)
        return (
            endpoints_for(source.endpoint, source.replay, settings.engine_url) if source and source.endpoint else None
        )
    if not settings.events_endpoint:
        return None
    return Endpoints(offset(settings.events_endpoint, rank), offset(settings.replay_endpoint, rank))


def transport(endpoints: Endpoints | None) -> tuple[Capability, ...]:
    """How a rank's events arrive, as capabilities."""
    if endpoints is None:
        return (Capability(feature="events", mode="off", reason="the engine publishes no block events"),)
    return (
        Capability(feature="events", mode="zmq"),
        Capability(feature="replay", mode="zmq" if endpoints.replay else "off"),
    )
