"""Arguments and variables of vLLM that follow from other fields of a pool, and which of the pool's own would set them.

vLLM's parser takes a unique beginning of an option for the option, underscores for dashes, ``--option.key`` for a key
of a JSON value, and ``-O`` glued to a value. Which beginnings are unique depends on its version, so one that could be
that of a managed option is refused, whatever else it begins. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_ADDRESS: Final = "the address of a worker is given to it"
_TLS: Final = "set tls in the chart's values"
_KV_CACHE: Final = "it follows from spec.device, spec.model.weightsMiB and spec.prefixCache"
_RANKS: Final = "a worker has all its ranks, set spec.engine.dataParallelSize"
_ALWAYS: Final = "the control plane counts on it"
_PYTHON: Final = "the plugin's routes, fields and renderer run in vLLM's Python frontend alone"

MANAGED_ARGUMENTS: Final = {
    "allowed-media-domains": "set spec.engine.allowedMediaDomains",
    "api-key": "the keys of workers are made for them",
    "block-size": "set spec.engine.blockSize",
    "config": "write what is in the file as words of spec.engine.extraArgs",
    "data-parallel-address": _RANKS,
    "data-parallel-external-lb": _RANKS,
    "data-parallel-hybrid-lb": _RANKS,
    "data-parallel-multi-port-external-lb": _RANKS,
    "data-parallel-rank": _RANKS,
    "data-parallel-rpc-port": _RANKS,
    "data-parallel-size": "set spec.engine.dataParallelSize",
    "data-parallel-size-local": _RANKS,
    "data-parallel-start-rank": _RANKS,
    "data-parallel-supervisor-port": _RANKS,
    "disable-log-stats": "the load of workers is read from these",
    "dtype": "set spec.engine.dtype",
    "enable-prefix-caching": "set spec.prefixCache.enabled",
    "enable-prompt-tokens-details": _ALWAYS,
    "enable-scale-out": _ALWAYS,
    "enable-ssl-refresh": _TLS,
    "grpc": _ADDRESS,
    "grpc-port": _ADDRESS,
    "headless": _ADDRESS,
    "host": _ADDRESS,
    "kv-cache-memory-bytes": _KV_CACHE,
    "kv-events-config": "the agent listens to the events, and says where they go",
    "kv-transfer-config": "set spec.engine.kvTransfer",
    "lora-modules": "set spec.model.adapters",
    "max-model-len": "set spec.engine.maxModelLen",
    "model": "set spec.model.source",
    "num-gpu-blocks-override": _KV_CACHE,
    "port": _ADDRESS,
    "prefix-caching-hash-algo": "block keys are made for one algorithm",
    "revision": "set spec.model.revision",
    "root-path": _ADDRESS,
    "scheduler-cls": "the plugin has the scheduler",
    "served-model-name": "set spec.model.name",
    "shutdown-timeout": "set operator.workerShutdownSeconds in the chart's values",
    "ssl-ca-certs": _TLS,
    "ssl-cert-reqs": _TLS,
    "ssl-certfile": _TLS,
    "ssl-keyfile": _TLS,
    "tensor-parallel-size": "set spec.engine.tensorParallelSize",
    "uds": _ADDRESS,
}
"""Options of the engine that follow from the pool's own fields, and what to do instead of setting them."""

SHORT_ARGUMENTS: Final = {
    "dp": "data-parallel-size",
    "dpa": "data-parallel-address",
    "dpe": "data-parallel-external-lb",
    "dph": "data-parallel-hybrid-lb",
    "dpl": "data-parallel-size-local",
    "dpm": "data-parallel-multi-port-external-lb",
    "dpn": "data-parallel-rank",
    "dpp": "data-parallel-rpc-port",
    "dpr": "data-parallel-start-rank",
    "tp": "tensor-parallel-size",
}
"""Their short forms."""

_DRAIN: Final = "the operator sets it from its own CACHEFLEET_WORKER_DRAIN_SECONDS"

