"""What the plugin tells of an engine, over vLLM's own scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachefleet_worker.agent.engines.engine_poll import RankStats
from cachefleet_worker.plugin.engine_calls import _cachefleet_call
from tests.worker.plugin.stepping import ids, stepped


def stats(engine: Any, *, sleeping: bool = False) -> RankStats:
    """As an API server is told; ``sleeping``: the executor has given memory back."""
    core = SimpleNamespace(scheduler=engine.scheduler, model_executor=SimpleNamespace(is_sleeping=sleeping))
    return msgspec.convert(msgspec.msgpack.decode(_cachefleet_call(core, "stats", b"")), RankStats)


@pytest.mark.engine
def test_why_it_makes_no_step_and_what_a_step_could_go_on_with() -> None:
    from vllm.v1.core.sched.interface import PauseState  # noqa: PLC0415 - once a test runs

    engine = stepped()
    assert (stats(engine).suspended, stats(engine).unfinished) == ("", 0)
    engine.submit(ids(1, 40))
    assert (stats(engine).suspended, stats(engine).unfinished) == ("", 1)
    for state in (PauseState.PAUSED_NEW, PauseState.PAUSED_ALL):
        engine.scheduler.set_pause_state(state)
        assert stats(engine).suspended == "paused"
    assert stats(engine).unfinished == 0
    assert stats(engine, sleeping=True).suspended == "asleep"
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert stats(engine).suspended == ""
    engine.run()
    assert stats(engine).unfinished == 0
