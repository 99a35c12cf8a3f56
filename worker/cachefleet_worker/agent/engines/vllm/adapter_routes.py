"""vLLM's routes for adapters (LoRA): which are served, and loading and unloading them while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from cachefleet_core.pool.adapter_options import RUNTIME_ADAPTERS
from cachefleet_worker.agent.engines.vllm.http_client import (
    EngineAnswerError,
    EngineClient,
    EngineError,
    EngineRefusalError,
)

LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"
_NO_ROUTE: Final = f"the engine loads no adapters while it runs: set {RUNTIME_ADAPTERS} to 1 in spec.engine.env"


class _Error(Struct, frozen=True):
    message: str = ""


class _Answer(Struct, frozen=True):
    error: _Error = _Error()


class AdapterRoutes:
    """Requests about adapters. Every method raises EngineError where the answer is not as expected."""

    def __init__(self, client: EngineClient, *, load_seconds: float) -> None:
        self._client = client
        self._load_seconds = load_seconds

    async def served(self) -> Mapping[str, str]:
        """The adapters served, in the order in which they were loaded, and from where."""
        return await self._client.adapters()

    async def load(self, name: str, path: str) -> None:
        """Load an adapter under a name that no other has; the engine stands still while it reads the weights."""
        await self._client.request("POST", LOAD, {"lora_name": name, "lora_path": path}, self._load_seconds)

    async def unload(self, name: str) -> None:
        """Serve an adapter no longer; requests that have begun end with it."""
        try:
            await self._client.request("POST", UNLOAD, {"lora_name": name})
        except EngineRefusalError as error:
            if error.status != 404:
                raise


def words(error: EngineError) -> str:
    """Why a request failed, as the engine says it where it does; without line breaks."""
    told = _message(error.content) if isinstance(error, EngineAnswerError) else ""
    if isinstance(error, EngineRefusalError) and error.status == 404 and told in {"", "Not Found"}:
        return _NO_ROUTE
    return " ".join((told or str(error)).split())


def _message(content: bytes) -> str:
    try:
        return msgspec.json.decode(content, type=_Answer).error.message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
