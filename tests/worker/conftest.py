from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cachefleet_worker.agent.settings import AgentSettings
from tests.fakes import loop_clock
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import INDEX_KEY

MakeSettings = Callable[..., AgentSettings]


@pytest.fixture
def make_settings(tmp_path: Path) -> MakeSettings:
    """Settings of an agent in this process: quick, on free ports, the engine's key being "key"."""
    (tmp_path / "index.key").write_text(base64.urlsafe_b64encode(INDEX_KEY).decode())
    (tmp_path / "worker.key").write_text("key\n")

    def make(**changes: Any) -> AgentSettings:
        values: dict[str, Any] = {
            "worker": "demo-0",
            "pool": "default/demo",
            "index_key_file": tmp_path / "index.key",
            "worker_key_file": tmp_path / "worker.key",
            "http_host": "127.0.0.1",
            "http_port": 0,
            "poll_seconds": 0.05,
            "reconnect_base_seconds": 0.02,
            "reconnect_cap_seconds": 0.2,
            "replay_timeout_seconds": 5,
            "resolve_seconds": 0.1,
            "unreachable_polls": 2,
            "drain_settle_seconds": 0.1,
        }
        return AgentSettings(**(values | changes))

    return make


@pytest.fixture
async def hurried() -> AsyncIterator[None]:
    """Not too quick for ZMQ, which has a thread of its own."""
    with loop_clock.hurried(asyncio.get_running_loop(), pace=10):
        yield


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as plane:
        yield plane
