"""Where an agent listens."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from cachefleet_core.report_frames import Phase
from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane


async def test_an_agent_is_reached_at_addresses_of_both_families(
    make_settings: Callable[..., AgentSettings], plane: ControlPlane
) -> None:
    own = {"http_host": "::", "http_port": take_ports({"agent": 0})["agent"], "control_planes": plane.url}
    async with (
        FakeEngine(api_key="key") as engine,
        aiohttp.ClientSession() as http,
        running(make_settings(engine_url=engine.url, **own)),
    ):
        await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
        for host in ("127.0.0.1", "[::1]"):
            async with http.get(f"http://{host}:{own['http_port']}/healthz") as response:
                assert response.status == 200
