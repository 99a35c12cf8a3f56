"""The gate in one scheduler: judges each request at its admission, refuses it in the same step and answers at once.

The hook (scheduler_hooks.py) runs inside ``schedule()``, where queues must not change: it only records a refusal and
skips the request. After the step is planned, ``settle`` finishes refused requests as an abort would, which frees their
blocks, encoder entries and connector state. ``deliver`` adds the answers to the outputs of the step.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.gate.finish_reason import REASON, Finish, plain_finish
from cachefleet_worker.plugin.gate.rules import (
    Candidate,
    Refusal,
    hand_back,
    is_gated_endpoint,
    is_resumable,
    own_threshold,
    refuse_fresh,
)
from cachefleet_worker.plugin.gate.scheduler_hooks import EARLY, NONE, computed_tokens
from cachefleet_worker.plugin.gate.self_test import self_test
from cachefleet_worker.plugin.plugin_process import this_process

log = logging.getLogger("vllm.cachefleet")

LEAVING: Final = Refusal(1.0, 0.0, "leaving")
DETAILS: Final = "cache_threshold"
"""Key in ``kv_transfer_params`` of a refusal's numbers."""
REMARKS: Final = {EARLY: "asked before LoRA slots are counted, and a connector is asked twice"}


def install(scheduler: Any, state: EngineState) -> Admission | None:
    """Put the gate into a scheduler after its self-test. None, with the reason in the capabilities, where it is off."""
    reason = _why_not(scheduler)
    wanted = [feature for feature in ("gate", "preemption") if state.enabled(feature)]
    for feature in wanted:
        state.capabilities.add(
            feature, "off" if reason else "in_loop", reason or REMARKS.get(scheduler.cachefleet_hook, "")
        )
    if reason or not wanted:
        return None
    admission = Admission(scheduler, state, _finish())
    scheduler.cachefleet_admission = admission
    state.calls["hand_back"] = admission.hand_back_all
    fault = "it raised"
    with state.faults.guard("gate"):
        fault = self_test(scheduler, admission)
    if not fault:
        return admission
    scheduler.cachefleet_admission = None
    log.error("cachefleet: the gate and the hand-back are off: %s", fault)
    for feature in wanted:
        state.faults.off(feature, f"self-test: {fault}")
    return None


def _why_not(scheduler: Any) -> str:
    if scheduler.cachefleet_hook == NONE:
        return "this vLLM's scheduler has no known place to ask at"
    if scheduler.vllm_config.model_config.runner_type == "pooling":
        return "a pooling model has no admission to gate"
    return ""


def _finish() -> Finish:
    """How this process finishes a refused request; an ordinary stop where the patch is not installed."""
    found = this_process().parts.get("finish")
    return found if isinstance(found, Finish) else plain_finish()


def _feature(request: Any) -> str:
    """The feature that a refusal of this request counts for."""
    return "preemption" if request.num_preemptions else "gate"


