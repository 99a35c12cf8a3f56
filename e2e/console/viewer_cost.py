"""``python -m e2e.console.viewer_cost``: CPU that viewers of the console's fleet page cost, by workers."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

import aiohttp

from e2e.console.console_fleet import TOKEN, pictured
from tests.fakes.big_fleet import BigFleet

_TICKS = os.sysconf("SC_CLK_TCK")


async def serve(workers: int, pools: int, busy: float) -> None:
    """Serve until standard input ends; the address is the only line printed."""
    with tempfile.TemporaryDirectory() as folder:
        async with pictured(Path(folder), BigFleet(pools=pools, workers=workers, busy=busy)) as address:
            print(address, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def view(address: str, ended: asyncio.Event) -> int:
    """Follow the fleet page until ``ended``; the bytes that came."""
    got = 0
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        form = {"data": {"token": TOKEN}, "headers": {"origin": address}}
        async with http.post(f"{address}/console/sign-in", **form) as page:  # type: ignore[arg-type]
            assert page.status == 200
        async with http.get(f"{address}/console/events", timeout=aiohttp.ClientTimeout(None)) as answer:
            assert answer.status == 200
            while not ended.is_set():
                got += len(await answer.content.readany())
    return got


def cpu(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measure(workers: int, pools: int, *, busy: float, viewers: int, seconds: float) -> None:
    """Print the share of a core that ``viewers`` cost over what the server uses without them."""
    command = ["-m", __spec__.name, "--serve", str(workers), str(pools), str(busy)]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe)
    assert server.stdout
    assert server.stdin
    address = (await server.stdout.readline()).decode().strip()
    ended = asyncio.Event()
    watching = [asyncio.create_task(view(address, ended)) for _ in range(viewers)]
    await asyncio.sleep(5)  # everything is imported and rendered once
    before = cpu(server.pid)
    await asyncio.sleep(seconds)
    share = (cpu(server.pid) - before) / seconds
    ended.set()
    got = sum(await asyncio.gather(*watching))
    server.stdin.close()
    await server.wait()
    each = got / max(1, viewers) / (seconds + 5) / 1024
    fleet = f"{workers:4} workers, {busy:4.0%} of them change a tick"
    print(f"{fleet}, {viewers} viewers: {share:6.2%} of a core, {each:.1f} KiB/s each", flush=True)


async def main() -> None:
    """Measure, or serve what is measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", nargs=3)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    if given.serve:
        workers, pools, busy = given.serve
        await serve(int(workers), int(pools), float(busy))
        return
    for workers, pools, busy in ((0, 0, 0.0), (2, 1, 1.0), (30, 3, 1.0), (300, 20, 0.1), (300, 20, 1.0)):
        for viewers in (0, 5) if workers == 0 else (5,):
            await measure(workers, pools, busy=busy, viewers=viewers, seconds=given.seconds)


if __name__ == "__main__":
    asyncio.run(main())
