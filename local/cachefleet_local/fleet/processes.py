"""Plan of the processes that run pools on this machine (pure).

The replicas of the control plane; for each replica of each pool an engine (vLLM) and its agent; an Envoy, if asked
for. Everything listens on the loopback interface. Engines publish their KV events, which hold token ids, on sockets in
a private folder, which has all processes' temporary files too.
Credentials go by file or by environment, never on a command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from cachefleet_core.engine.engine_arguments import (
    EngineAddresses,
    engine_arguments,
    engine_environment,
    loads_while_running,
)
from cachefleet_core.engine.engine_configuration import EngineConfiguration, asked_configuration
from cachefleet_core.pool.managed_arguments import MANAGED_VARIABLES
from cachefleet_core.pool.spec import DEFAULT_CONTROL_PLANE, PrefixCachePool
from cachefleet_core.tenancy import FleetKey
from cachefleet_local.envoy.envoy_config import envoy_config
from cachefleet_local.fleet.data_folder import DataFolder, PoolWorkers
from cachefleet_local.fleet.ports import LOOPBACK
from cachefleet_local.supervise.process_spec import Kind, ProcessSpec

CONTROL_PLANE: Final = "controlplane"
"""The first replica of the control plane; the others are ``controlplane-2`` and so on."""
ENVOY: Final = "envoy"
"""The Envoy, and its port for clients."""
PICKER, ENVOY_ADMIN = "picker", "envoy's admin port"
DRAIN_SECONDS: Final = 3
"""Drain time of the control plane; Ctrl-C takes at least as long."""


SERVER: Final = "vllm.entrypoints.openai.api_server"
FETCHING_SERVER: Final = "cachefleet_worker.engine_start"
"""Fetches revisions of adapters, then is the other."""


def fetches_adapters(pool: PrefixCachePool) -> bool:
    """Whether the plugin fetches adapters by revision, which vLLM itself does not know."""
    return not loads_while_running(pool.spec) and any(one.revision for one in pool.spec.model.adapters)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker: its two processes and where they listen."""

    pool: str
    name: str
    engine: str
    agent: str
    engine_url: str
    agent_url: str


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Everything to run; control plane first, workers in order."""

    processes: tuple[ProcessSpec, ...]
    workers: tuple[WorkerPlan, ...]
    gateway_url: str
    replicas: Mapping[str, str]
    """Internal address of each replica of the control plane, by its process's name."""
    envoy_url: str = ""

    @property
    def internal_url(self) -> str:
        """Internal address of the first replica, which commands ask."""
        return self.replicas[CONTROL_PLANE]


@dataclass(frozen=True, slots=True)
class Place:
    """Inputs of the plan from this machine and this run."""

    folder: DataFolder
    run: Path
    """A private folder for sockets and temporary files, with a short path: that of a socket has a small limit."""
    python: str
    engine_python: str
    replicas: Sequence[str]
    """Names of the replicas of the control plane."""
    ports: Mapping[str, int]
    """For each name that ``port_names`` gives."""
    models: Mapping[str, str]
    """The engine's model argument by ``model.source``."""
    control_plane: str = DEFAULT_CONTROL_PLANE
    """Name of the one control plane, which all pools name."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Value of CUDA_VISIBLE_DEVICES by engine name; none on a CPU."""
    policy: str = "cacheAware"
    plugin: bool = False
    """Whether the engines have cachefleet's plugin."""
    engine_version: str = ""
    envoy: str = ""
    """The program of an Envoy that is to stand before the fleet; "" for none."""
    vllm_plugins: str = ""
    """VLLM_PLUGINS of this process's environment."""
    start_seconds: float = 600.0


def worker_label(pool: PrefixCachePool, replica: int) -> str:
    """Label of a worker, unique on this machine; its name is unique in its namespace only."""
    namespace = "" if pool.metadata.namespace == "default" else f"{pool.metadata.namespace}."
    return f"{namespace}{worker_name(pool, replica)}"


def worker_name(pool: PrefixCachePool, replica: int) -> str:
    """Name by which agent and control plane know a worker."""
    return f"{pool.metadata.name}-{replica}"


def pool_workers(pools: Sequence[PrefixCachePool]) -> list[PoolWorkers]:
    """The workers of each pool by name."""
    return [
        PoolWorkers(
            pool.key, pool.spec.model.name, tuple(worker_name(pool, replica) for replica in range(pool.spec.replicas))
        )
        for pool in pools
    ]


def replica_names(count: int) -> list[str]:
    """Names of so many replicas of the control plane."""
    return [CONTROL_PLANE, *(f"{CONTROL_PLANE}-{number}" for number in range(2, count + 1))]


