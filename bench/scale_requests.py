"""Requests beside reports: completions of prompts that some workers hold, and the times of the decisions for them.

``python -m bench.scale_requests FILE`` is the control plane, whose decisions are timed; at SIGUSR2 those since the last
one go to FILE, as a JSON list of milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bench.parts import Running
from bench.proxies_engine import MODEL
from bench.rows import percentile
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.wiring.replica_process import main
from cachefleet_core.block_keys import Namespace
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.native import native_code
from cachefleet_core.tenancy import DEFAULT_TENANT, FleetKey, fleet_index_key, tenant_salt

PROMPT_TOKENS: Final = 2000
CONTRACT: Final = IndexContract(weights="bench", tokenizer="bench", block_size=16)


class Requests:
    """Completions of prompts that some workers hold, by their ids."""

    def __init__(self, key: FleetKey, http: aiohttp.ClientSession, prompts: int) -> None:
        """Prompt number p is held by the workers whose numbers leave p when divided by ``prompts``."""
        chance = random.Random(7)
        self._http = http
        self._ids = [[chance.randrange(1000, 50_000) for _ in range(PROMPT_TOKENS)] for _ in range(prompts)]
        namespace = Namespace(CONTRACT.fingerprint(), tenant_salt(key.salt_key, DEFAULT_TENANT))
        index_key = fleet_index_key(key.index_key, "default", MODEL)
        keyer = native_code().keyer(index_key, namespace, CONTRACT.block_size)
        self.keys = [keyer.packed_keys(ids) for ids in self._ids]
        self._bodies = [msgspec.json.encode({"model": MODEL, "prompt": ids, "max_tokens": 1}) for ids in self._ids]
        self.strayed: set[str] = set()

    async def window(self, running: Running, seconds: float, rate: float) -> tuple[float, float]:
        """Ask so often a second; milliseconds at the median and the 99th percentile."""
        began, tasks = time.monotonic(), []
        for number in range(int(seconds * rate)):
            await asyncio.sleep(began + number / rate - time.monotonic())
            tasks.append(asyncio.create_task(self._ask(running, number % len(self.keys))))
        spent = [1000 * each for each in await asyncio.gather(*tasks)]
        return percentile(spent, 50), percentile(spent, 99)

    async def _ask(self, running: Running, prompt: int) -> float:
        began = time.perf_counter()
        headers = {"content-type": "application/json"}
        url = f"{running.gateway}/v1/completions"
        async with self._http.post(url, data=self._bodies[prompt], headers=headers) as answer:
            await answer.read()
        spent = time.perf_counter() - began
        worker = answer.headers.get("x-cachefleet-worker", "none")
        if answer.status != 200 or int(worker.rpartition("-")[2]) % len(self.keys) != prompt:
            self.strayed.add(f"prompt {prompt} went to {worker}, by {answer.headers.get('x-cachefleet-knowledge')}")
        return spent


class DecisionTimes:
    """Milliseconds of each decision of this process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spent: list[float] = []

    def begin(self) -> None:
        """Time every decision from now on."""
        route = Fleet.route

        def timed(fleet: Fleet, *arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            decision = route(fleet, *arguments, **options)
            self._spent.append(1000 * (time.perf_counter() - began))
            return decision

        setattr(Fleet, "route", timed)  # noqa: B010 - a method is not assigned to

    def tell(self, *_: object) -> None:
        """Write them, and begin anew."""
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self._spent))
        part.rename(self._file)
        self._spent.clear()


if __name__ == "__main__":
    times = DecisionTimes(Path(sys.argv.pop()))
    times.begin()
    signal.signal(signal.SIGUSR2, times.tell)
    sys.exit(main())
