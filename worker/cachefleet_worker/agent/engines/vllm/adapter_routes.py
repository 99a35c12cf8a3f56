"""vLLM's routes for adapters (LoRA): which are served, and loading and unloading them while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_core.pool.adapter_options import RUNTIME_ADAPTERS
from cachefleet_worker.agent.engines.engine_errors import EngineError
from cachefleet_worker.agent.engines.vllm.http_client import AnswerError, EngineClient, RefusedAnswerError

LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"
_NO_ROUTE: Final = f"the engine loads no adapters while it runs: set {RUNTIME_ADAPTERS} to 1 in spec.engine.env"


class _Error(Struct, frozen=True):
    message: str = ""


class _Answer(Struct, frozen=True):
    error: _Error = _Error()


class AdapterRoutes:
    """Requests about adapters, as ``AdapterControl`` says."""

    def __init__(self, client: EngineClient, *, load_seconds: float) -> None:
        self._client = client
        self._load_seconds = load_seconds

    async def served(self) -> Mapping[str, str]:
        """The adapters served, in the order in which they were loaded, and from where."""
        with _in_words():
            return (await self._client.models()).adapters

    async def load(self, name: str, path: str) -> None:
        """Load an adapter under an unused name; the engine blocks while it reads the weights."""
        with _in_words():
            await self._client.request("POST", LOAD, {"lora_name": name, "lora_path": path}, self._load_seconds)

    async def unload(self, name: str) -> None:
        """Unload an adapter; running requests finish with it."""
        with _in_words():
            try:
                await self._client.request("POST", UNLOAD, {"lora_name": name})
            except RefusedAnswerError as error:
                if error.status != 404:
                    raise


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except AnswerError as error:
        raise EngineError(words(error)) from error


def words(error: AnswerError) -> str:
    """The engine's message for a failed request, on one line."""
    message = _message(error.content)
    if error.status == 404 and message in {"", "Not Found"}:
        return _NO_ROUTE
    return " ".join((message or str(error)).split())


def _message(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=_Answer).error.message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