def port_names(pools: Sequence[PrefixCachePool], replicas: Sequence[str], *, envoy: bool = False) -> list[str]:
    """The ports a fleet needs: gateway, internal port of each replica, engine and agent of each worker, Envoy's."""
    labels = [worker_label(pool, replica) for pool in pools for replica in range(pool.spec.replicas)]
    parts = [f"{label}.{part}" for label in labels for part in ("engine", "agent")]
    return ["gateway", *map(internal_port, replicas), *parts, *([ENVOY, PICKER, ENVOY_ADMIN] if envoy else ())]


def internal_port(replica: str) -> str:
    """Name of the internal port of a replica."""
    return f"internal port of {replica}"


def plan_fleet(pools: Sequence[PrefixCachePool], place: Place, key: FleetKey) -> FleetPlan:
    """Plan the control plane's replicas, and an engine and an agent for each replica of each pool."""
    workers = [_worker(pool, replica, place) for pool in pools for replica in range(pool.spec.replicas)]
    processes = [_control_plane(name, place) for name in place.replicas]
    for worker, (pool, _) in zip(workers, _replicas(pools), strict=True):
        processes += [_engine(worker, pool, place, key=key), _agent(worker, pool, place)]
    if place.envoy:
        processes.append(_envoy(place))
    return FleetPlan(
        processes=tuple(_in_run_folder(process, place.run) for process in processes),
        workers=tuple(workers),
        gateway_url=_url(place.ports["gateway"]),
        replicas={name: _url(place.ports[internal_port(name)]) for name in place.replicas},
        envoy_url=_url(place.ports[ENVOY]) if place.envoy else "",
    )


def _in_run_folder(process: ProcessSpec, run: Path) -> ProcessSpec:
    """Its temporary files, vLLM's own sockets among them, do not outlive the fleet, however it ends."""
    return replace(process, environment={"TMPDIR": str(run), **process.environment})


def _replicas(pools: Sequence[PrefixCachePool]) -> list[tuple[PrefixCachePool, int]]:
    return [(pool, replica) for pool in pools for replica in range(pool.spec.replicas)]


def _worker(pool: PrefixCachePool, replica: int, place: Place) -> WorkerPlan:
    label = worker_label(pool, replica)
    return WorkerPlan(
        pool=pool.key,
        name=worker_name(pool, replica),
        engine=f"{label}.engine",
        agent=f"{label}.agent",
        engine_url=_url(place.ports[f"{label}.engine"]),
        agent_url=_url(place.ports[f"{label}.agent"]),
    )


def _control_plane(name: str, place: Place) -> ProcessSpec:
    folder, gateway, internal = place.folder, place.ports["gateway"], place.ports[internal_port(name)]
    environment = {
        "GATEWAY_HOST": LOOPBACK,
        "GATEWAY_PORT": str(gateway),
        "INTERNAL_HOST": LOOPBACK,
        "INTERNAL_PORT": str(internal),
        "CONTROL_PLANE_NAME": place.control_plane,
        "POOL_SOURCE": "file",
        "POOL_FILE": str(folder.pool_file),
        "ENDPOINTS_FILE": str(folder.endpoints_file),
        "DATA_DIR": str(folder.controlplane),
        "ACCESS_MARKER_COPY": str(folder.access_marker),
        "FLEET_KEY_FILE": str(folder.fleet_key_file),
        "AUTH": "file",
        "ADMIN_TOKEN_FILE": str(folder.admin_token_file),
        "POLICY": place.policy,
        "DRAIN_SECONDS": str(DRAIN_SECONDS),
        "REPLICAS": str(len(place.replicas)),
        "SHARED_STORE": "1",
        "WITHDRAW_SECONDS": "0",  # all end together, and no load balancer has to notice
        "LOG_FORMAT": "text",
    }
    picker = (place.ports[PICKER],) if place.envoy else ()
    if place.envoy:
        environment["PICKER_PORT"] = str(place.ports[PICKER])
    if len(place.replicas) == 1:
        environment["STARTUP_SECONDS"] = "0"  # nobody serves while it would wait for agents
    return ProcessSpec(
        name=name,
        kind=Kind.CONTROL_PLANE,
        argv=(place.python, "-m", "cachefleet_controlplane"),
        environment=_prefixed(environment),
        log=folder.log(name),
        ports=(gateway, internal, *picker),
        ready_url=f"{_url(internal)}/readyz",
        after=() if name == CONTROL_PLANE else (CONTROL_PLANE,),  # which makes the database
        grace_seconds=DRAIN_SECONDS + 5.0,
    )


def before_envoy(plan: FleetPlan, ports: Mapping[str, int]) -> dict[str, Any]:
    """The configuration of the Envoy of a plan."""
    listen, picker, admin = ((LOOPBACK, ports[name]) for name in (ENVOY, PICKER, ENVOY_ADMIN))
    return envoy_config(listen, picker, [(LOOPBACK, _port(one.engine_url)) for one in plan.workers], admin=admin)


