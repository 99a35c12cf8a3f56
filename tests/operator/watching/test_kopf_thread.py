"""The thread of the watches ends quietly where the loop that it reports to is gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cachefleet_operator.watching.kopf_thread import Watch, WatchError


def test_watches_that_outlive_their_process_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They did not stop in time, so nobody waits for them any more."""
    go = threading.Event()
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    async def operate(_watch: Watch, _outer: Any) -> None:
        go.wait(30)

    monkeypatch.setattr(Watch, "_operate", operate)

    async def cancelled() -> None:
        task = asyncio.ensure_future(Watch(lambda _key: None, (), stop_seconds=0.01).run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(WatchError):
            await task

    asyncio.run(cancelled())
    (thread,) = (each for each in threading.enumerate() if each.name == "watches")
    go.set()
    thread.join(30)
    assert raised == []