MANAGED_VARIABLES: Final = {
    "VLLM_API_KEY": MANAGED_ARGUMENTS["api-key"],
    "VLLM_CPU_KVCACHE_SPACE": _KV_CACHE,
    "VLLM_DP_MASTER_IP": _RANKS,
    "VLLM_DP_MASTER_PORT": _RANKS,
    "VLLM_DP_RANK": _RANKS,
    "VLLM_DP_RANK_LOCAL": _RANKS,
    "VLLM_DP_SIZE": "set spec.engine.dataParallelSize",
    "VLLM_MODEL_REDIRECT_PATH": MANAGED_ARGUMENTS["model"],
    "VLLM_PORT": _ADDRESS,
    "VLLM_RUST_FRONTEND_PATH": _PYTHON,
    "VLLM_USE_RUST_FRONTEND": _PYTHON,
    "CACHEFLEET_DRAIN_SECONDS": _DRAIN,
    "CACHEFLEET_DRAIN_URL": _DRAIN,
    "CACHEFLEET_INDEX_KEY_FILE": MANAGED_ARGUMENTS["api-key"],
    "CACHEFLEET_POLICY_FILE": "the policy is that of the pool",
    "CACHEFLEET_TLS_FOLDER": _TLS,
    "CACHEFLEET_WORKER_KEY_FILE": MANAGED_ARGUMENTS["api-key"],
}
"""Variables of the engine that would undo what follows from the pool, and what to do instead of setting them."""

_NEGATION: Final = "no-"
_SPELLINGS: Final = {
    **{f"--{name}": name for name in MANAGED_ARGUMENTS},
    **{f"--{_NEGATION}{name}": name for name in MANAGED_ARGUMENTS},
    **{f"-{short}": name for short, name in SHORT_ARGUMENTS.items()},
}
_NAME_END: Final = re.compile(r"[=.\s]")
_GLUED: Final = "-O"
"""vLLM's -O takes its value in the same word, and puts that among the arguments as a word of its own."""
_MAX_SHOWN: Final = 60

_LONG: Final = "|".join(MANAGED_ARGUMENTS).replace("-", "[-_]")
MANAGED_PATTERN: Final = f"^(--(no[-_])?({_LONG})|-({'|'.join(SHORT_ARGUMENTS)}))([=. ]|$)"
"""The full spellings, for the API server; RE2 and Python read it alike."""


@dataclass(frozen=True, slots=True)
class ManagedArgument:
    """An argument that is, or may be read as, a managed option.

    ``written`` is the option as written, without its value; ``option`` the managed one, "" where it ends all options.
    """

    written: str
    option: str
    whole: bool
    instead: str

    def __str__(self) -> str:
        if not self.option:
            return f"{self.written}: {self.instead}"
        read = "" if self.whole else f", which vLLM may read as --{self.option}"
        return f"{self.written}{read}: {self.instead}"


def managed_arguments(words: Iterable[str]) -> Iterator[ManagedArgument]:
    """Those of an engine's arguments that set what follows from the pool, in their order."""
    for word in words:
        found = _managed(word)
        if found is not None:
            yield found


def _managed(word: str) -> ManagedArgument | None:
    if word.startswith(_GLUED):
        return _managed(word.removeprefix(_GLUED).removeprefix("="))
    if not word.startswith("-") or word == "-":
        return None
    written = _NAME_END.split(word, maxsplit=1)[0]
    name = written.replace("_", "-")
    if name == "--":
        return ManagedArgument(written, "", whole=True, instead="leave it out, vLLM would read no option after it")
    if name == "-":  # a number below 0
        return None
    option = _SPELLINGS.get(name) or next((_SPELLINGS[full] for full in _SPELLINGS if full.startswith(name)), None)
    if option is None:
        return None
    return ManagedArgument(written[:_MAX_SHOWN], option, whole=name in _SPELLINGS, instead=MANAGED_ARGUMENTS[option])