class Admission:
    """Judges requests, finishes refused ones, keeps their answers until the step's outputs are sent."""

    def __init__(self, scheduler: Any, state: EngineState, finish: Finish) -> None:
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415
        from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs  # noqa: PLC0415

        self._scheduler = scheduler
        self._state = state
        self._finish = finish
        self._output, self._outputs = EngineCoreOutput, EngineCoreOutputs
        self._scheduled = EngineCoreEventType.SCHEDULED
        self._delta = RequestOutputKind.DELTA
        self._caching = bool(scheduler.cache_config.enable_prefix_caching)
        self._refused: dict[str, tuple[Any, Refusal, int]] = {}
        self._answers: list[tuple[int, Any]] = []
        self.self_test_request = ""
        """Id of the self-test's request, which is refused whatever the policy; "" outside of it."""

    @property
    def pending(self) -> bool:
        """Whether answers wait for a step's outputs."""
        return bool(self._answers)

    def refuses(self, request: Any, computed: int | None = None) -> bool:
        """Return True to skip a request in this step; ``computed`` of its tokens are cached.

        None: the number is looked up, if the request may be refused at all.
        """
        faults = self._state.faults
        refused = False
        with faults.guard("gate"):
            feature = _feature(request)
            if (self.self_test_request or faults.on(feature)) and self._wants(request):
                with faults.guard(feature):
                    refused = self._refuses(request, computed)
        return refused

    def settle(self) -> None:
        """Finish the requests refused in this step and make their answers."""
        if not self._refused:
            return
        refused, self._refused = self._refused, {}
        for request, refusal, computed in refused.values():
            with self._state.faults.guard(_feature(request)):
                self._settle(request, refusal, computed)

    def deliver(self, outputs: dict[int, Any]) -> None:
        """Add the answers to a step's outputs, each for the API server that waits for it."""
        answers, self._answers = self._answers, []
        for client, answer in answers:
            with self._state.faults.guard("gate"):
                if client not in outputs:
                    outputs[client] = self._outputs()
                outputs[client].outputs.append(answer)

    def hand_back_all(self, _payload: bytes) -> bytes:
        """Hand back whatever others can go on with, running or waiting: this worker goes. Between two steps."""
        handed = 0
        with self._state.faults.guard("preemption"):
            if self._state.faults.on("preemption") and self._state.policy.hand_back:
                requests = [one for one in self._scheduler.requests.values() if self._goes_on_elsewhere(one)]
                self._refused |= {one.request_id: (one, LEAVING, one.num_computed_tokens) for one in requests}
                handed = len(requests)
                self.settle()
        return msgspec.msgpack.encode({"handed_back": handed})

    def _goes_on_elsewhere(self, request: Any) -> bool:
        parameters = request.sampling_params
        return (
            parameters is not None
            and is_resumable(parameters.extra_args)
            and not request.is_finished()
            and not self._is_exempt(request)
        )

    def _wants(self, request: Any) -> bool:
        """Whether a request may be refused at all; cheap, called at each admission."""
        if request.num_computed_tokens or request.sampling_params is None:
            return False
        policy = self._state.policy
        if request.num_preemptions:
            return policy.hand_back and policy.reject_below > 0
        return policy.threshold > 0 or bool(self.self_test_request or request.sampling_params.extra_args)

    def _refuses(self, request: Any, computed: int | None) -> bool:
        if computed is None:
            computed = computed_tokens(self._scheduler, request)
        refusal = self._judge(request, computed)
        if refusal is None:
            return False
        self._refused[request.request_id] = (request, refusal, computed)
        return True

    def _judge(self, request: Any, computed: int) -> Refusal | None:
        if self.self_test_request:
            return Refusal(0.0, 1.0, "request") if request.request_id == self.self_test_request else None
        if self._is_exempt(request):
            return None
        extra_args = request.sampling_params.extra_args
        candidate = Candidate(
            computed=computed,
            needed=request.num_tokens,
            own=own_threshold(extra_args),
            resumable=is_resumable(extra_args),
            preemptions=request.num_preemptions,
        )
        policy = self._state.policy
        return hand_back(candidate, policy) if candidate.preemptions else refuse_fresh(candidate, policy.threshold)

    def _is_exempt(self, request: Any) -> bool:
        """Whether no cache could serve the request, it fills one for others, or its stream cannot carry the reason."""
        transfer = request.kv_transfer_params or {}
        return (
            not self._caching
            or request.num_prompt_tokens == 0
            or getattr(request, "skip_reading_prefix_cache", False)
            or getattr(request, "resumable", False)  # only its client may end a session of streamed inputs
            or bool(transfer.get("do_remote_decode"))
            or not is_gated_endpoint(request.request_id)
            or (
                not self._finish.streams
                and request.sampling_params.output_kind == self._delta
                and request.num_output_tokens == 0
            )
        )

    def _settle(self, request: Any, refusal: Refusal, computed: int) -> None:
        scheduler = self._scheduler
        if scheduler.requests.get(request.request_id) is not request or request.is_finished():
            return
        if scheduler.log_stats and not request.num_preemptions:
            # vLLM's latencies count from the first admission; without one they would count from the machine's boot.
            request.record_event(self._scheduled)
        answer = self._answer(request, refusal, computed)
        try:
            scheduler.finish_requests(request.request_id, self._finish.status)
        finally:
            if request.is_finished():
                self._answers.append((request.client_index, answer))
        if request.request_id != self.self_test_request:
            self._tell(request, refusal)

    def _answer(self, request: Any, refusal: Refusal, computed: int) -> Any:
        details = {
            "hit_tokens": computed,
            "prompt_tokens": request.num_prompt_tokens,
            "threshold": refusal.threshold,
            "preempted": request.num_preemptions,
        }
        answer = self._output(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=self._finish.reason,
            stop_reason=REASON,
            events=request.take_events(),
            kv_transfer_params=None if refusal is LEAVING else {DETAILS: details},  # by which it would be a refusal
            trace_headers=request.trace_headers,
        )
        if getattr(request, "spec_decode_metrics", None) is not None:
            answer.spec_decode_metrics = request.spec_decode_metrics
        return answer

    def _tell(self, request: Any, refusal: Refusal) -> None:
        counts = self._state.counts
        if refusal is LEAVING:
            counts["handed_back"] += 1
            tokens = request.num_output_tokens
            log.info("Request %s handed back: this worker goes, %d tokens produced", request.request_id, tokens)
            return
        if refusal.source == "preempted":
            counts["handed_back"] += 1
            log.info(
                "Request %s handed back: surviving hit rate %.2f < reject below %.2f, %d tokens produced",
                request.request_id,
                refusal.ratio,
                refusal.threshold,
                request.num_output_tokens,
            )
            return
        counts["rejected"] += 1
        counts[f"rejected_{refusal.source}"] += 1
        log.info(
            "Request %s rejected: cache hit rate %.2f < threshold %.2f (%s)",
            request.request_id,
            refusal.ratio,
            refusal.threshold,
            refusal.source,
        )
