"""vLLM's command line and environment for the engines of a pool, and the policy of its workers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cachefleet_core import report_frames
from cachefleet_core.budget import MIB, budget_mib, kv_cache_mib
from cachefleet_core.engine.executors import IN_PROCESS
from cachefleet_core.pool.adapter_options import ADAPTERS, REVISION, RUNTIME_ADAPTERS, allows_loading
from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS, WantedAdapter
from cachefleet_core.tls_names import CERTIFICATE, PRIVATE_KEY

if TYPE_CHECKING:  # agents start without the schema of pools
    from cachefleet_core.pool.spec import PoolSpec, PrefixCachePool
    from cachefleet_core.pool.worker_spec import AdapterSpec

SCHEDULER: Final = "cachefleet_worker.plugin.scheduler.create"
"""The plugin's scheduler factory, as vLLM imports it."""
PLUGIN: Final = "cachefleet"
"""The plugin's name in VLLM_PLUGINS."""
HASH_ALGORITHM: Final = "sha256_cbor"
"""Of the hashes of blocks in KV events."""
REPLAY_BATCHES: Final = 50_000
"""Engine steps whose events can be replayed: minutes of a busy engine, at 1 KiB or so each."""

_TAG: Final = re.compile(r":([^:/]+)$")
_NAMED: Final = re.compile(r"(?:^|[-._])vllm[-_]?v?([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?![0-9])")
"""A version after vLLM's name, as in AMD's "rocm7.0_vllm_0.29.1"; what precedes it is the version of something else."""
_FIRST: Final = re.compile(r"^v?([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?:[-+._a-z].*)?$")
_KV_ROLES: Final = {"Both": "kv_both", "Prefill": "kv_producer", "Decode": "kv_consumer"}
"""By the Role of a pool."""

_THREADS: Final = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")

ADAPTERS_AT_ONCE: Final = 4
"""Adapters of which requests run side by side; more wait for each other. Each takes memory of the device."""

FLEET_ROUTES: Final = (
    *("audit", "capabilities", "conversations", "flush", "hand_back", "keys", "left", "policy", "snapshot", "stats"),
)
"""The plugin's routes below ``/v1/fleet/``."""
UNLOGGED_PATHS: Final = (
    *("/health", "/ping", "/metrics", "/version", "/is_sleeping", "/is_paused", "/kv_event_sources"),
    *(f"/v1/fleet/{name}" for name in FLEET_ROUTES),
)
"""What agents, probes and Prometheus ask for, several times a second in all: no line for each in an engine's log.
Requests that people sent keep theirs."""

ANY_HOST: Final = "*"
NO_HOST: Final = "none.invalid"
"""A name that no host ever has (RFC 2606)."""

CPU_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    # As --enforce-eager. Without a compiler in the image, log-probabilities would else kill vLLM.
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # binding puts every engine of a machine on the same cores
}
ENVIRONMENT: Final = {
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # an allowed host may not name another one
    "VLLM_COMPUTE_NANS_IN_LOGITS": "1",  # counted, so that an agent can withdraw an engine that answers with them
}


@dataclass(frozen=True, slots=True)
class EngineAddresses:
    """Where an engine serves HTTP, and the ZMQ endpoints of its KV events.

    vLLM binds an events endpoint that is a wildcard, an IPv6 form or no TCP, and connects to any other; it always
    binds its replay endpoint.
    """

    host: str
    port: int
    events: str
    replay: str


def engine_arguments(
    spec: PoolSpec,
    addresses: EngineAddresses,
    *,
    model_path: str,
    adapter_paths: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    plugin: bool = False,
    version: str = "",
    shutdown_seconds: int = 0,
    tls_folder: str = "",
) -> list[str]:
    """The arguments after ``python -m vllm.entrypoints.openai.api_server``.

    ``model_path`` is where the engine finds the weights, ``adapter_paths`` where those of adapters, by source (default:
    the sources themselves), ``chat_template`` a file; ``plugin``: cachefleet is installed
    beside vLLM and bounds the idle cache at run time; ``version`` is vLLM's, "" where it is unknown;
    ``shutdown_seconds`` is how long requests may end after SIGTERM; ``tls_folder`` holds the certificate, "" for none.
    No credential is among these, which every user of a machine can read: set VLLM_API_KEY.

    ValueError where the pool leaves no memory for a KV cache; ``budget.plan_budget`` says so beforehand.
    """
    return [
        *_served(spec, model_path=model_path, chat_template=chat_template),
        *_adapters(spec, adapter_paths or {}),
        *("--host", addresses.host, "--port", str(addresses.port)),
        *_sizes(spec),
        *_caching(spec, plugin=plugin),
        *scale_out(version),
        "--enable-prompt-tokens-details",
        *("--disable-access-log-for-endpoints", ",".join(UNLOGGED_PATHS)),
        *("--kv-events-config", _events(addresses)),
        *_transfer(spec),
        *_media(spec),
        *(["--enforce-eager", *_in_process(spec)] if spec.device.is_cpu else []),
        *(["--scheduler-cls", SCHEDULER] if plugin else []),
        *tls_arguments(tls_folder),
        *(["--shutdown-timeout", str(shutdown_seconds)] if shutdown_seconds else []),
        *spec.engine.extra_args,
    ]


