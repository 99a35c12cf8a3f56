"""The capability document of a server: the features of its processes, and facts that its agent needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import msgspec

from cachefleet_core.report_frames import Capability
from cachefleet_worker.plugin.capabilities import OFF, complete, merge
from cachefleet_worker.plugin.compat import engine_version, untested
from cachefleet_worker.plugin.plugin_process import Process

ENGINE_FEATURES: Final = ("gate", "preemption", "budget", "snapshot", "heartbeat", "flush")
"""Features of the engine's process; the others are the API server's."""


@dataclass(frozen=True, slots=True)
class Server:
    """Facts of vLLM's configuration; None where this vLLM does not expose them."""

    vocab_size: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    kv_events: bool | None = None
    """Whether block events are published."""
    events_endpoint: str | None = None

    @classmethod
    def of(cls, state: Any, *, has_engine: bool) -> Server:
        """From the application state. Without an engine vLLM configures no cache: only its arguments count."""
        config = getattr(state, "vllm_config", None)
        model, cache = getattr(config, "model_config", None), getattr(config, "cache_config", None)
        if not has_engine:
            config, cache = None, getattr(state, "args", None)
        vocabulary = getattr(model, "get_vocab_size", lambda: None)()
        caching = getattr(cache, "enable_prefix_caching", None)
        parallel, events = getattr(config, "parallel_config", None), _events(config)
        return cls(
            vocab_size=_number(vocabulary),
            max_model_len=_number(getattr(model, "max_model_len", None)),
            block_size=_number(getattr(cache, "block_size", None)),
            prefix_caching=caching if isinstance(caching, bool) else None,
            tensor_parallel_size=_number(getattr(parallel, "tensor_parallel_size", None)),
            data_parallel_size=_number(getattr(parallel, "data_parallel_size", None)),
            kv_events=None if events is None else events != "",
            events_endpoint=events or None,
        )


def document(process: Process, server: Server, described: dict[int, dict[str, Any]] | str) -> dict[str, Any]:
    """The document; ``described`` is each rank's description, or the reason why there is none."""
    own = process.capabilities.document()
    reason = described if isinstance(described, str) else "not told by this engine"
    ranks = {} if isinstance(described, str) else described
    engines = [msgspec.convert(rank.get("features", []), list[Capability], strict=False) for rank in ranks.values()]
    note = untested(engine_version())
    return {
        "plugin": version("cachefleet"),
        "engine": engine_version(),
        "note": note,
        **msgspec.to_builtins(server),
        "features": noted(complete(merge([own, *engines]), ENGINE_FEATURES, reason), note),
        "ranks": {
            rank: {name: value for name, value in told.items() if name != "features"} for rank, told in ranks.items()
        },
    }


def noted(capabilities: Iterable[Capability], note: str) -> list[Capability]:
    """The features; those on without a reason get ``note`` (an untested vLLM version) as reason."""
    if not note:
        return list(capabilities)
    return [
        each if each.mode == OFF else Capability(feature=each.feature, mode=each.mode, reason=each.reason or note)
        for each in capabilities
    ]


def _events(config: Any) -> str | None:
    """Where block events are published; "" where they are not, None where that is not known."""
    if config is None or not hasattr(config, "kv_events_config"):
        return None
    events = config.kv_events_config
    on = getattr(events, "enable_kv_cache_events", False) and getattr(events, "publisher", "") == "zmq"
    return str(getattr(events, "endpoint", "")) if on else ""


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
