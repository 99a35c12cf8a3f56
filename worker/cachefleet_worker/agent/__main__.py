"""``python -m cachefleet_worker.agent``: the agent's process, configured by ``CACHEFLEET_*`` variables."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import aiohttp
from pydantic import ValidationError

from cachefleet_core.environment.removed_variables import removed_lines
from cachefleet_core.exit_statuses import KEY_REFUSED
from cachefleet_core.report_frames import Drain
from cachefleet_runtime import logs
from cachefleet_worker.agent.agent import Agent
from cachefleet_worker.agent.engine_arrival import KeyRefusedError
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import build_agent

_EXIT_USAGE = 2
_LAST_WORDS = Path("/dev/termination-log")
"""Where the kubelet reads why a container has ended."""


def main() -> int:
    """Run until SIGTERM or SIGINT, then drain; returns the exit status: 2 where the settings are wrong, 78
    where the engine does not take the worker key.
    """
    try:
        settings = AgentSettings()
    except ValidationError as error:
        logs.refuse(_lines(error))
        return _EXIT_USAGE
    logs.configure(settings.log_format, "INFO", fields={"worker": settings.worker, "pool": settings.pool})
    for line in removed_lines("agent", os.environ):
        logging.getLogger(__name__).warning(line)
    try:
        return asyncio.run(_serve(settings))
    except (OSError, ValueError) as error:
        logs.refuse([f"cachefleet agent: {error}"], form=settings.log_format)
        return _EXIT_USAGE


def _lines(error: ValidationError) -> list[str]:
    """One line for each variable that cannot be used."""
    problems = error.errors(include_input=False, include_url=False)
    return [f"CACHEFLEET_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in problems]


async def _serve(settings: AgentSettings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with aiohttp.ClientSession(trust_env=False) as http:
        agent = build_agent(settings, http)
        work = asyncio.create_task(agent.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not work.done():
            await _drain(agent, settings)
            work.cancel()
        results = await asyncio.gather(work, return_exceptions=True)
    return _exit_code(results[0])


async def _drain(agent: Agent, settings: AgentSettings) -> None:
    agent.drain(Drain(seconds=settings.drain_seconds))
    await agent.drained()
    await asyncio.sleep(settings.delta_seconds)  # time for the last State to be sent


def _exit_code(result: BaseException | None) -> int:
    if result is None or isinstance(result, asyncio.CancelledError):
        return 0
    if isinstance(result, BaseExceptionGroup):
        result = result.exceptions[0]
    if isinstance(result, OSError):
        raise result
    if isinstance(result, KeyRefusedError):
        logging.getLogger(__name__).error("%s", result)
        _leave_word(str(result))
        return KEY_REFUSED
    logging.getLogger(__name__).error("agent failed", exc_info=result)
    return 1


def _leave_word(text: str) -> None:
    with contextlib.suppress(OSError):  # outside of a pod there is none
        if _LAST_WORDS.exists():
            _LAST_WORDS.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
