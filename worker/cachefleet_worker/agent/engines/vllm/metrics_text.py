"""vLLM's load, parsed from the text of its ``/metrics``: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cachefleet_worker.agent.engines.engine_poll import AWAKE, UNUSED, AdapterUse, LoadMetrics, Operations
from cachefleet_worker.agent.engines.vllm.adapter_info import read_adapter_use

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WANTED: Final = (
    "vllm:num_requests_running{",
    "vllm:num_requests_waiting{",
    "vllm:kv_cache_usage_perc{",
    "vllm:num_preemptions_total{",
    "vllm:num_preemptions_created{",
    "vllm:prefix_cache_queries_total{",
    "vllm:prefix_cache_hits_total{",
    "vllm:prompt_tokens_by_source_total{",
    "vllm:prompt_tokens_cached_by_source_total{",
    "vllm:kv_offload_load_time_total{",
    "vllm:kv_offload_total_time_total{",
    "vllm:request_prefill_kv_computed_tokens_sum{",
    "vllm:request_prefill_time_seconds_sum{",
    "vllm:inter_token_latency_seconds_sum{",
    "vllm:inter_token_latency_seconds_count{",
    "vllm:engine_sleep_state{",
    "vllm:cache_config_info{",
    "vllm:kv_offload_config_info{",
    "vllm:request_success_total{",
    "vllm:corrupted_requests_total{",
    "vllm:sleep_mode_operations_in_flight{",
    "vllm:sleep_mode_operation_duration_seconds_count{",
    "vllm:rl_weight_update_operations_in_flight{",
    "process_start_time_seconds",
)
_TELLING: Final = ("source", "sleep_state", "finished_reason", "transfer_type")
"""Labels by whose values samples of one name are kept apart."""
_OPERATION: Final = "operation"
_UPDATES: Final = frozenset({"start", "start_draft", "update", "finish"})
_CACHED: Final = "prompt_tokens_cached_by_source_total"
_NOT_LOADED: Final = ("device", "p2p")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The engine's block pool; ``blocks`` leaves out the null block, which holds nothing.

    Of the rest None, or "", is what the engine does not tell; 0 is what it was not told.
    """

    block_size: int
    blocks: int
    prefix_caching: bool | None = None
    hash_algorithm: str = ""
    memory_bytes: int | None = None
    blocks_override: int | None = None


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of ``/metrics``. ``process`` identifies the process by its start times, None where unknown."""

    ranks: dict[int, LoadMetrics]
    caches: dict[int, CacheConfig]
    process: str | None = None
    adapters: AdapterUse = UNUSED
    operations: Operations = AWAKE


@dataclass(slots=True)
class _Samples:
    values: dict[tuple[str, str], float] = field(default_factory=dict)

    def total(self, name: str, *, without: tuple[str, ...] = ()) -> int:
        return int(sum(value for (key, label), value in self.values.items() if key == name and label not in without))

    def tells(self, name: str) -> bool:
        return any(key == name for key, _ in self.values)

    def get(self, name: str, key: str = "") -> float:
        return self.values.get((name, key), 0.0)

    def first(self, *names: tuple[str, str]) -> float:
        """The value of the first of these samples that there is, also where it is 0: sums of two are never mixed."""
        return next((self.values[name] for name in names if name in self.values), 0.0)


def read_scrape(text: str) -> Scrape:
    """The known samples in an exposition; others, and malformed lines, are ignored."""
    ranks: dict[int, _Samples] = {}
    operations: dict[tuple[str, str], float] = {}
    caches: dict[int, CacheConfig] = {}
    hosts: dict[int, int | None] = {}
    starts: set[str] = set()
    for line in text.splitlines():
        if not line.startswith(_WANTED) or (match := _SAMPLE.match(line)) is None:
            continue
        name, labels = match[1], dict(_LABEL.findall(match[2] or ""))
        if name.endswith(("_created", "start_time_seconds")):
            starts.add(f"{name}={match[3]}")
            continue
        rank = _integer(labels.get("engine", "0"))
        value = _number(match[3])
        if rank is None or value is None:
            continue
        if name == "vllm:cache_config_info":
            _add_cache(caches, rank, labels)
        elif name == "vllm:kv_offload_config_info":
            hosts[rank] = _added(hosts.get(rank), _host_blocks(labels))
        elif _OPERATION in labels:
            operations[str(name).removeprefix("vllm:"), labels[_OPERATION]] = value
        else:
            key = next((labels[label] for label in _TELLING if label in labels), "")
            ranks.setdefault(rank, _Samples()).values[(str(name).removeprefix("vllm:"), key)] = value
    load_metrics = {rank: replace(_load_metrics(each), host_blocks=hosts.get(rank)) for rank, each in ranks.items()}
    process = " ".join(sorted(starts)) or None
    return Scrape(load_metrics, caches, process, read_adapter_use(text), _operations(operations))


def _operations(samples: Mapping[tuple[str, str], float]) -> Operations:
    def under_way(name: str, operations: Iterable[str]) -> bool:
        return any(samples.get((name, operation), 0.0) > 0 for operation in operations)

    finished = "sleep_mode_operation_duration_seconds_count"
    return Operations(
        sleeping=under_way("sleep_mode_operations_in_flight", ("sleep", "release_kv_cache_memory", "wake")),
        updating=under_way("rl_weight_update_operations_in_flight", _UPDATES),
        sleeps=int(samples.get((finished, "sleep"), 0) + samples.get((finished, "release_kv_cache_memory"), 0)),
    )


def _load_metrics(samples: _Samples) -> LoadMetrics:
    return LoadMetrics(
        running=int(samples.get("num_requests_running")),
        waiting=int(samples.get("num_requests_waiting")),
        usage=min(1.0, max(0.0, samples.get("kv_cache_usage_perc"))),
        preemptions=int(samples.get("num_preemptions_total")),
        prefix_queries=int(samples.get("prefix_cache_queries_total")),
        prefix_hits=int(samples.get("prefix_cache_hits_total")),
        prefill_tokens=samples.first(
            ("request_prefill_kv_computed_tokens_sum", ""), ("prompt_tokens_by_source_total", "local_compute")
        ),
        prefill_seconds=samples.get("request_prefill_time_seconds_sum"),
        loaded_tokens=_loaded_tokens(samples),
        loading_seconds=samples.first(
            ("kv_offload_load_time_total", ""), ("kv_offload_total_time_total", "CPU_to_GPU")
        ),
        inter_token_sum=samples.get("inter_token_latency_seconds_sum"),
        inter_token_count=samples.get("inter_token_latency_seconds_count"),
        asleep=samples.values.get(("engine_sleep_state", "awake"), 1.0) == 0.0,
        corrupted=samples.total("corrupted_requests_total"),
        errors=int(samples.get("request_success_total", "error")),
        answered=samples.total("request_success_total", without=("error", "abort")),
    )


def _loaded_tokens(samples: _Samples) -> float:
    """All tokens that a connector loaded, for engines that do not report where cached tokens were."""
    if samples.tells(_CACHED):
        return samples.total(_CACHED, without=_NOT_LOADED)
    return samples.get("prompt_tokens_by_source_total", "external_kv_transfer")


def _add_cache(caches: dict[int, CacheConfig], rank: int, labels: dict[str, str]) -> None:
    block_size, blocks = _integer(labels.get("block_size", "")), _integer(labels.get("num_gpu_blocks", ""))
    if block_size and blocks:
        caches[rank] = CacheConfig(
            block_size,
            max(0, blocks - 1),
            prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
            hash_algorithm=labels.get("prefix_caching_hash_algo", ""),
            memory_bytes=_or_zero(labels.get("kv_cache_memory_bytes", "")),
            blocks_override=_or_zero(labels.get("num_gpu_blocks_override", "")),
        )


def _host_blocks(labels: Mapping[str, str]) -> int | None:
    """Blocks of the host's memory in a series of vLLM's own connector, from 0.33 on: chunks of several blocks each."""
    chunks, each = (_integer(labels.get(name, "")) for name in ("cpu_num_chunks", "cpu_blocks_per_chunk"))
    return None if chunks is None or each is None else chunks * each


def _added(before: int | None, more: int | None) -> int | None:
    """Series of one engine that say something of the host's memory together; those that do not count for nothing."""
    return before if more is None else (before or 0) + more


def _or_zero(text: str) -> int | None:
    return 0 if text == "None" else _integer(text)


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 (NaN is not itself)
