"""Relays one worker's stream to the client: native code passes its ordinary events on, where both ends are native."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cachefleet_controlplane.gateway.apis.api import StreamTransformer
from cachefleet_controlplane.gateway.attempts.resume import Resumption
from cachefleet_controlplane.gateway.attempts.stalled_attempts import Relaying, StalledAttempts
from cachefleet_controlplane.gateway.conversations.turn import PlainTurn, Turn
from cachefleet_controlplane.gateway.upstream.answers.answer import StreamFilter, error_code
from cachefleet_controlplane.gateway.upstream.answers.produced_tokens import Name
from cachefleet_controlplane.gateway.upstream.native_sender import NativeResponse
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import AnswerStream
from cachefleet_controlplane.transport.native_exchange import NativeReply
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Reply


class _NativeEnds(NamedTuple):
    """A worker's answer and a client's, and what is taken out between them."""

    response: NativeResponse
    reply: NativeReply
    transformer: StreamFilter


@dataclass(slots=True)
class StreamRelay:
    """The relay of one request's streams."""

    reply: Reply
    turn: Turn
    resuming: Resumption
    stalled: StalledAttempts

    async def run(
        self, stream: AnswerStream, transformer: StreamTransformer, *, worker: str, elsewhere: Callable[[], bool]
    ) -> Outcome:
        """Send the events held back, then those that follow, each once the client has taken the one before.

        ``elsewhere``: whether another worker than this one would take the rest of the answer now.
        """
        answer = Relaying(worker, stream.cut, lambda: self.resuming.survives and elsewhere())
        try:
            with self.stalled.relaying(answer):
                return await self._run(stream, transformer, answer)
        finally:  # also where the client has left
            if isinstance(stream.response, NativeResponse):
                transformer.count.add(*stream.response.counted())

    async def _run(self, stream: AnswerStream, transformer: StreamTransformer, answer: Relaying) -> Outcome:
        resuming, events, written, failed = self.resuming, stream.first, False, False
        if isinstance(stream.response, NativeResponse):
            stream.response.begin()
        while events or stream.outcome is None:
            if resuming.breaks(events):
                return Outcome.CUT_OFF
            failed = failed or any(map(error_code, events))
            data = b"".join(map(transformer.feed, await self.turn.passed(resuming.relayed(events))))
            ends = self._native_ends(stream, transformer, written=written or bool(data))
            await self._send(ends, stream, data)
            written = written or bool(data) or ends is not None
            stream.first, events, data = [], [], b""  # not kept while others come
            if resuming.stopped:
                return Outcome.STOPPED
            events = [] if ends is None else await self._left(ends, stream, answer)
            if events := events or await stream.more():
                self.stalled.heard(answer)
        outcome = resuming.outcome(stream.outcome or Outcome.FINISHED)
        outcome = Outcome.ERROR_EVENT if failed and outcome is Outcome.FINISHED else outcome
        if outcome not in {Outcome.HANDED_BACK, Outcome.CUT_OFF, Outcome.ABORTED} and (data := transformer.end()):
            await self.reply.write(data)
        return outcome

    def _native_ends(
        self, stream: AnswerStream, transformer: StreamTransformer, *, written: bool
    ) -> _NativeEnds | None:
        """Both ends, where native code may pass on what comes now: from the stream's beginning, or once that is
        ``written``.
        """
        reply, response, resuming = self.reply, stream.response, self.resuming
        if not (
            isinstance(response, NativeResponse)
            and isinstance(reply, NativeReply)
            and isinstance(transformer, StreamFilter)
            and isinstance(self.turn, PlainTurn)
            and not response.ended
        ):
            return None
        fresh = resuming.fresh and transformer.counts_ids
        may = fresh if response.begins else written and transformer.passes and resuming.passes
        return _NativeEnds(response, reply, transformer) if may else None

    async def _send(self, ends: _NativeEnds | None, stream: AnswerStream, data: bytes) -> None:
        """Send ``data``; native code does, and passes on what follows it, where there are ``ends``."""
        if ends is not None:
            self._relay(ends, stream, data)
        elif data:
            await self.reply.write(data)

    def _relay(self, ends: _NativeEnds, stream: AnswerStream, data: bytes) -> None:
        response, reply, transformer = ends
        first = response.begins
        if first:
            transformer.begin()
        response.relay(
            *(reply.native, reply.take_head(), data, response.take() if first else stream.begun()),
            first=first,
            strip_ids=transformer.strips_ids,
            strip_usage=transformer.strips_usage,
            notes=self.resuming.resumable,
            single=transformer.ends_unread,
            send_seconds=reply.seconds,
        )

    async def _left(self, ends: _NativeEnds, stream: AnswerStream, answer: Relaying) -> list[bytes]:
        """The next events that native code has not passed on."""
        answer.silent_seconds = ends.response.silent_seconds
        try:
            relayed = await ends.response.relayed()
        finally:
            self.stalled.relayed(answer)
        if relayed.gone:
            raise ClientGoneError
        if relayed.beginning is not None:
            name, kind, created, model, prompt = relayed.beginning
            self.resuming.begin(Name(name, kind, created, model), prompt)
        self.resuming.add(relayed.ids, relayed.text, relayed.finish)
        if relayed.usage:  # the client has all
            self.stalled.heard(answer)
            ends.transformer.feed(relayed.usage)
        return stream.left(relayed.events, relayed.rest)
