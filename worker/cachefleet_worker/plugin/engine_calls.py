"""Calls from an API server process to each of its engines: one utility method, bytes in and bytes out."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

METHOD: Final = "cachefleet_call"
STOCK: Final = b""
"""Answer of an engine with the stock scheduler; none of ours is empty."""


class EngineCallError(Exception):
    """An engine did not answer a call, or refused it."""


class StockEngineError(EngineCallError):
    """The engine runs without cachefleet's scheduler."""


def install_method() -> None:
    """Add the utility method to vLLM's EngineCore. Idempotent."""
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - only where vLLM runs

    if not hasattr(EngineCore, METHOD):
        setattr(EngineCore, METHOD, _cachefleet_call)


def _cachefleet_call(self: Any, name: str, payload: bytes) -> bytes:
    """Runs in the engine's process, on its own thread, between steps."""
    state = getattr(self.scheduler, "cachefleet", None)
    if state is None:
        return STOCK
    state.executor = getattr(self, "model_executor", None)
    answer: bytes = state.call(name, bytes(payload))
    return answer


class EngineCalls:
    """Calls to the engines of an API server, by data-parallel rank."""

    def __init__(self, engine_client: Any, *, timeout_seconds: float) -> None:
        self._core = engine_client.engine_core
        self._timeout = timeout_seconds

    async def all(self, name: str, payload: bytes = b"") -> dict[int, Any]:
        """The decoded answers by rank. EngineCallError where one engine does not answer in time."""
        engines = self._engines()
        answers = await asyncio.gather(*(self._ask(engine, name, payload) for engine in engines.values()))
        return dict(zip(engines, answers, strict=True))

    async def one(self, rank: int, name: str, payload: bytes = b"") -> Any:
        """One rank's decoded answer. EngineCallError, also where there is no such rank."""
        engines = self._engines()
        if rank not in engines:
            raise EngineCallError(f"rank: must be one of {', '.join(map(str, sorted(engines)))}, got {rank}")
        return await self._ask(engines[rank], name, payload)

    def _engines(self) -> dict[int, bytes]:
        """Engines by rank; vLLM names an engine by its rank, in two bytes."""
        return {int.from_bytes(engine, "little"): engine for engine in self._core.core_engines}

    async def _ask(self, engine: bytes, name: str, payload: bytes) -> Any:
        try:
            asked = self._core._call_utility_async(METHOD, name, payload, engine=engine)  # noqa: SLF001 - the client has no public call to one rank
            answer = await asyncio.wait_for(asked, self._timeout)
        except TimeoutError:
            raise EngineCallError(f"the engine did not answer within {self._timeout:g} s") from None
        except Exception as error:  # vLLM wraps its engine's exceptions in types of its own
            raise EngineCallError(str(error) or type(error).__name__) from error
        if answer == STOCK:
            raise StockEngineError("this engine runs without the cachefleet scheduler")
        return msgspec.msgpack.decode(answer)