def engine_environment(spec: PoolSpec, *, plugin: bool = False, plugins: str | None = None) -> dict[str, str]:
    """The environment variables of an engine, those of the pool last, without those from ``valueFrom``.

    ``plugins`` is the VLLM_PLUGINS that the engine would inherit; with ``plugin`` cachefleet is added to it or to the
    pool's own. vLLM then loads no plugin that is not named. The engine must not inherit VLLM_CPU_KVCACHE_SPACE: it
    would replace the KV cache that the pool's budget gives.
    """
    given = {env.name: env.value or "" for env in spec.engine.env if env.value_from is None}
    if plugin:
        given["VLLM_PLUGINS"] = with_plugin(given.get("VLLM_PLUGINS", plugins or ""))
    return ENVIRONMENT | (CPU_ENVIRONMENT if spec.device.is_cpu else {}) | given


def with_plugin(plugins: str) -> str:
    """A value of VLLM_PLUGINS, comma separated, with cachefleet added."""
    named = [name.strip() for name in plugins.split(",") if name.strip()]
    return ",".join(dict.fromkeys([*named, PLUGIN]))


def asked_version(spec: PoolSpec) -> str:
    """The version of vLLM in a pool's image, as the pool or the image's tag names it, "" where neither does."""
    return spec.engine.version.removeprefix("v") or image_version(spec.engine.image)


def image_version(image: str) -> str:
    """The version of vLLM that an image's tag names ("vllm/vllm-openai:v0.32.0" has "0.32.0"), "" where it names none.

    A digest names none; a tag before it does.
    """
    tag = _TAG.search(image.partition("@")[0])
    found = tag and (_NAMED.search(tag[1]) or _FIRST.search(tag[1]))
    return found[1] if found else ""


def scale_out(version: str) -> list[str]:
    """Arguments that open vLLM's render and token routes: none before 0.30, where they are open."""
    numbers = version.lstrip("v").split(".")[:2]
    old = len(numbers) == 2 and all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) < (0, 30)
    return [] if old else ["--enable-scale-out"]


def keeps_blocks(spec: PoolSpec) -> bool:
    """Whether a pool's engines keep blocks of finished requests."""
    return budget_mib(spec) > 0


def caches_prefixes(spec: PoolSpec, *, plugin: bool) -> bool:
    """Whether engines of a pool are to have a prefix cache; the plugin takes a budget at run time."""
    return spec.prefix_cache.enabled and bool(spec.prefix_cache.budget_mib or plugin)


def engine_policy(pool: PrefixCachePool) -> report_frames.Policy:
    """The policy frame for the workers of a pool."""
    spec = pool.spec
    cache = spec.prefix_cache
    return report_frames.Policy(
        pool=pool.key,
        uid=pool.metadata.uid,
        generation=pool.metadata.generation,
        threshold=spec.hit.threshold,
        preemption=spec.preemption.policy.value,
        reject_below=spec.preemption.reject_below,
        budget_mib=budget_mib(spec),
        cache_share=spec.tenancy.cache_share.default,
        keep_share=cache.keep_share,
        max_entries=cache.max_entries,
        warm_prefixes=len(cache.warm_prefixes) if keeps_blocks(spec) else 0,
        warm_timeout_seconds=spec.rollout.warm_timeout_seconds,
        adapters=tuple(WantedAdapter(name=one.name, path=adapter_path(one)) for one in spec.model.adapters),
    )


def _in_process(spec: PoolSpec) -> list[str]:
    """Run the model in the engine core's process where one is enough and the pool does not bind threads."""
    bound = any(env.name in _THREADS for env in spec.engine.env)
    alone = spec.engine.tensor_parallel_size == 1 and not bound
    return ["--distributed-executor-backend", IN_PROCESS] if alone else []


