"""vLLM's real scheduler, the plugin's class of it, stepped by hand: no model, each request gets the tokens it is told.

Imported only by tests that need it: vLLM takes seconds to import and warns.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from cachefleet_core.report_frames import Policy
from cachefleet_worker.plugin.gate import finish_reason
from cachefleet_worker.plugin.plugin_process import this_process
from cachefleet_worker.plugin.scheduler import create

BLOCK = 32
_names = itertools.count()


@dataclass(frozen=True)
class Options:
    """How the engine is made; ``blocks`` includes the null block."""

    blocks: int = 64
    seqs: int = 8
    batched: int = 256
    asynchronous: bool = False
    caching: bool = True
    connector: tuple[str, str] | None = None
    """Module and class of a KV connector."""
    priority: bool = False


@dataclass
class Answer:
    """What a request's client has got."""

    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    stop_reason: str | int | None = None
    details: dict[str, Any] | None = None
    client: int = -1


@dataclass(frozen=True)
class Admitted:
    """A request that the scheduler let in; ``computed`` of its ``needed`` tokens were there."""

    name: str
    computed: int
    needed: int
    preemptions: int


def prepared() -> finish_reason.Finish:
    """The plugin's patches of this process, as ``register`` makes them."""
    process = this_process()
    if "finish" not in process.parts:
        process.parts["finish"] = finish_reason.install(process.capabilities, process.faults, process.settings)
    found: finish_reason.Finish = process.parts["finish"]
    return found


def _config(model: Path, options: Options) -> Any:
    given: dict[str, Any] = {
        "model": str(model),
        "dtype": "float32",
        "block_size": BLOCK,
        "max_model_len": 1024,
        "max_num_seqs": options.seqs,
        "max_num_batched_tokens": options.batched,
        "enable_prefix_caching": options.caching,
        "enforce_eager": True,
        "scheduling_policy": "priority" if options.priority else "fcfs",
        "scheduler_cls": "cachefleet_worker.plugin.scheduler.create",
    }
    if options.connector is not None:
        module, name = options.connector
        given["kv_transfer_config"] = {
            "kv_connector": name,
            "kv_connector_module_path": module,
            "kv_role": "kv_both",
        }
    config = EngineArgs(**given).create_engine_config()
    config.scheduler_config.async_scheduling = options.asynchronous  # the CPU platform forces it off
    config.cache_config.num_gpu_blocks = options.blocks
    return config


class Stepped:
    """One engine: ``submit``, then ``step`` or ``run``."""

    def __init__(self, model: Path, options: Options) -> None:
        prepared()
        init_none_hash(sha256)
        config = _config(model, options)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=config.model_config.dtype)
        cache = KVCacheConfig(options.blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.scheduler = create(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            include_finished_set=True,
            log_stats=True,
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.state = self.scheduler.cachefleet
        self.answers: dict[str, Answer] = {}
        self.plans: deque[Any] = deque()
        self.depth = 2 if options.asynchronous else 1
        self.admitted: list[Admitted] = []
        self.free = self.pool.get_num_free_blocks()
        self.next_token: Callable[[str], int] = lambda _: 7

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    def policy(self, **policy: Any) -> None:
        generation = self.state.policy.generation + 1
        self.state.apply(Policy(pool="p", uid="u", generation=generation, **policy))

    def submit(self, prompt: list[int], name: str = "", *, tokens: int = 4, client: int = 0, **more: Any) -> str:
        """Add a request; its id."""
        name = name or f"cmpl-{next(_names)}"
        sampling = {key: more.pop(key) for key in ("extra_args", "prompt_logprobs") if key in more}
        kind = RequestOutputKind.DELTA
        parameters = SamplingParams(max_tokens=tokens, ignore_eos=True, output_kind=kind, **sampling)
        hasher = get_request_block_hasher(BLOCK, sha256)
        request = Request(name, prompt, parameters, None, client_index=client, block_hasher=hasher, **more)
        self.answers[name] = Answer()
        self.scheduler.add_request(request)
        return name

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.answers[name].reason = self.answers[name].reason or "abort"

    def step(self) -> bool:
        """One turn of the engine's loop; False where it would rest."""
        if self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            self.plans.append((plan, self._note(plan)))
            if len(self.plans) < self.depth and self.scheduler.has_requests():
                return True
        if not self.plans:
            return False
        plan, sampled = self.plans.popleft()
        self._receive(self.scheduler.update_from_output(plan, self._executed(plan, sampled)))
        return True

    def run(self, limit: int = 10_000) -> None:
        """Step until the engine would rest. AssertionError where it does not come to that."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"not idle after {limit} steps")

    def check_idle(self) -> None:
        """Nothing is left of any request."""
        scheduler = self.scheduler
        assert not scheduler.has_requests()
        assert scheduler.get_request_counts() == (0, 0)
        assert not scheduler.requests
        assert not getattr(scheduler, "deferred_waiting", ())
        assert not getattr(scheduler, "skipped_waiting", ())
        assert not getattr(scheduler, "kv_holding_waiting", ())
        assert self.pool.get_num_free_blocks() == self.free
        assert all(block.ref_cnt == 0 for block in self.pool.blocks if not block.is_null)
        assert not any(manager.req_to_blocks for manager in self._managers())
        assert all(answer.reason for answer in self.answers.values())
        assert not self.state.faults.counts

    def _managers(self) -> Iterator[Any]:
        yield from self.scheduler.kv_cache_manager.coordinator.single_type_managers

    def _note(self, plan: Any) -> set[str]:
        """The requests that get a token in this step."""
        admitted = [(new.req_id, new.num_computed_tokens) for new in plan.scheduled_new_reqs]
        cached = plan.scheduled_cached_reqs
        known = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        admitted += [(name, computed) for name, computed in known if name in cached.resumed_req_ids]
        requests = self.scheduler.requests
        for name, computed in admitted:
            request = requests[name]
            self.admitted.append(Admitted(name, computed, request.num_tokens, request.num_preemptions))
        return {name for name in plan.num_scheduled_tokens if not requests[name].is_prefill_chunk}

    def _executed(self, plan: Any, sampled: set[str]) -> ModelRunnerOutput:
        names = list(plan.num_scheduled_tokens)
        loading = KVConnectorOutput(finished_recving=self._loading()) if self.scheduler.connector else None
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[[self.next_token(name)] if name in sampled else [] for name in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=loading,
        )

    def _loading(self) -> set[str]:
        """Requests whose load takes as long as the step."""
        remote = RequestStatus.WAITING_FOR_REMOTE_KVS
        done = self.scheduler.finished_recving_kv_req_ids
        return {name for name, one in self.scheduler.requests.items() if one.status == remote and name not in done}

    def _receive(self, outputs: dict[int, Any]) -> None:
        for client, batch in outputs.items():
            for output in batch.outputs:
                answer = self.answers[output.request_id]
                assert not answer.reason or answer.reason == "abort", "answered twice"
                answer.tokens += output.new_token_ids
                if output.finish_reason is not None:
                    answer.reason, answer.stop_reason = str(output.finish_reason), output.stop_reason
                    answer.details = (output.kv_transfer_params or {}).get("cache_threshold")
                    answer.client = client
