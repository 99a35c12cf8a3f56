"""Two tenants before one real vLLM: of one that floods it few answers are under way, and the other one never waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from cachefleet_controlplane.gateway.place.fair_shares import UNDER_SHARE
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.long_answers import COMPLETION, Said, ask
from e2e.engine.storm import prompts

POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: shared}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  replicas: 1
  engine: {maxModelLen: 1900, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 502}
  prefixCache: {budgetMiB: 1}
  admission: {maxQueueSeconds: 300, sharedRequests: %d}
"""
TENANT_HEADER: Final = "x-gateway-inference-fairness-id"
MOST: Final = 2
FLOOD: Final = 12


@pytest.mark.slow
def test_a_flood_waits_at_the_gateway_while_another_tenant_is_there(tmp_path: Path) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL % MOST)
    with running_up(pool, tmp_path) as fleet:
        until(lambda: fleet.live(1), READY_SECONDS, "whole")
        alone, beside, quiet = asyncio.run(_asked(fleet))
        assert [said.error for said in (*alone, *beside, *quiet) if said.error] == []
        assert not any(_waited(fleet, said) for said in alone), "nobody else is there"
        assert sum(_waited(fleet, said) for said in beside) >= FLOOD - UNDER_SHARE * MOST
        assert not any(_waited(fleet, said) for said in quiet)


async def _asked(fleet: Up) -> tuple[list[Said], list[Said], list[Said]]:
    """Answers to a flood of nobody else, to the same beside another tenant, and to that one."""

    async def asked(tenant: str, prompt: list[int], outputs: int) -> Said:
        body: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": outputs, "stream": True}
        return await ask(fleet.gateway, COMPLETION, body, headers={TENANT_HEADER: tenant})

    given = prompts(7, 2 * FLOOD + 2)
    alone = await asyncio.gather(*(asked("noisy", given.pop(), 20) for _ in range(FLOOD)))
    quiet = [await asked("quiet", given.pop(), 4)]
    flood = [asyncio.create_task(asked("noisy", given.pop(), 600)) for _ in range(FLOOD)]
    await asyncio.sleep(1)
    quiet.append(await asked("quiet", given.pop(), 4))
    return alone, await asyncio.gather(*flood), quiet


def _waited(fleet: Up, said: Said) -> bool:
    return fleet.decision(said.decision)["queuedSeconds"] is not None
