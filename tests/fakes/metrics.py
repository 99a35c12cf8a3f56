"""The metrics page of a vLLM worker: names, labels and meaning as in 0.32, for what a fleet reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.fakes.finish import Finish
from tests.fakes.options import EngineOptions
from tests.fakes.scheduler import Scheduler, Step
from tests.fakes.scheduler import Sequence as Generation

_LABELS: Final = ("model_name", "engine")
_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
_PLUGIN_REASONS: Final = (*_REASONS, "cache_threshold")
_SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
_TIERS: Final = ("device", "host", "p2p", "disk", "external_unspecified")
_SLEEP: Final = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
_TTFT: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(20, 40, 80, 160, 640, 2560),
)
_ITL: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(20, 40, 80),
)
_LATENCY: Final = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120),
    *(240, 480, 960, 1920, 7680),
)
_ITERATION: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_SMALL: Final = (1, 2, 5, 10, 20)
_PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)


class EngineMetrics:
    """One engine's life; a restart makes a new one, so every ``_created`` moves."""

    def __init__(self, options: EngineOptions, scheduler: Scheduler, started: float) -> None:
        self._options = options
        self._scheduler = scheduler
        self._registry = CollectorRegistry()
        self._values = (options.model, str(options.rank))
        start = Gauge("process_start_time_seconds", "Start time of the process.", registry=self._registry)
        start.set(started)
        self._gauges()
        self._mirrors()
        self._counters()
        self._histograms()
        self._info()

    def page(self) -> bytes:
        self._mirror_counters()
        return generate_latest(self._registry)

    def failed(self, *, errors: int, corrupted: int) -> None:
        """Requests that ended with an internal error, or whose logits were not numbers."""
        self._success["error"].inc(errors)
        if self._corrupted is not None:
            self._corrupted.inc(corrupted)

    def step(self, step: Step, outputs: int) -> None:
        self._iteration.observe(step.prefill_tokens + outputs)
        self._generation.inc(outputs)

    def token(self, generation: Generation, now: float) -> None:
        """A sequence got a token; call before ``last_token`` moves."""
        if generation.last_token:
            self._itl.observe(now - generation.last_token)
        else:
            self._ttft.observe(now - generation.arrived)
            self._prompt(generation)

    def finished(self, generation: Generation, now: float) -> None:
        produced = len(generation.tokens) - generation.prompt_tokens
        if counter := self._success.get(generation.finish or Finish.ABORT):
            counter.inc()
        self._request_prompt.observe(generation.prompt_tokens)
        self._request_generation.observe(produced)
        self._max_generation.observe(produced)
        self._request_computed.observe(generation.prompt_tokens - (generation.cached_tokens or 0))
        self._request_preemptions.observe(generation.preemptions)
        self._params_max_tokens.observe(generation.max_tokens)
        self._params_n.observe(1)
        self._times(generation, now, produced)

    def _times(self, generation: Generation, now: float, produced: int) -> None:
        self._e2e.observe(now - generation.arrived)
        self._queue.observe(generation.scheduled - generation.arrived)
        self._prefill.observe(generation.first_token - generation.scheduled)
        self._decode.observe(generation.last_token - generation.first_token)
        self._inference.observe(generation.last_token - generation.scheduled)
        if produced > 1:
            self._per_token.observe((generation.last_token - generation.first_token) / (produced - 1))

    def _prompt(self, generation: Generation) -> None:
        cached = generation.cached_tokens or 0
        self._prompt_tokens.inc(generation.prompt_tokens)
        self._by_source["local_compute"].inc(generation.prompt_tokens - cached)
        self._by_source["local_cache_hit"].inc(cached)
        self._cached.inc(cached)
        self._by_tier["device"].inc(cached)

    def loaded(self, tokens: int, seconds: float) -> None:
        """OffloadingConnector brought tokens from the host's memory; an engine without it has no such metric."""
        self._by_tier["host"].inc(tokens)
        self._load_time.inc(seconds)

    @cached_property
    def _load_time(self) -> Counter:
        return self._counter("kv_offload_load_time")

    def _gauges(self) -> None:
        scheduler = self._scheduler
        self._gauge("num_requests_running", lambda: len(scheduler.running))
        self._gauge("num_requests_waiting", lambda: len(scheduler.waiting))
        reasons = self._labelled("num_requests_waiting_by_reason", "reason")
        reasons.labels(*self._values, "capacity").set_function(lambda: len(scheduler.waiting))
        reasons.labels(*self._values, "deferred")
        self._gauge("kv_cache_usage_perc", lambda: scheduler.pool.usage)
        sleep = self._labelled("engine_sleep_state", "sleep_state")
        self._sleep = {state: sleep.labels(*self._values, state) for state in _SLEEP}
        self._show_sleep(_SLEEP)

    def _show_sleep(self, states: Mapping[str, int]) -> None:
        for state, value in states.items():
            self._sleep[state].set(value)

    def slept(self, level: int) -> None:
        """It was put to sleep."""
        self._show_sleep({"awake": 0, "weights_offloaded": int(level == 1), "discard_all": int(level == 2)})
        self._sleep_operations.labels("sleep").observe(0.01)

    def woke(self) -> None:
        """It was woken."""
        self._show_sleep(_SLEEP)
        self._sleep_operations.labels("wake").observe(0.01)

    @cached_property
    def _sleep_operations(self) -> Histogram:
        """There from the first such operation on, as in vLLM."""
        name = "vllm:sleep_mode_operation_duration_seconds"
        return Histogram(name, "As vLLM.", ("operation",), registry=self._registry)

    def weight_operation(self, *, under_way: int) -> None:
        """A call that updates weights begins or ends."""
        self._weight_operations.labels("update").set(under_way)

    @cached_property
    def _weight_operations(self) -> Gauge:
        name = "vllm:rl_weight_update_operations_in_flight"
        return Gauge(name, "As vLLM.", ("operation",), registry=self._registry)

    def _mirrors(self) -> None:
        """Counters that the scheduler keeps itself."""
        self._preemptions = self._counter("num_preemptions")
        self._queries = self._counter("prefix_cache_queries")
        self._hits = self._counter("prefix_cache_hits")
        for name in (
            "external_prefix_cache_queries",
            "external_prefix_cache_hits",
            "mm_cache_queries",
            "mm_cache_hits",
        ):
            self._counter(name)
        self._seen = (0, 0, 0)

    def _mirror_counters(self) -> None:
        counters = self._scheduler.counters
        now = (counters.preemptions, counters.queries, counters.hits)
        for counter, value, before in zip((self._preemptions, self._queries, self._hits), now, self._seen, strict=True):
            counter.inc(value - before)
        self._seen = now

    def _counters(self) -> None:
        self._prompt_tokens = self._counter("prompt_tokens")
        self._cached = self._counter("prompt_tokens_cached")
        self._generation = self._counter("generation_tokens")
        self._by_source = self._counters_by("prompt_tokens_by_source", "source", _SOURCES)
        self._by_tier = self._counters_by("prompt_tokens_cached_by_source", "source", _TIERS)
        reasons = _PLUGIN_REASONS if self._options.plugin else _REASONS
        self._success = self._counters_by("request_success", "finished_reason", reasons)
        self._corrupted = self._counter("corrupted_requests") if self._options.nan_metric else None
        rejections = Counter("vllm:admission_rejections", "As vLLM.", ("model_name", "reason"), registry=self._registry)
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            rejections.labels(self._options.model, reason)

    def _histograms(self) -> None:
        lengths = _one_two_five(self._options.context)
        self._ttft = self._histogram("time_to_first_token_seconds", _TTFT)
        self._itl = self._histogram("inter_token_latency_seconds", _ITL)
        self._per_token = self._histogram("request_time_per_output_token_seconds", _ITL)
        self._e2e = self._histogram("e2e_request_latency_seconds", _LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", _LATENCY)
        self._prefill = self._histogram("request_prefill_time_seconds", _LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", _LATENCY)
        self._inference = self._histogram("request_inference_time_seconds", _LATENCY)
        self._iteration = self._histogram("iteration_tokens_total", _ITERATION)
        self._request_prompt = self._histogram("request_prompt_tokens", lengths)
        self._request_generation = self._histogram("request_generation_tokens", lengths)
        self._request_computed = self._histogram("request_prefill_kv_computed_tokens", lengths)
        self._max_generation = self._histogram("request_max_num_generation_tokens", lengths)
        self._params_max_tokens = self._histogram("request_params_max_tokens", lengths)
        self._params_n = self._histogram("request_params_n", _SMALL)
        self._request_preemptions = self._histogram("request_num_preemptions", _PREEMPTIONS)

    def has_host_room(self, blocks: int) -> None:
        """The host tier's size, as vLLM says it from 0.33 on."""
        labels = ("cpu_blocks_per_chunk", "cpu_num_chunks", "engine", "manager")
        info = Gauge("vllm:kv_offload_config_info", "As vLLM.", labels, registry=self._registry)
        info.labels("1", str(blocks), str(self._options.rank), "cpu").set(1)

    def _info(self) -> None:
        labels = cache_config(self._options)
        info = Gauge("vllm:cache_config_info", "As vLLM.", (*labels, "engine"), registry=self._registry)
        info.labels(**labels, engine=str(self._options.rank)).set(1)

    def _gauge(self, name: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"vllm:{name}", "As vLLM.", _LABELS, registry=self._registry)
        gauge.labels(*self._values).set_function(read)

    def _labelled(self, name: str, label: str) -> Gauge:
        return Gauge(f"vllm:{name}", "As vLLM.", (*_LABELS, label), registry=self._registry)

    def _counter(self, name: str) -> Counter:
        return Counter(f"vllm:{name}", "As vLLM.", _LABELS, registry=self._registry).labels(*self._values)

    def _counters_by(self, name: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        family = Counter(f"vllm:{name}", "As vLLM.", (*_LABELS, label), registry=self._registry)
        return {value: family.labels(*self._values, value) for value in values}

    def _histogram(self, name: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(f"vllm:{name}", "As vLLM.", _LABELS, buckets=buckets, registry=self._registry)
        return family.labels(*self._values)


def cache_config(options: EngineOptions) -> dict[str, str]:
    """The labels of ``cache_config_info`` that say something about a fake; the real one has more."""
    return {
        "block_size": str(options.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(options.prefix_caching),
        "gpu_memory_utilization": "0.92",
        "kv_cache_max_concurrency": str(options.num_blocks * options.block_size / options.context),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(options.num_blocks * options.block_size),
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(options.num_blocks),
        "num_gpu_blocks_override": str(options.num_blocks),
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": "None",
    }


def _one_two_five(limit: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to ``limit``."""
    steps = [digit * 10**power for power in range(10) for digit in (1, 2, 5)]
    return [step for step in steps if step <= limit]
