"""The hooks in vLLM's API server by which answers are recorded and replayed."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from cachefleet_core.engine.answer_replay import FEATURE
from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import Process, engineless
from cachefleet_worker.plugin.replay import restored_outputs
from cachefleet_worker.plugin.replay.engine_outputs import RecordedQueue, core_output, replay, unrecorded
from cachefleet_worker.plugin.replay.recorded_answer import current

_STOCK: Final = "cachefleet_unrecorded"
_SERVED: Final = ("serving", "protocol")
_OPENAI: Final = "vllm.entrypoints.openai"
_ANTHROPIC: Final = "vllm.entrypoints.anthropic"
NAMING: Final = ("vllm.utils", f"{_ANTHROPIC}.serving")
"""Modules that name parts of answers by ``uuid.uuid4``."""
DATING: Final = (
    *(f"{_OPENAI}.{api}.{part}" for api in ("chat_completion", "completion", "responses") for part in _SERVED),
    *(f"{_ANTHROPIC}.{part}" for part in _SERVED),
)
"""Modules that date answers by ``time.time``."""


def install(process: Process, *, has_engine: bool) -> None:
    """Hook vLLM in this API server, unless that is switched off."""
    closed = process.settings.switched_off(FEATURE) or process.keyless()
    if missing := closed or engineless(has_engine) or unmet(FEATURE):
        process.faults.off(FEATURE, missing)
        return
    from vllm.v1.engine import EngineCoreOutput, FinishReason  # noqa: PLC0415 - only where vLLM serves
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415
    from vllm.v1.engine.output_processor import OutputProcessor  # noqa: PLC0415

    restores = process.capabilities.mode(restored_outputs.FEATURE) == "on"
    member = restored_outputs.member(process.worker_key()) if restores else ""
    output = core_output(EngineCoreOutput, FinishReason, logprob_rows)
    patch(AsyncLLM, OutputProcessor, output, process.faults, member=member)
    for name in NAMING:
        stand_in(import_module(name), "uuid", SeededNames())
    for name in DATING:
        stand_in(import_module(name), "time", RecordedTime())
    process.capabilities.add(FEATURE, "on")


def logprob_rows(ids: Sequence[Any], values: Sequence[Any], ranks: Sequence[Any]) -> Any:
    """Log probabilities as an engine of vLLM's gives them, one row a token."""
    import numpy as np  # noqa: PLC0415 - vLLM has it
    from vllm.v1.outputs import LogprobsLists  # noqa: PLC0415

    rows: list[Any] = [[np.array(row) for row in each] for each in (ids, values, ranks)]
    return LogprobsLists(*rows)  # rows may be of several lengths


def patch(
    client: type[Any], processor: type[Any], output: Callable[..., Any], faults: Faults, *, member: str = ""
) -> None:
    """Hook an engine client and its output processor; earlier hooks are replaced. ``member``: of restored_outputs."""
    wrap_method(client, "add_request", functools.partial(_recording, faults, member), mark=_STOCK)
    wrap_method(processor, "add_request", functools.partial(_replaying, faults, output, member), mark=_STOCK)


def _recording(faults: Faults, member: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    async def add_request(self: Any, *args: Any, **named: Any) -> Any:
        answer = current.get()
        if answer is None or not faults.on(FEATURE):
            return await stock(self, *args, **named)
        answer.restored = restored_outputs.restored(self.vllm_config, on=bool(member))
        with answer.own_names():
            queue = await stock(self, *args, **named)
        return RecordedQueue(queue, answer)

    return add_request


def _replaying(
    faults: Faults, output: Callable[..., Any], member: str, stock: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(stock)
    def add_request(self: Any, request: Any, prompt: Any, *args: Any, **named: Any) -> Any:
        added = stock(self, request, prompt, *args, **named)
        answer = current.get()
        if answer is not None and faults.on(FEATURE):
            with faults.guard(FEATURE):
                state = self.request_states[request.request_id]
                reason = unrecorded(request, state.parent_req, restored=answer.restored)
                if answer.begin(request.prompt_token_ids or (), reason):
                    answer.replayed.extend(replay(self, request, answer.parts, output, member=member))
        return added

    return add_request


class SeededNames:
    """Module ``uuid``, whose ``uuid4`` is of the answer that is recorded, where one is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)

    def uuid4(self) -> uuid.UUID:
        """A name for a part of an answer."""
        answer = current.get()
        return uuid.uuid4() if answer is None else answer.uuid4()


class RecordedTime:
    """Module ``time``, whose ``time`` is when the answer began that is recorded, where one is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        """Unix time."""
        answer = current.get()
        return time.time() if answer is None else answer.seconds


def stand_in(module: ModuleType, name: str, other: object) -> None:
    """Have a module of vLLM's use ``other`` by the name of another module, where it does use that."""
    if hasattr(module, name):
        setattr(module, name, other)
