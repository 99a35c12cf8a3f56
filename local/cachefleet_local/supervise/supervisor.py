"""Starts, probes and ends processes as ``supervision.step`` decides; each runs under a guard (guard.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import aiohttp

from cachefleet_local.supervise import guard
from cachefleet_local.supervise.listeners import listeners
from cachefleet_local.supervise.process_spec import SOCKETS_VARIABLE, ProcessSpec
from cachefleet_local.supervise.process_states import Action, Event, Life, State, step

PROBE_TIMEOUT_SECONDS: Final = 2.0
STARTING_PROBE_SECONDS: Final = 0.25
READY_PROBE_SECONDS: Final = 1.0
PATIENCE: Final = 3
"""Probes in a row without a reply before a ready process counts as silent; a negative reply counts at once."""
_AFTER_GRACE_SECONDS: Final = 5.0

Changed = Callable[[ProcessSpec, Life], None]


class Supervisor:
    """Starts processes in order, starts them again when they end, and ends them all on ``stop``.

    ``changed`` is called with each new state of a process. At most ``parallel_starts`` heavy processes start at once.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        changed: Changed,
        parallel_starts: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lives: dict[str, Life] = {spec.name: Life() for spec in specs}
        self._specs = specs
        self._changed = changed
        self.clock = clock
        self.slots = asyncio.Semaphore(parallel_starts)
        self.stopping = asyncio.Event()
        self._news = asyncio.Condition()
        self.listeners: Mapping[int, socket.socket] = {}
        """Sockets that listen for processes, by port: those of one port share its socket."""

    def stop(self) -> None:
        """Ask all processes to end; ``run`` returns when they have."""
        self.stopping.set()

    async def run(self) -> None:
        """Supervise until ``stop``; no process is left when it returns or raises."""
        timeout = aiohttp.ClientTimeout(PROBE_TIMEOUT_SECONDS)
        with listeners({port for spec in self._specs for port in spec.ports}) as self.listeners:
            async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
                for spec in self._specs:
                    group.create_task(_Supervised(self, spec, session).live())

    async def settled(self) -> bool:
        """Wait until all are ready (True), or one has failed or stopped (False)."""
        async with self._news:
            await self._news.wait_for(lambda: self._all_ready() or self._any_over())
        return self._all_ready()

    def _all_ready(self) -> bool:
        return all(life.state is State.READY for life in self.lives.values())

    def _any_over(self) -> bool:
        return any(life.state in {State.FAILED, State.STOPPED} for life in self.lives.values())

    async def ready(self, names: Sequence[str]) -> None:
        """Wait until all named processes are ready."""
        async with self._news:
            await self._news.wait_for(lambda: all(self.lives[name].state is State.READY for name in names))

    async def apply(self, spec: ProcessSpec, event: Event, exit_status: int | None = None) -> Action:
        """Apply an event to a process's state, announce a change, and return the action."""
        before = self.lives[spec.name]
        life, action = step(before, event, now=self.clock(), exit_status=exit_status)
        self.lives[spec.name] = life
        if life.state is not before.state:
            self._changed(spec, life)
            async with self._news:
                self._news.notify_all()
        return action


