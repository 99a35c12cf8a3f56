"""Adapters (LoRA) of the fake engine: its routes for loading them while it runs, its models and its metric of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from aiohttp import web

from tests.fakes.answers import Json
from tests.fakes.failures import Refusal
from tests.fakes.options import EngineOptions


class Adapters:
    """What is served; paths below /missing cannot be loaded."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self.served: dict[str, str] = dict(options.adapters)
        self.busy: tuple[str, ...] = ()
        """Adapters with requests, as the metric tells them."""
        self.calls: list[tuple[str, ...]] = []
        """Name and path of each that was loaded or tried, the name alone of each that was unloaded."""
        self.loadable = asyncio.Event()
        """Not set: loading does not end."""
        self.loadable.set()

    def table(self) -> list[web.RouteDef]:
        if not self._options.loads_adapters:
            return []
        return [
            web.post("/v1/load_lora_adapter", self._load),
            web.post("/v1/unload_lora_adapter", self._unload),
        ]

    def cards(self, base: Json) -> list[dict[str, Any]]:
        """Entries of /v1/models."""
        return [{**base, "id": name, "root": path, "parent": base["id"]} for name, path in self.served.items()]

    def page(self) -> bytes:
        """The metric, as vLLM has it: a sample for each set of names that there was, here the last one."""
        if not self._options.adapter_slots:
            return b""
        names = ",".join(self.busy)
        labels = f'max_lora="{self._options.adapter_slots}",running_lora_adapters="{names}",waiting_lora_adapters=""'
        return f"vllm:lora_requests_info{{{labels}}} {time.time()}\n".encode()

    async def _load(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=dict[str, Any])
        name, path = body["lora_name"], body["lora_path"]
        self.calls.append((name, path))
        await self.loadable.wait()
        if name in self.served:
            message = f"The lora adapter '{name}' has already been loaded."
            raise Refusal(400, message, "InvalidUserInput")
        if path.startswith("/missing"):
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise Refusal(404, message, "NotFoundError")
        self.served[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = msgspec.json.decode(await request.read(), type=dict[str, Any])["lora_name"]
        self.calls.append((name,))
        if self.served.pop(name, None) is None:
            raise Refusal(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")
