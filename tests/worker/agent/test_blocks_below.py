"""From a connector's events to a decision: what left the device is loaded from the host's memory, not computed.

The engine is a fake that announces copies as OffloadingConnector does; the connector itself needs a GPU.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt
from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.reference.throughput import DEFAULT_LOADED_PER_SECOND
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import prompt
from tests.worker.agent.test_joint import FLEET_INDEX_KEY, POOL, control_plane

pytestmark = pytest.mark.usefixtures("hurried")

OFFLOADING = POOL.replace("maxModelLen: 512", "maxModelLen: 512, kvTransfer: {kv_connector: OffloadingConnector}")
BLOCK = 32
TOKENS = prompt(1, 150)
"""Four full blocks."""


def decide(fleet: Fleet, salt: str = "a") -> Decision:
    keyer = fleet.keyer("fake", salt=salt)
    if keyer is None:
        return fleet.route("fake", Prompt())
    return fleet.route("fake", Prompt(len(TOKENS), keyer.packed_keys(TOKENS), BLOCK, 1, Knowledge.EXACT))


async def test_what_left_the_device_is_loaded(make_settings: Callable[..., AgentSettings], tmp_path: Any) -> None:
    port = take_ports({"internal": 0})["internal"]
    (tmp_path / "token").write_text("token")
    (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(FLEET_INDEX_KEY).decode())
    async with FakeEngine(api_key="key", num_blocks=40, block_size=BLOCK) as engine, aiohttp.ClientSession() as http:

        async def ask(tokens: list[int], salt: str) -> None:
            body = {"model": "fake", "prompt": tokens, "max_tokens": 1, "cache_salt": salt}
            headers = {"Authorization": "Bearer key"}
            async with http.post(engine.url + "/v1/completions", json=body, headers=headers) as answer:
                assert answer.status == 200

        urls = {"engine_url": engine.url, "control_planes": f"ws://127.0.0.1:{port}"}
        settings = make_settings(**urls, token_file=tmp_path / "token", weights="fake")
        async with running(settings), control_plane(port, OFFLOADING) as fleet:
            await ask(TOKENS, "a")
            engine.offload()
            await ControlPlane().until(lambda: decide(fleet).predicted_tokens == 4 * BLOCK)
            assert decide(fleet).loaded_tokens == 0

            for seed in range(2, 14):
                await ask(prompt(seed, 150), "b")
            await ControlPlane().until(lambda: decide(fleet).loaded_tokens == 4 * BLOCK)
            decision = decide(fleet)
            [score] = decision.leading
            assert (decision.predicted_tokens, score.matched_blocks) == (4 * BLOCK, 0)
            assert score.loading_seconds == 4 * BLOCK / DEFAULT_LOADED_PER_SECOND
            assert decide(fleet, salt="b").predicted_tokens == 0

            def measured() -> bool:
                engine.load(100, 0.01)
                return decide(fleet).leading[0].loading_measured

            assert not measured()
            await ControlPlane().until(measured)
            assert decide(fleet).leading[0].loading_seconds == pytest.approx(4 * BLOCK / 10_000)

            engine.has_host_room(2)  # of the four, which were never said to be gone, the longest held are
            await ControlPlane().until(lambda: decide(fleet).loaded_tokens == 0)
