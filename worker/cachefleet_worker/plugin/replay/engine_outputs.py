"""What an engine gives for one answer: recorded as its serving code takes it, and put before what it gives next.

A replayed request's state in vLLM's output processor (detokenizer, stop strings, counts) gets the recorded ids one
output after the other, as it would from the engine, before the engine has the request. What comes of each is kept, and
given to the serving code first. The engine gets prompt and recorded ids as the prompt, and so many tokens less to make;
or the recorded ids as output (restored_outputs), where what was produced counts for what follows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from cachefleet_core.engine.answer_replay import Part, Unrecorded
from cachefleet_worker.plugin.replay.recorded_answer import RecordedAnswer
from cachefleet_worker.plugin.replay.token_logprobs import engine_row

_KNOWN: Final = frozenset(
    {
        *("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids"),
        *("stop", "stop_token_ids", "bad_words", "ignore_eos", "max_tokens", "min_tokens", "extra_args", "detokenize"),
        *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output", "output_kind"),
        *("logprobs", "stream_interval", "skip_clone", "output_text_buffer_length", "prompt_logprob_start"),
    }
)
"""Sampling parameters that shape the rest of an answer as they did its beginning."""
_REASONS: Final = {
    "seed": Unrecorded.SEED,
    "presence_penalty": Unrecorded.PENALTIES,
    "frequency_penalty": Unrecorded.PENALTIES,
    "flat_logprobs": Unrecorded.LOGPROBS,
    "logprob_token_ids": Unrecorded.LOGPROBS,
    "prompt_logprobs": Unrecorded.LOGPROBS,
    "structured_outputs": Unrecorded.GRAMMAR,
}
"""Of others what they stand in the way for; ``Unrecorded.SAMPLING`` where none is named."""
_ABORTS: Final = frozenset({"abort", "error", "cache_threshold"})
"""Finish reasons by which an engine gives an answer up: no end of it."""


def unrecorded(request: Any, parent: Any = None, *, restored: frozenset[Unrecorded] = frozenset()) -> Unrecorded | None:
    """Why what an engine gives for a request of vLLM's is not to be recorded; None where it is.

    ``restored`` stands in the way of no other engine.
    """
    params = request.sampling_params
    if params is None or request.prompt_token_ids is None or request.prompt_embeds is not None:
        return Unrecorded.EMBEDS
    if params.n != 1 or parent is not None:
        return Unrecorded.CHOICES
    if params.logprobs is not None and params.logprobs < 0:
        return Unrecorded.LOGPROBS
    return next((reason for reason in _reasons(params) if reason not in restored), None)


def _reasons(params: Any) -> Iterator[Unrecorded]:
    """What there is in the way of another engine that has what was produced as prompt."""
    plain = type(params)()
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if name in _KNOWN or name.startswith("_") or value is None or value is False:
            continue
        if value != getattr(plain, name):
            yield _REASONS.get(name, Unrecorded.SAMPLING)


def replay(
    processor: Any, request: Any, parts: Sequence[Part], output: Callable[..., Any], *, member: str = ""
) -> list[Any]:
    """Have a request's state take the recorded parts; return what its serving code is to get of them.

    ``request`` is changed to one for the rest. ``output`` makes an output of vLLM's engine, as ``EngineCoreOutput``.
    ``member``: of restored_outputs.
    """
    state, made = processor.request_states[request.request_id], []
    interval, state.stream_interval = state.stream_interval, 1
    ids: list[int] = []
    for part in parts:
        processor.process_outputs([output(request.request_id, part, request.sampling_params.logprobs)])
        ids += part.ids
        if (found := state.queue.get_nowait()) is not None:
            made.append(found)
    state.stream_interval, state.is_prefilling = interval, True
    state.sent_tokens_offset = len(ids)
    _ask_for_rest(request, ids, member)
    return made


def _ask_for_rest(request: Any, ids: list[int], member: str) -> None:
    params = copy.copy(request.sampling_params)
    if any(True for _ in _reasons(params)):
        params.extra_args = {**(params.extra_args or {}), member: ids}
        request.sampling_params = params
        return
    if params.max_tokens is not None:
        params.max_tokens = max(1, params.max_tokens - len(ids))
    params.min_tokens = max(0, params.min_tokens - len(ids))
    request.prompt_token_ids = [*request.prompt_token_ids, *ids]
    request.sampling_params = params


def core_output(made: type[Any], reasons: type[Any], rows: Callable[..., Any]) -> Callable[..., Any]:
    """What makes an engine's output of a part; a stop string is found by the detokenizer again.

    ``rows`` makes log probabilities of ids, values and ranks, as ``LogprobsLists``.
    """
    named = {reason.name.lower(): reason for reason in reasons}

    def output(request_id: str, part: Part, likeliest: int | None = None) -> Any:
        found = isinstance(part.stop, str) or part.finish in _ABORTS
        reason = None if found or not part.finish else named[part.finish]
        stop = part.stop if reason is not None else None
        logprobs = _engine_logprobs(part, likeliest, rows)
        more = {} if logprobs is None else {"new_logprobs": logprobs}
        return made(request_id=request_id, new_token_ids=list(part.ids), finish_reason=reason, stop_reason=stop, **more)

    return output


def _engine_logprobs(part: Part, likeliest: int | None, rows: Callable[..., Any]) -> Any:
    if likeliest is None or not part.logprobs:
        return None
    ranks, ids, values = zip(*(engine_row(each, likeliest) for each in part.logprobs), strict=True)
    return rows(ids, values, ranks)


class RecordedQueue:
    """What ``generate`` takes a request's outputs from: the replayed ones, then the engine's, each recorded first."""

    def __init__(self, queue: Any, answer: RecordedAnswer) -> None:
        self._queue = queue
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get_nowait(self) -> Any:
        """The next output; None where there is none yet."""
        replayed = self._answer.replayed
        found = replayed.popleft() if replayed else self._queue.get_nowait()
        return None if found is None else self._noted(found)

    async def get(self) -> Any:
        """The next output, once it is there."""
        return self._noted(await self._queue.get())

    def _noted(self, output: Any) -> Any:
        answer = self._answer
        if answer.cached is not None:
            output.num_cached_tokens = answer.cached
        if answer.written is not None:
            output.num_cache_creation_tokens = answer.written
        if getattr(output, "outputs", None):
            answer.note(output)
        return output
