"""``cachefleet up``: a pool file's fleet in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from cachefleet_local.cli.commands.console_link import console_link
from cachefleet_local.cli.contexts.access import AdminAccess
from cachefleet_local.cli.screen import Screen
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.fleet.local_fleet import LocalFleet, Options, Prepared, prepared
from cachefleet_local.fleet.machine import unused_fields
from cachefleet_local.fleet.pool_file import control_plane_of, read_pools

STOCK: Final = (
    "note: the engines' Python has no cachefleet in it, so they are stock vLLM: "
    "no hit threshold, no hand-back, no bound on the idle cache that changes while they run"
)


def up(pool_file: Path, options: Options, console: Console) -> None:
    """Run the pools of a file until a signal. FailureError where they cannot be started."""
    if not sys.platform.startswith("linux"):
        raise FailureError(["cachefleet up needs Linux; elsewhere use a container or a virtual machine"])
    pools = read_pools(pool_file)
    control_plane_of(pools)
    for line in unused_fields(pools):
        console.print(f"note: {line}", style="yellow", highlight=False, markup=False)
    with prepared(pools, options) as fleet:
        if not fleet.plugin:
            console.print(STOCK, style="yellow", highlight=False, markup=False)
        screen = Screen(console)
        try:
            until_stopped(_run(fleet, screen), screen)
        finally:
            screen.stopped()


def until_stopped(work: Coroutine[Any, Any, None], screen: Screen) -> None:
    """Run ``work``; the first SIGINT, SIGTERM or SIGHUP cancels it, and then this returns as if it had ended."""

    async def main() -> None:
        task = asyncio.create_task(work)
        told = False

        def stop() -> None:
            nonlocal told
            screen.stopping()
            if not told:  # cleaning up takes seconds; a second signal must not cut it short
                told = task.cancel()

        hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]  # under nohup
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        await asyncio.wait({task})
        if not (told and task.cancelled()):
            task.result()

    asyncio.run(main())


async def _run(fleet: Prepared, screen: Screen) -> None:
    screen.starting(fleet.plan.processes)
    async with LocalFleet(fleet, screen.changed, screen.show_lines) as running:
        screen.ready(fleet, await signed_in_console(fleet, screen))
        await running.ended()


async def signed_in_console(fleet: Prepared, screen: Screen) -> str:
    """The console's address: one that signs in, where a person reads it and no log keeps it."""
    if not (screen.for_people or fleet.options.browse):
        return ""
    token = fleet.folder.admin_token_file.read_text().strip()
    try:
        link = await asyncio.to_thread(console_link, AdminAccess(fleet.plan.internal_url, token))
    except FailureError as error:  # the fleet runs, and a token can be pasted
        screen.note(error.lines[0])
        return ""
    if fleet.options.browse:
        await asyncio.to_thread(webbrowser.open, link)
    return link if screen.for_people else ""


def problem_lines(lines: Sequence[str], console: Console) -> None:
    """Print the lines of a failure, without markup or wrapping."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
