"""Caching prompts that a control plane names, one after another, by running them through the engine for one token."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable

import msgspec

from cachefleet_core.reports import Prefix, Warmth

from .engine import EngineClient, EngineError
from .metrics import AgentMetrics

log = logging.getLogger(__name__)

_FAILED_SHOWN = 64
_MESSAGES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class Warmer:
    """The queue of prompts to cache in the present epoch, bounded; what does not fit counts as failed."""

    def __init__(
        self,
        client: EngineClient,
        metrics: AgentMetrics,
        *,
        limit: int,
        timeout_seconds: float,
        changed: Callable[[], None],
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._limit = limit
        self._timeout = timeout_seconds
        self._changed = changed
        self._queue: deque[Prefix] = deque()
        self._wake = asyncio.Event()
        self._done = self._total = 0
        self._failed: list[str] = []

    @property
    def warmth(self) -> Warmth:
        return Warmth(done=self._done, total=self._total, failed=tuple(self._failed[:_FAILED_SHOWN]))

    def reset(self) -> None:
        """A new epoch: nothing is cached."""
        self._queue.clear()
        self._done = self._total = 0
        self._failed = []

    def add(self, prefixes: tuple[Prefix, ...]) -> None:
        for prefix in prefixes:
            self._total += 1
            if len(self._queue) >= self._limit:
                self._fail(prefix.name)
            else:
                self._queue.append(prefix)
        self._wake.set()

    async def run(self, model: str) -> None:
        """Work the queue until cancelled."""
        while True:
            while self._queue:
                await self._warm(model, self._queue.popleft())
                self._changed()
            self._wake.clear()
            await self._wake.wait()

    async def _warm(self, model: str, prefix: Prefix) -> None:
        try:
            path, body = warm_request(model, prefix)
            tokens = await self._client.cache_prompt(path, body, timeout_seconds=self._timeout)
        except (EngineError, ValueError) as error:
            log.warning("prefix not cached", extra={"prefix": prefix.name, "error": str(error)})
            self._fail(prefix.name)
            return
        self._done += 1
        self._metrics.warmed.labels("cached").inc()
        log.info("prefix cached", extra={"prefix": prefix.name, "tokens": tokens})

    def _fail(self, name: str) -> None:
        self._metrics.warmed.labels("failed").inc()
        if name not in self._failed and len(self._failed) < _FAILED_SHOWN:
            self._failed.append(name)


def warm_request(model: str, prefix: Prefix) -> tuple[str, dict[str, object]]:
    """Path and body of the request that caches a prefix. ValueError where it has neither messages nor ids."""
    body: dict[str, object] = {
        "model": prefix.lora or model,
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        "vllm_xargs": {"kv_cache_report_mode": "full"},  # blocks found cached are announced again
    }
    if prefix.salt:
        body["cache_salt"] = prefix.salt
    if prefix.ids:
        if len(prefix.ids) % 4:
            raise ValueError("ids: not a multiple of 4 bytes")
        return "/v1/completions", body | {"prompt": list(struct.unpack(f"<{len(prefix.ids) // 4}I", prefix.ids))}
    if not prefix.messages:
        raise ValueError("neither messages nor ids")
    try:
        messages = _MESSAGES.decode(prefix.messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("messages: not a JSON array of objects") from error
    return "/v1/chat/completions", body | {"messages": messages}
