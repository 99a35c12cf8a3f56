"""From the API server's processes to every engine of it: one utility method, bytes in and bytes out."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

METHOD: Final = "cachefleet_call"


class EngineCallError(Exception):
    """An engine did not answer a call, or refused it."""


def install_method() -> None:
    """Give vLLM's EngineCore the utility method. Idempotent."""
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - only where vLLM runs

    if not hasattr(EngineCore, METHOD):
        setattr(EngineCore, METHOD, _cachefleet_call)


def _cachefleet_call(self: Any, name: str, payload: bytes) -> bytes:
    """Runs in the engine's process, on its own thread, between steps."""
    side = getattr(self.scheduler, "cachefleet", None)
    if side is None:
        raise LookupError("this engine runs without the cachefleet scheduler")
    answer: bytes = side.call(name, bytes(payload))
    return answer


class EngineCalls:
    """What an API server may ask of its engines."""

    def __init__(self, engine_client: Any, *, timeout_seconds: float) -> None:
        self._core = engine_client.engine_core
        self._timeout = timeout_seconds

    async def all(self, name: str, payload: bytes = b"") -> dict[int, Any]:
        """The decoded answers by rank. EngineCallError where one engine does not answer in time."""
        answers = await self._call(self._ask_all(name, payload))
        return {rank: msgspec.msgpack.decode(answer) for rank, answer in enumerate(answers)}

    async def one(self, rank: int, name: str, payload: bytes = b"") -> Any:
        """One rank's decoded answer. EngineCallError, also where there is no such rank."""
        engines = self._engines()
        if not 0 <= rank < len(engines):
            raise EngineCallError(f"rank: must be from 0 to {len(engines) - 1}, got {rank}")
        answer = await self._call(self._core._call_utility_async(METHOD, name, payload, engine=engines[rank]))  # noqa: SLF001 - the client has no public call to one rank
        return msgspec.msgpack.decode(answer)

    def _engines(self) -> list[Any]:
        return list(getattr(self._core, "core_engines", None) or [self._core.core_engine])

    async def _ask_all(self, name: str, payload: bytes) -> list[bytes]:
        asked = (self._core._call_utility_async(METHOD, name, payload, engine=engine) for engine in self._engines())  # noqa: SLF001 - as above
        return list(await asyncio.gather(*asked))

    async def _call(self, asked: Any) -> Any:
        try:
            return await asyncio.wait_for(asked, self._timeout)
        except TimeoutError:
            raise EngineCallError(f"the engine did not answer within {self._timeout:g} s") from None
        except Exception as error:  # vLLM wraps what its engine raised in types of its own
            raise EngineCallError(str(error) or type(error).__name__) from error
