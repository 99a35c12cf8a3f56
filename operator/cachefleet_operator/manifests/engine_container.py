"""The container of a worker pod that runs vLLM: the pool's image, with the plugin on its PYTHONPATH (pure)."""

from __future__ import annotations

from typing import Final

from cachefleet_core.engine.engine_arguments import (
    PLUGIN,
    EngineAddresses,
    asked_version,
    engine_arguments,
    engine_environment,
)
from cachefleet_core.engine.first_process import under_first_process
from cachefleet_core.pool.adapter_options import MODEL_FOLDER
from cachefleet_core.pool.spec import PoolSpec, PrefixCachePool
from cachefleet_core.pool.worker_spec import EnvVar
from cachefleet_core.tls_names import ENGINE_PORT_NAME
from cachefleet_operator import names
from cachefleet_operator.manifests.container import (
    AGENT_PORT,
    CLAIM,
    ENGINE_PORT,
    EVENTS_ENDPOINT,
    KEYS,
    PLUGIN_FOLDER,
    POLICY,
    PROBE_SECONDS,
    REPLAY_ENDPOINT,
    SOCKETS,
    TLS,
    Manifest,
    drain_path,
    from_secret,
    http_get,
    mount,
    plain,
    probe,
    read_only,
    restricted,
    variable,
)
from cachefleet_operator.manifests.weights_volumes import weights_mounts
from cachefleet_operator.settings import Settings

CACHE: Final = "/cache"
CHAT_TEMPLATE: Final = "/etc/cachefleet/chat/template.jinja"

# The only writable paths. Compilers' caches would else be lost with /tmp, or be put beside the code.
_WRITABLE: Final = {
    "HOME": "/tmp",  # noqa: S108  # the container's own, an emptyDir
    "HF_HOME": f"{CACHE}/huggingface",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "XDG_CACHE_HOME": CACHE,
}
_JOINED: Final = {"PYTHONPATH": (PLUGIN_FOLDER, ":"), "VLLM_PLUGINS": (PLUGIN, ",")}
"""Variables to which the plugin's value is prepended, and the separator."""


def engine_container(pool: PrefixCachePool, settings: Settings) -> Manifest:
    """The vLLM container of a pool's workers."""
    spec, tls = pool.spec, settings.serves_tls
    port = ENGINE_PORT_NAME if tls else "engine"
    healthy = http_get("/health", port, tls=tls)
    return {
        "name": "engine",
        "image": spec.engine.image,
        # Both of the plugin's folder; the second runs vLLM in its place.
        "command": under_first_process(["python3", "-m", "cachefleet_worker.engine_start"], PLUGIN_FOLDER),
        "args": _arguments(spec, settings),
        "env": _variables(pool, settings),
        "ports": [{"name": port, "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "startupProbe": probe(healthy, failures=settings.worker_start_seconds // PROBE_SECONDS),
        "livenessProbe": probe(healthy, failures=6),
        "securityContext": restricted(),
        "volumeMounts": [*_mounts(spec), *([read_only("tls", TLS)] if tls else [])],
    }


def _arguments(spec: PoolSpec, settings: Settings) -> list[str]:
    return engine_arguments(
        spec,
        EngineAddresses(
            host="::",  # of both families: the gateway comes from outside the pod; the engine asks for its key
            port=ENGINE_PORT,
            events=EVENTS_ENDPOINT,
            replay=REPLAY_ENDPOINT,
        ),
        model_path=MODEL_FOLDER if spec.model.image else spec.model.source,
        chat_template=CHAT_TEMPLATE if spec.model.chat_template else None,
        plugin=True,
        version=asked_version(spec),
        shutdown_seconds=settings.worker_shutdown_seconds,
        tls_folder=TLS if settings.serves_tls else "",
    )


def _drain(pool: PrefixCachePool, settings: Settings) -> dict[str, str]:
    """On SIGTERM the first process has the agent drain, which answers when no request runs any more; then vLLM ends."""
    scheme = "https" if settings.serves_tls else "http"
    url = f"{scheme}://localhost:{AGENT_PORT}{drain_path(pool)}"
    return {"CACHEFLEET_DRAIN_URL": url, "CACHEFLEET_DRAIN_SECONDS": str(settings.worker_drain_seconds)}


def _variables(pool: PrefixCachePool, settings: Settings) -> list[Manifest]:
    spec = pool.spec
    # torch asks for the user's name, which an image without this uid cannot tell
    own = {**_WRITABLE, "USER": "cachefleet", **engine_environment(spec, plugin=True), **_drain(pool, settings)}
    variables = {name: plain(name, value) for name, value in own.items()}
    if spec.model.hub_token_secret_ref:
        variables["HF_TOKEN"] = from_secret("HF_TOKEN", spec.model.hub_token_secret_ref)
    given = {each.name: each for each in spec.engine.env}
    variables |= {name: variable(each) for name, each in given.items()}
    for name in _JOINED:
        variables.pop(name, None)  # the joined one comes after what it refers to
        variables |= {each["name"]: each for each in _joined(name, given.get(name))}
    variables |= {each["name"]: each for each in _fixed(settings)}
    return list(variables.values())


def _joined(name: str, given: EnvVar | None) -> list[Manifest]:
    """The variable with the plugin's value first, then the pool's: a literal or a reference."""
    ours, separator = _JOINED[name]
    if given is None or (given.value_from is None and not given.value):
        return [plain(name, ours)]
    if given.value_from is None:
        return [plain(name, f"{ours}{separator}{given.value}")]
    hidden = f"CACHEFLEET_GIVEN_{name}"
    return [variable(given, hidden), plain(name, f"{ours}{separator}$({hidden})")]


def _fixed(settings: Settings) -> list[Manifest]:
    """Variables that a pool cannot override: the gateway and the agent know only this key.

    The file of the worker key is vLLM's API key, too (``cachefleet_worker.engine_start``).
    """
    return [
        plain("CACHEFLEET_WORKER_KEY_FILE", f"{KEYS}/{names.WORKER_KEY}"),
        plain("CACHEFLEET_INDEX_KEY_FILE", f"{KEYS}/{names.INDEX_KEY}"),
        plain("CACHEFLEET_POLICY_FILE", f"{POLICY}/{names.POLICY_FILE}"),
        *([plain("CACHEFLEET_TLS_FOLDER", TLS)] if settings.serves_tls else []),
    ]


def _mounts(spec: PoolSpec) -> list[Manifest]:
    chat = [read_only("chat-template", CHAT_TEMPLATE.rsplit("/", 1)[0])] if spec.model.chat_template else []
    return [
        mount("tmp", "/tmp"),  # noqa: S108  # the container's own, an emptyDir
        mount("shm", "/dev/shm"),  # noqa: S108  # as above, in memory
        mount("cache", CACHE),
        mount("sockets", SOCKETS),
        read_only("plugin", PLUGIN_FOLDER),
        read_only("keys", KEYS),
        read_only("policy", POLICY),
        *chat,
        *weights_mounts(spec.model),
    ]


def _resources(spec: PoolSpec) -> Manifest:
    device = spec.device
    claimed = {"claims": [{"name": CLAIM}]} if device.claims else {}
    if device.is_cpu:
        return {"requests": {"memory": f"{device.memory_mib}Mi"}, **claimed}
    return claimed or {"limits": {device.resource_name: str(spec.engine.devices)}}
