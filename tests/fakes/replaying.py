"""Streams that are recorded and made again, by the plugin's own code: a fake engine's sequences stand for vLLM's.

Names and times in answers are those of the header, as in the plugin. A replayed sequence is one that has produced what
was recorded, and was preempted then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from aiohttp import web

from cachefleet_core.engine.answer_replay import HEADER, Part, Unrecorded, read_ask, read_record
from cachefleet_worker.plugin.replay.recorded_answer import RecordedAnswer, current
from cachefleet_worker.plugin.replay.replay_hooks import RecordedTime, SeededNames, stand_in
from tests.fakes import answers, messages_api, responses_api, streams
from tests.fakes.asks import Ask
from tests.fakes.finish import Finish
from tests.fakes.scheduler import Sequence

for _module in (answers, messages_api, responses_api, streams):
    stand_in(_module, "uuid", SeededNames())
    stand_in(_module, "time", RecordedTime())


@contextmanager
def recorded(request: web.Request, body: bytes, *, on: bool) -> Iterator[bytes]:
    """Record the request's answer, where it is asked for; give its body without a record."""
    value = request.headers.get(HEADER, "")
    if not value or not on:
        yield body
        return
    ask = read_ask(value.encode())
    split = len(body) - ask.record_bytes
    token = current.set(RecordedAnswer(ask, read_record(body[split:])))
    try:
        yield body[:split]
    finally:
        current.reset(token)


def unrecorded(ask: Ask) -> Unrecorded | None:
    """As the plugin in an engine that restores no outputs, from the body in place of sampling parameters."""
    body = ask.body
    if len(ask.prompts) * ask.n > 1:
        return Unrecorded.CHOICES
    if body.get("seed") is not None:
        return Unrecorded.SEED
    if body.get("frequency_penalty") or body.get("presence_penalty"):
        return Unrecorded.PENALTIES
    if body.get("logprobs"):
        return Unrecorded.LOGPROBS
    return Unrecorded.GRAMMAR if ask.script else None


def begin(ask: Ask, generation: Sequence) -> list[Part]:
    """What is to be replayed of a stream that begins."""
    answer = current.get()
    if answer is None or not answer.begin(ask.prompts[0], unrecorded(ask)):
        return []
    generation.preemptions = 1
    generation.cached_tokens, generation.created_tokens = answer.cached, answer.written or 0
    return answer.parts


def extend(generation: Sequence, part: Part) -> None:
    """Have a sequence produce what was recorded."""
    generation.tokens.extend(part.ids)
    if part.finish:
        generation.finish, generation.stop_reason = Finish(part.finish), part.stop


def note(generation: Sequence, ids: list[int]) -> None:
    """Record an output of the engine, where that is asked for, before anything is made of it."""
    answer = current.get()
    if answer is None:
        return
    ended = generation.finish in {Finish.STOP, Finish.LENGTH}
    finish, stop = (str(generation.finish), generation.stop_reason) if ended else (None, None)
    choice = SimpleNamespace(token_ids=ids, finish_reason=finish, stop_reason=stop)
    cached, written = generation.cached_tokens, generation.created_tokens
    answer.note(SimpleNamespace(outputs=[choice], num_cached_tokens=cached, num_cache_creation_tokens=written))


def take() -> bytes:
    """The comments that go before the next event, in one piece with it as the plugin sends them; b"" for none."""
    answer = current.get()
    return b"" if answer is None else answer.take()