def _envoy(place: Place) -> ProcessSpec:
    return ProcessSpec(
        name=ENVOY,
        kind=Kind.ENVOY,
        argv=(place.envoy, "-c", str(place.folder.envoy_file), "--disable-hot-restart", "-l", "warning"),
        environment={},
        log=place.folder.log(ENVOY),
        ready_url=f"{_url(place.ports[ENVOY_ADMIN])}/ready",
        after=(CONTROL_PLANE,),
    )


def _engine(worker: WorkerPlan, pool: PrefixCachePool, place: Place, *, key: FleetKey) -> ProcessSpec:
    spec = pool.spec
    events, replay = _socket(place, worker, "events"), _socket(place, worker, "replay")
    addresses = EngineAddresses(LOOPBACK, _port(worker.engine_url), events, replay)
    arguments = engine_arguments(
        spec,
        addresses,
        model_path=place.models[spec.model.source],
        adapter_paths=place.models,
        plugin=place.plugin,
        version=place.engine_version,
    )
    environment = engine_environment(spec, plugin=place.plugin, plugins=place.vllm_plugins)
    environment["VLLM_API_KEY"] = key.worker_key(pool.key)
    if place.plugin:
        environment |= _plugin(pool, place.folder)
    if worker.engine in place.devices:
        environment["CUDA_VISIBLE_DEVICES"] = place.devices[worker.engine]
    sources = (spec.model.source, *(adapter.source for adapter in spec.model.adapters))
    if all(Path(place.models[source]).is_absolute() for source in sources) and not loads_while_running(spec):
        environment["HF_HUB_OFFLINE"] = "1"
    return ProcessSpec(
        name=worker.engine,
        kind=Kind.ENGINE,
        argv=(place.engine_python, "-m", FETCHING_SERVER if fetches_adapters(pool) else SERVER, *arguments),
        environment=environment,
        without=tuple(MANAGED_VARIABLES),
        log=place.folder.log(worker.engine),
        ready_url=f"{worker.engine_url}/health",
        after=(CONTROL_PLANE,),
        heavy=True,
        start_seconds=place.start_seconds,
        grace_seconds=10.0,
    )


def _plugin(pool: PrefixCachePool, folder: DataFolder) -> dict[str, str]:
    """Environment of the plugin in an engine; the worker key opens its routes."""
    return _prefixed(
        {
            "WORKER_KEY_FILE": str(folder.worker_key_file(pool.key)),
            "INDEX_KEY_FILE": str(folder.index_key_file(pool.key)),
            "POLICY_FILE": str(folder.policy_file(pool.key)),
        }
    )


def _asked(worker: WorkerPlan, pool: PrefixCachePool, place: Place) -> EngineConfiguration:
    endpoint = _socket(place, worker, "events")
    return asked_configuration(pool.spec, plugin=place.plugin, events_endpoint=endpoint, adapter_paths=place.models)


def _agent(worker: WorkerPlan, pool: PrefixCachePool, place: Place) -> ProcessSpec:
    folder = place.folder
    environment = {
        "WORKER": worker.name,
        "POOL": pool.key,
        "RANKS": str(pool.spec.engine.data_parallel_size),
        "ENGINE_URL": worker.engine_url,
        "ENDPOINT": worker.engine_url,
        "AGENT_ENDPOINT": worker.agent_url,
        "EVENTS_ENDPOINT": _socket(place, worker, "events"),
        "REPLAY_ENDPOINT": _socket(place, worker, "replay"),
        "CONTROL_PLANES": ",".join(f"ws://{LOOPBACK}:{place.ports[internal_port(name)]}" for name in place.replicas),
        "TOKEN_FILE": str(folder.report_token_file(pool.key, worker.name)),
        "INDEX_KEY_FILE": str(folder.index_key_file(pool.key)),
        "WORKER_KEY_FILE": str(folder.worker_key_file(pool.key)),
        "POLICY_FILE": str(folder.policy_file(pool.key)),
        "WEIGHTS": pool.spec.model.source,
        "REVISION": pool.spec.model.revision,
        "ASKED": msgspec.json.encode(_asked(worker, pool, place)).decode(),
        "LOAD_ADAPTERS": "1" if loads_while_running(pool.spec) else "0",
        "HTTP_HOST": LOOPBACK,
        "HTTP_PORT": str(_port(worker.agent_url)),
        "DRAIN_SECONDS": "1",
        "LOG_FORMAT": "text",
    }
    return ProcessSpec(
        name=worker.agent,
        kind=Kind.AGENT,
        argv=(place.python, "-m", "cachefleet_worker.agent"),
        environment=_prefixed(environment),
        log=folder.log(worker.agent),
        ready_url=f"{worker.agent_url}/readyz",
        after=(CONTROL_PLANE, worker.engine),
    )


def _prefixed(environment: Mapping[str, str]) -> dict[str, str]:
    return {f"CACHEFLEET_{name}": value for name, value in environment.items()}


def _socket(place: Place, worker: WorkerPlan, use: str) -> str:
    return f"ipc://{place.run / worker.engine}.{use}"


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])
