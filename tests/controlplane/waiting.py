"""Waiting for what another task or thread does, and reading a counter."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from cachefleet_controlplane.metrics import Metrics


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """The limit ends a hang, and is of real time however a test's loop is hurried: threads are not. TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds} s")
        await asyncio.sleep(0.002)


@asynccontextmanager
async def task(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    """A task that is cancelled, and waited for, at the end."""
    running = asyncio.create_task(coroutine)
    try:
        yield running
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"cachefleet_{name}", labels) or 0.0
