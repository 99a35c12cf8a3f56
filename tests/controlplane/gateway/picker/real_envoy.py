"""A real Envoy, from its wheel, before a picker and fake engines."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cachefleet_local.envoy.envoy_config import BodyMode, envoy_config

Change = Callable[[dict[str, Any]], None]
"""What a test changes of a configuration."""
ENVOY = Path(sys.executable).parent / "envoy"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def envoy_before(
    picker: str,
    workers: Sequence[str],
    folder: Path,
    *,
    mode: BodyMode,
    fail_open: bool = False,
    change: Change | None = None,
) -> AsyncIterator[str]:
    """An Envoy; its URL. ``picker`` and ``workers`` are addresses; "" where there is no picker."""
    listen = "127.0.0.1", free_port()
    config = envoy_config(
        listen, address(picker or ":1"), [address(one) for one in workers], mode=mode, fail_open=fail_open
    )
    if not picker:
        config["static_resources"]["clusters"][1]["load_assignment"]["endpoints"] = []
    if change is not None:
        change(config)
    async with envoy_running(config, folder, port=listen[1]) as url:
        yield url


@asynccontextmanager
async def envoy_running(config: dict[str, Any], folder: Path, *, port: int) -> AsyncIterator[str]:
    """An Envoy of this configuration, which has it listen at a port; its URL."""
    path = folder / f"envoy-{port}.json"
    path.write_text(json.dumps(config))
    options = ["-c", str(path), "--concurrency", "1", "-l", "warning", "--disable-hot-restart"]
    log = (folder / f"envoy-{port}.log").open("wb")
    process = await asyncio.create_subprocess_exec(ENVOY, *options, stdout=log, stderr=log)
    try:
        await _listens(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()
        log.close()


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
    raise AssertionError("Envoy has ended")


def address(text: str) -> tuple[str, int]:
    """The host and the port of an address."""
    host, _, port = text.rpartition(":")
    return host, int(port)
