"""Whether a tenant can tell by time what another has asked: probes of prompts that the other's requests have cached.

    python -m bench.tenant_timing [--probes 2000]

Before each probe the victim asks either the prompt that will be probed or another of the same length, by the toss of a
coin. The prober, another tenant, then asks the prompt and takes the time to the answer's first byte. If that told the
two cases apart, the area under the ROC curve of those times (the chance that a cached prompt is the faster one) would
be far from 0.5. As a check of the method the victim probes its own prompts: there it must be close to 1.

The engine is a fake whose prefill takes time in proportion to the tokens that are not cached; gateway, control plane
and agent are the real ones. No probe may be told of cached tokens. The exit status is 1 where the prober's area is
outside 0.45 to 0.55, or the victim's own below 0.9. Rows go to bench/results/tenant_timing.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import aiohttp

from bench.parts import POOL, Engine, Running, control_plane, cores, fake_engine
from cachefleet_core.tenancy import FleetKey

RESULTS: Final = Path(__file__).parent / "results" / "tenant_timing.json"
TOLERANCE: Final = 0.05
PLAIN: Final = 0.9
"""Area under the victim's own curve that shows that the method sees a difference where there is one."""
OWN_PROBES: Final = 100
PROMPT_CHARACTERS: Final = 640
PREFILL_TOKENS_PER_SECOND: Final = 20_000
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz "


@dataclass(frozen=True, slots=True)
class Row:
    """One prober's times: median milliseconds for prompts that the victim had asked and others, and the area."""

    prober: str
    probes: int
    asked_ms: float
    other_ms: float
    area: float


def area(smaller: Sequence[float], larger: Sequence[float]) -> float:
    """The chance that a draw of ``smaller`` is below one of ``larger``, ties counted half (Mann and Whitney, 1947)."""
    ranked = sorted(smaller)
    below = sum(bisect_left(ranked, value) + bisect_right(ranked, value) for value in larger) / 2
    return below / (len(smaller) * len(larger))


class Tenants:
    """Two tenants of a running control plane, and requests in their names."""

    def __init__(self, http: aiohttp.ClientSession, running: Running, model: str) -> None:
        self._http = http
        self._running = running
        self._model = model
        self._keys: dict[str, str] = {}

    async def make(self, name: str) -> None:
        """Make a tenant with a key."""
        await self._admin("/tenants", {"name": name})
        self._keys[name] = (await self._admin(f"/tenants/{name}/keys", {}))["key"]

    async def ask(self, name: str, prompt: str) -> tuple[float, int]:
        """Seconds to the first byte of the answer, and the cached tokens that it tells of."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        headers = {"authorization": f"Bearer {self._keys[name]}"}
        began = time.perf_counter()
        async with self._http.post(f"{self._running.gateway}/v1/completions", json=body, headers=headers) as answer:
            first = await answer.content.readany()
            seconds = time.perf_counter() - began
            text = first + await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the gateway answered {answer.status}: {text[:500]!r}")
        return seconds, _cached(json.loads(text))

    async def _admin(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url, headers = f"{self._running.internal}/admin/v1{path}", {"authorization": "Bearer admin"}
        async with self._http.post(url, json=body, headers=headers) as answer:
            if answer.status >= 300:
                raise RuntimeError(f"{path} answered {answer.status}: {await answer.text()}")
            told: dict[str, Any] = await answer.json()
            return told


def _cached(answer: dict[str, Any]) -> int:
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


async def probe(tenants: Tenants, prober: str, probes: int, rng: random.Random) -> Row:
    """Time ``probes`` prompts of which the victim has asked half."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(probes):
        prompt, other = (_prompt(rng) for _ in range(2))
        asked = rng.random() < 0.5
        await tenants.ask("victim", prompt if asked else other)
        seconds, cached = await tenants.ask(prober, prompt)
        if prober != "victim" and cached:
            raise RuntimeError(f"{prober} was told of {cached} cached tokens")
        times[asked].append(seconds)
        if number % 200 == 199:
            print(f"  {prober}: {number + 1} of {probes} probes", file=sys.stderr, flush=True)
    asked_ms, other_ms = (1000 * median(times[asked]) for asked in (True, False))
    return Row(prober, probes, asked_ms, other_ms, area(times[True], times[False]))


def _prompt(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=PROMPT_CHARACTERS))


async def measure(running: Running, engine: Engine, probes: int, seed: int) -> list[Row]:
    """The rows of the prober and of the victim itself."""
    rng = random.Random(seed)
    async with aiohttp.ClientSession() as http:
        tenants = Tenants(http, running, engine.model)
        for name in ("victim", "prober"):
            await tenants.make(name)
        return [await probe(tenants, "prober", probes, rng), await probe(tenants, "victim", OWN_PROBES, rng)]


def probed(probes: int, seed: int, *, prefill: float = PREFILL_TOKENS_PER_SECOND) -> list[Row]:
    """The rows of ``measure``, before processes of their own; ``prefill`` in tokens a second."""
    key, (one, two, three) = FleetKey.generate(), cores(3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine_options = {"prefill_tokens_per_second": prefill}
        with (
            fake_engine(folder, key.worker_key(POOL), core=one, **engine_options) as engine,
            control_plane(folder, key, engine, core=two, agent_core=three) as running,
        ):
            return asyncio.run(measure(running, engine, probes, seed))


def main(arguments: Sequence[str]) -> int:
    """Measure, print and keep the rows; 1 where the areas are not what they must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probes", type=int, default=2000, help="probes of the other tenant (default: 2000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rows = probed(options.probes, options.seed)
    for row in rows:
        print(
            f"{row.prober:8} {row.probes:5} probes   asked by the victim {row.asked_ms:6.1f} ms   not asked"
            f" {row.other_ms:6.1f} ms   area {row.area:.3f}"
        )
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    other, own = rows
    return int(abs(other.area - 0.5) > TOLERANCE or own.area < PLAIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