def _served(spec: PoolSpec, *, model_path: str, chat_template: str | None) -> list[str]:
    revision = ["--revision", spec.model.revision] if spec.model.revision else []
    template = ["--chat-template", chat_template] if chat_template else []
    return ["--model", model_path, "--served-model-name", spec.model.name, *revision, *template]


def adapter_path(adapter: AdapterSpec, found: str = "") -> str:
    """Path from which vLLM loads an adapter: where its image is mounted, or its source at its revision, or without one
    where it was ``found``.

    vLLM takes no revision of an adapter: cachefleet_worker/adapter_weights.py fetches it, and gives vLLM the folder.
    """
    if adapter.image:
        return adapter.image.adapter_folder
    return f"{adapter.source}{REVISION}{adapter.revision}" if adapter.revision else found or adapter.source


def loads_while_running(spec: PoolSpec) -> bool:
    """Whether a pool's agents load its adapters into running engines, as its ``engine.env`` asks vLLM to allow."""
    return allows_loading(next((env.value or "" for env in spec.engine.env if env.name == RUNTIME_ADAPTERS), ""))


def _adapters(spec: PoolSpec, paths: Mapping[str, str]) -> list[str]:
    """Load all adapters at the start, keep all in the host's memory, and a few at a time on the device.

    Where agents load them, nothing here depends on which there are: a change of them must not replace an engine.
    """
    adapters = spec.model.adapters
    if loads_while_running(spec):
        return ["--enable-lora", "--max-loras", str(ADAPTERS_AT_ONCE), "--max-cpu-loras", str(MAX_ADAPTERS)]
    if not adapters:
        return []
    modules = [_json({"name": one.name, "path": adapter_path(one, paths.get(one.source, ""))}) for one in adapters]
    slots = ("--max-loras", str(min(len(adapters), ADAPTERS_AT_ONCE)), "--max-cpu-loras", str(MAX_ADAPTERS))
    return ["--enable-lora", *slots, ADAPTERS, *modules]


def _sizes(spec: PoolSpec) -> list[str]:
    kv_cache = kv_cache_mib(spec)
    if not kv_cache:
        raise ValueError("the pool leaves no device memory for a KV cache")
    engine = spec.engine
    return [
        *("--tensor-parallel-size", str(engine.tensor_parallel_size)),
        *(("--data-parallel-size", str(engine.data_parallel_size)) if engine.data_parallel_size > 1 else ()),
        *("--dtype", engine.dtype.value),
        *("--max-model-len", str(engine.max_model_len)),
        *("--block-size", str(spec.block_size)),
        *("--kv-cache-memory-bytes", str(kv_cache * MIB)),
    ]


def _caching(spec: PoolSpec, *, plugin: bool) -> list[str]:
    """Prefix caching: off for stock vLLM at a budget of 0, because it would keep idle blocks all the same.

    The plugin keeps none at 0, and takes another budget at run time. Where it is wanted, vLLM decides by its model:
    asked for outright, an engine of an encoder ends at its start.
    """
    if not caches_prefixes(spec, plugin=plugin):
        return ["--no-enable-prefix-caching"]
    return ["--prefix-caching-hash-algo", HASH_ALGORITHM]


def tls_arguments(folder: str) -> list[str]:
    """Arguments to serve TLS with the certificate in a folder; none for ""."""
    if not folder:
        return []
    # The refresh is for API servers in processes of their own: in its own, engine_start does better.
    files = ("--ssl-certfile", f"{folder}/{CERTIFICATE}", "--ssl-keyfile", f"{folder}/{PRIVATE_KEY}")
    return [*files, "--enable-ssl-refresh"]


def _events(addresses: EngineAddresses) -> str:
    return _json(
        {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": addresses.events,
            "replay_endpoint": addresses.replay,
            "buffer_steps": REPLAY_BATCHES,
        }
    )


def _transfer(spec: PoolSpec) -> list[str]:
    transfer = spec.engine.kv_transfer
    if transfer.kv_connector is None:
        return []
    given = transfer.model_dump(mode="json", exclude_none=True)
    return ["--kv-transfer-config", _json({"kv_role": _KV_ROLES[spec.role], **given})]


def _media(spec: PoolSpec) -> list[str]:
    """Hosts that media may come from; an empty list would be any host to vLLM."""
    hosts = spec.engine.allowed_media_domains
    return [] if ANY_HOST in hosts else ["--allowed-media-domains", *(hosts or (NO_HOST,))]


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
