"""Relays one worker's stream to the client: native code passes its ordinary events on, where both ends are native."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import cachefleet_native

from cachefleet_controlplane.gateway.request.request import AnswerStage
from cachefleet_controlplane.gateway.retry.resume import Resumption
from cachefleet_controlplane.gateway.retry.stalled_attempts import Relaying, StalledAttempts
from cachefleet_controlplane.gateway.retry.stream_replay import MAX_RECORD_BYTES
from cachefleet_controlplane.gateway.send.answers.answer import error_code
from cachefleet_controlplane.gateway.send.answers.produced_tokens import Name
from cachefleet_controlplane.gateway.send.answers.stream_filter import Passes, StreamFilter
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AnswerStream
from cachefleet_controlplane.gateway.send.worker_call import NativeResponse, Trail
from cachefleet_controlplane.transport.native_exchange import NativeReply
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Reply


class _NativeEnds(NamedTuple):
    """A worker's answer and a client's, the filter between them, and the events that native code relays."""

    response: NativeResponse
    reply: NativeReply
    filter: cachefleet_native.StreamFilter
    passes: Passes


@dataclass(slots=True)
class StreamRelay:
    """The relay of one request's streams."""

    reply: Reply
    turn: AnswerStage
    resuming: Resumption
    stalled: StalledAttempts

    async def run(
        self, stream: AnswerStream, transformer: StreamFilter, *, worker: str, elsewhere: Callable[[], bool]
    ) -> Outcome:
        """Send the events held back, then those that follow, each once the client has taken the one before.

        ``elsewhere``: whether another worker than this one would take the rest of the answer now.
        """
        answer = Relaying(
            worker,
            stream.cut,
            lambda: self.resuming.survives and elsewhere(),
            pause=stream.pause,
            movable=lambda: self.resuming.movable and elsewhere(),
        )
        with self.stalled.relaying(answer):
            return await self._run(stream, transformer, answer)

    async def _run(self, stream: AnswerStream, transformer: StreamFilter, answer: Relaying) -> Outcome:
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
            if resuming.stopped or resuming.diverged:
                return Outcome.STOPPED if resuming.stopped else Outcome.LOST
            events = [] if ends is None else await self._left(ends, stream, answer)
            if answer.leaves and not events and stream.outcome is None and resuming.survives:
                return Outcome.MOVED
            if events := events or await stream.more():
                self.stalled.heard(answer)
        outcome = resuming.outcome(stream.outcome or Outcome.FINISHED)
        outcome = Outcome.ERROR_EVENT if failed and outcome is Outcome.FINISHED else outcome
        if outcome not in {Outcome.HANDED_BACK, Outcome.CUT_OFF, Outcome.ABORTED} and (data := transformer.end()):
            await self.reply.write(data)
        return outcome

    def _native_ends(self, stream: AnswerStream, transformer: StreamFilter, *, written: bool) -> _NativeEnds | None:
        """Both ends, where every stage lets native code pass on what comes now: from the stream's beginning, or once
        that is ``written``.
        """
        reply, response = self.reply, stream.response
        if not isinstance(response, NativeResponse) or not isinstance(reply, NativeReply) or response.ended:
            return None
        passes = min(self.turn.passes, self.resuming.passes(first=response.begins))
        if passes is Passes.NOTHING or not (response.begins or written):
            return None
        return _NativeEnds(response, reply, transformer.native, passes)

    async def _send(self, ends: _NativeEnds | None, stream: AnswerStream, data: bytes) -> None:
        """Send ``data``; native code does, and passes on what follows it, where there are ``ends``."""
        if ends is not None:
            self._relay(ends, stream, data)
        elif data:
            await self.reply.write(data)

    def _relay(self, ends: _NativeEnds, stream: AnswerStream, data: bytes) -> None:
        response, reply, through, passes = ends
        first = response.begins
        response.relay(
            *(reply.native, through, reply.take_head(), data, response.take() if first else stream.begun()),
            first=first,
            notes=passes is Passes.ORDINARY,
            kept=self.resuming.kept if passes is Passes.RECORDED else None,
            max_record_bytes=MAX_RECORD_BYTES,
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
        if self.resuming.replay is not None:
            self.resuming.trail(Trail(*relayed.trail))
        if relayed.whole:  # the client has all
            self.stalled.heard(answer)
        return stream.left(relayed.events, relayed.rest)
