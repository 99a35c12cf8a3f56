"""Runs the trace on a running fleet, once under each policy, each time with empty caches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cachefleet_local.cli.admin_client import AdminClient
from cachefleet_local.cli.contexts.access import Where, find_access
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.demo.client import Target, send_all
from cachefleet_local.demo.engines import Engines
from cachefleet_local.demo.report import Answer, EngineCounts, Phase
from cachefleet_local.demo.workload import Request
from cachefleet_local.fleet.local_fleet import Prepared

REQUEST_TIMEOUT_SECONDS: Final = 120.0
DECISIONS_SECONDS: Final = 60.0
"""How long the decision log may take to write what was decided."""
_MOST_DECISIONS: Final = 500
_POLL_SECONDS: Final = 0.25


async def compare(fleet: Prepared, trace: Sequence[Request], console: Console) -> tuple[Phase, Phase]:
    """Run the trace under round robin, then cache-aware; the results in that order."""
    admin = AdminClient(find_access(Where(fleet.plan.internal_url, fleet.folder.admin_token_file), {}))
    timeout = aiohttp.ClientTimeout(REQUEST_TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        pool = fleet.pools[0]
        key = fleet.folder.worker_key_file(pool.key).read_text().strip()
        engines = Engines(session, fleet.plan.workers, model=pool.spec.model.name, key=key)
        stage = PolicyRun(Target(fleet.plan.gateway_url, pool.spec.model.name), admin, engines, console)
        return await stage.phase("roundRobin", trace), await stage.phase("cacheAware", trace)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """Runs the trace under one policy at a time on one fleet."""

    target: Target
    admin: AdminClient
    engines: Engines
    console: Console

    async def phase(self, policy: str, trace: Sequence[Request]) -> Phase:
        """Empty the caches, set the policy, send the whole trace; returns what was measured."""
        await self.engines.clear(self.admin)
        await asyncio.to_thread(self.admin.put, "routing", {"policy": policy})
        before, began = await self.engines.counts(), time.monotonic()
        answers = await self._send(policy, trace)
        seconds, after = time.monotonic() - began, await self.engines.counts()
        counts = EngineCounts(after.prompt_tokens - before.prompt_tokens, after.cached_tokens - before.cached_tokens)
        predicted = await self._predictions({answer.decision for answer in answers if not answer.failure})
        return Phase(policy, answers, predicted, counts, seconds)

    async def _send(self, policy: str, trace: Sequence[Request]) -> list[Answer]:
        terminal = self.console.is_terminal
        columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, disable=not terminal) as bar:
            task = bar.add_task(policy, total=len(trace))
            answers = await send_all(self.target, trace, lambda: bar.advance(task))
        if not terminal:
            self.console.print(f"{policy}: {len(answers)} requests sent and answered", highlight=False)
        return answers

    async def _predictions(self, wanted: set[str]) -> dict[str, int]:
        """Predicted tokens by decision, once the log has written them all. FailureError where it does not."""
        deadline = time.monotonic() + DECISIONS_SECONDS
        while True:
            told = await asyncio.to_thread(self.admin.get, "decisions", {"limit": str(_MOST_DECISIONS)})
            items = told["items"]
            found = {item["id"]: int(item["predictedTokens"]) for item in items if item["id"] in wanted}
            if len(found) == len(wanted):
                return found
            if time.monotonic() > deadline:
                raise FailureError([f"the decision log has {len(found)} of {len(wanted)} decisions"])
            await asyncio.sleep(_POLL_SECONDS)