class _Supervised:
    """One process over all its runs."""

    def __init__(self, fleet: Supervisor, spec: ProcessSpec, session: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._spec = spec
        self._session = session
        self._misses = 0

    async def live(self) -> None:
        await self._unless_stopped(self._fleet.ready(self._spec.after))
        await self._all_runs()
        await self._fleet.apply(self._spec, Event.STOP)

    async def _all_runs(self) -> None:
        while not self._fleet.stopping.is_set() and self._life.state is not State.FAILED:
            await self._in_turn()
            if self._life.state is State.BACKING_OFF:
                await self._unless_stopped(asyncio.sleep(self._life.wake_at - self._fleet.clock()))

    @property
    def _life(self) -> Life:
        return self._fleet.lives[self._spec.name]

    async def _in_turn(self) -> None:
        """One run, which begins when a slot is free and gives it back once the process is ready."""
        async with AsyncExitStack() as slot:
            if self._spec.heavy:
                if not await self._unless_stopped(self._fleet.slots.acquire()):
                    return
                slot.callback(self._fleet.slots.release)
            await self._run(slot)

    async def _run(self, slot: AsyncExitStack) -> None:
        await self._fleet.apply(self._spec, Event.START)
        self._misses = 0
        process = await _spawn(self._spec, [one.fileno() for one in self._open_sockets()])
        exited = asyncio.create_task(process.wait())
        try:
            await self._attend(process, exited, slot)
            await self._end(process, exited)
        finally:
            # Normally the guard has left nothing; where it was killed itself, its process group is left.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await self._fleet.apply(self._spec, Event.EXITED, await exited)

    async def _attend(
        self, process: asyncio.subprocess.Process, exited: asyncio.Task[int], slot: AsyncExitStack
    ) -> None:
        """Probe until the process has ended or the fleet is to stop."""
        ending = False
        while await self._unless_stopped(asyncio.wait({exited}, timeout=self._interval)) and not exited.done():
            if (event := await self._probe()) is not None:
                await self._fleet.apply(self._spec, event)
            if self._life.state is State.READY:
                await slot.aclose()
            elif not ending and self._overdue():
                ending = await self._fleet.apply(self._spec, Event.OVERDUE) is Action.END
                _terminate(process)

    def _overdue(self) -> bool:
        """Whether it hangs: not ready for too long, while all that it waits for were ready."""
        others = [self._fleet.lives[name] for name in self._spec.after]
        since = max(life.since for life in [self._life, *others])
        waits = any(life.state is not State.READY for life in others)
        return not waits and self._fleet.clock() - since > self._spec.start_seconds

    async def _end(self, process: asyncio.subprocess.Process, exited: asyncio.Task[int]) -> None:
        if exited.done():
            return
        await self._fleet.apply(self._spec, Event.STOP)
        for one in self._open_sockets():  # nobody will serve who connects from now on: all end together
            one.close()
        _terminate(process)
        await asyncio.wait({exited}, timeout=self._spec.grace_seconds + _AFTER_GRACE_SECONDS)

    def _open_sockets(self) -> list[socket.socket]:
        """Of its ports; none once the fleet is to stop."""
        sockets = [self._fleet.listeners[port] for port in self._spec.ports if port in self._fleet.listeners]
        return [one for one in sockets if one.fileno() >= 0]

    @property
    def _interval(self) -> float:
        return READY_PROBE_SECONDS if self._life.state is State.READY else STARTING_PROBE_SECONDS

    async def _probe(self) -> Event | None:
        """The readiness URL's answer as an event; None after fewer than PATIENCE probes without a reply."""
        try:
            async with self._session.get(self._spec.ready_url) as response:
                self._misses = 0
                return Event.ANSWERED if response.status == 200 else Event.SILENT
        except (aiohttp.ClientError, TimeoutError):
            self._misses += 1
            return Event.SILENT if self._misses >= PATIENCE else None

    async def _unless_stopped(self, awaited: Coroutine[Any, Any, Any]) -> bool:
        """Await; False where the fleet is to stop before it is done."""
        task = asyncio.create_task(awaited)
        stopped = asyncio.create_task(self._fleet.stopping.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.wait({task})
        return not task.cancelled()


async def _spawn(spec: ProcessSpec, sockets: Sequence[int]) -> asyncio.subprocess.Process:
    guarded = (sys.executable, "-I", "-S", guard.__file__, str(spec.grace_seconds), *spec.argv)
    with spec.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *guarded,
            stdin=asyncio.subprocess.PIPE,  # never written to: its end tells the guard that we are gone
            stdout=log,
            stderr=log,
            env=_environment(spec, sockets),
            pass_fds=sockets,
            start_new_session=True,  # so that Ctrl-C at a terminal reaches the supervisor alone
        )


def _environment(spec: ProcessSpec, sockets: Sequence[int]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in spec.without}
    given = {SOCKETS_VARIABLE: ",".join(map(str, sockets))}
    return {**inherited, "PYTHONUNBUFFERED": "1", **given, **spec.environment}


def _terminate(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
