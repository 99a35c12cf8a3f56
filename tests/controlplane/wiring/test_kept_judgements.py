"""A control plane that is restarted goes on with the minutes of its contracts."""

import json
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.controlplane.gateway.harness import POOL, engine
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_advice_errors import Pool
from tests.controlplane.wiring.test_control_plane import POOL_FILE, Plane, running

CONTRACT = "  tenancy:\n    contracts:\n    - {tenant: acme, share: 0.5}\n"


async def judged(made: Plane, pool: Pool, folder: Path, at: float, minutes: int) -> dict[str, Any]:
    """What is told of the contract after so many minutes more, from ``at`` on."""
    records = made.plane.contracts
    records._clock = lambda: at
    (folder / "pool.yaml").write_text(POOL_FILE.rstrip() + "\n" + CONTRACT)
    await until(lambda: any(pool.spec.tenancy.contracts for m in made.plane.fleet.models() for pool in m.declared))
    pool.report()
    for minute in range(minutes + 1):
        records._clock = lambda minute=minute: at + 60.0 * minute  # type: ignore[misc]
        records.tick()
    await made.plane.judgements.log.exchange()
    status, body = await made.get(f"/admin/v1/contracts?pool={POOL}", "for-people")
    assert status == 200
    [one] = json.loads(body)["items"]
    return dict(one)


async def test_a_restart_goes_on_with_the_minutes_of_a_contract(tmp_path: Path) -> None:
    begin = time.time() // 3600 * 3600  # all in one hour
    async with engine() as worker, aiohttp.ClientSession() as http:
        async with running(tmp_path, worker) as made:
            pool = Pool(made, http, tmp_path)
            await pool.has(worker)
            before = await judged(made, pool, tmp_path, begin, 3)
            assert (before["hour"]["minutes"], before["reasons"]) == (3, ["not_enforced"])
        async with running(tmp_path, worker) as made:
            pool = Pool(made, http, tmp_path)
            await pool.has(worker)
            after = await judged(made, pool, tmp_path, begin + 600, 2)
    assert after["hour"]["minutes"] == 5
    assert after["hour"]["missedMinutes"] == {"not_enforced": 5}
    assert after["month"]["minutes"] == 5
