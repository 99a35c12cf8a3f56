"""Self-test of the gate's hook: a test request refused in the real scheduler, before there are other requests."""

from __future__ import annotations

from typing import Any, Final, Protocol

NAME: Final = "cachefleet-self-test"


class SelfTested(Protocol):
    """The gate under test."""

    self_test_request: str

    @property
    def pending(self) -> bool: ...

    def deliver(self, outputs: dict[int, Any]) -> None: ...


def self_test(scheduler: Any, admission: SelfTested) -> str:
    """Have a test request refused; returns what is wrong, "" where nothing is. May raise whatever vLLM raises.

    Skipped with a connector, which would announce the test request to others: there the hook's presence in vLLM's
    source must do.
    """
    if scheduler.connector is not None or scheduler.has_requests():
        return ""
    admission.self_test_request = NAME
    try:
        return _self_test(scheduler, admission)
    finally:
        admission.self_test_request = ""
        _clear(scheduler)


def _self_test(scheduler: Any, admission: SelfTested) -> str:
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    scheduler.add_request(_request())
    plan = scheduler.schedule()
    if not admission.pending:
        return "the hook was not asked"
    if plan.total_num_scheduled_tokens or NAME in scheduler.requests or scheduler.get_request_counts() != (0, 0):
        return "a refused request was run"
    if not scheduler.has_requests():
        return "the engine would not send the answer"
    outputs: dict[int, Any] = {}
    admission.deliver(outputs)
    if [answer.request_id for answer in outputs[0].outputs] != [NAME]:
        return "the answer is lost"
    if scheduler.kv_cache_manager.block_pool.get_num_free_blocks() != free:
        return "blocks are lost"
    return ""


def _request() -> Any:
    from vllm.sampling_params import SamplingParams  # noqa: PLC0415 - vLLM is there when this runs
    from vllm.v1.request import Request  # noqa: PLC0415

    return Request(
        request_id=NAME, prompt_token_ids=[0, 0], sampling_params=SamplingParams(max_tokens=1), pooling_params=None
    )


def _clear(scheduler: Any) -> None:
    """Remove the test request, whatever state it is in."""
    from vllm.v1.request import RequestStatus  # noqa: PLC0415

    scheduler.finish_requests(NAME, RequestStatus.FINISHED_ABORTED)
    scheduler.finished_req_ids.discard(NAME)
    if scheduler.finished_req_ids_dict is not None:
        scheduler.finished_req_ids_dict.clear()
