"""Relays one worker's stream to the client: native code passes its ordinary events on, where both ends are native."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_controlplane.gateway.apis.api import StreamTransformer
from cachefleet_controlplane.gateway.attempts.resume import Resumption
from cachefleet_controlplane.gateway.attempts.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.conversations.turn import PlainTurn, Turn
from cachefleet_controlplane.gateway.upstream.answer import StreamFilter
from cachefleet_controlplane.gateway.upstream.native_sender import NativeResponse, Relayed
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.produced_tokens import Name
from cachefleet_controlplane.gateway.upstream.worker_answer import Stream
from cachefleet_controlplane.transport.native_exchange import NativeReply
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Reply


@dataclass(slots=True)
class StreamRelay:
    """The relay of one request's streams."""

    reply: Reply
    turn: Turn
    resuming: Resumption
    stalled: StalledAttempts

    async def run(self, stream: Stream, transformer: StreamTransformer, *, worker: str) -> Outcome:
        """Send the events held back, then those that follow, each once the client has taken the one before."""
        resuming, events, written = self.resuming, stream.first, False
        if isinstance(stream.response, NativeResponse):
            stream.response.begin()
        while events or stream.outcome is None:
            if resuming.breaks(events):
                return Outcome.CUT_OFF
            data = b"".join(map(transformer.feed, await self.turn.passed(resuming.relayed(events))))
            written = written or bool(data)
            relaying = self._relays(stream, transformer, data, written=written)
            if data and not relaying:
                await self.reply.write(data)
            written = written or relaying
            stream.first, events, data = [], [], b""  # not kept while others come
            if resuming.stopped:
                return Outcome.FINISHED
            if events := await self._next(stream, transformer, worker, relaying=relaying):
                self.stalled.heard(worker)
        outcome = resuming.outcome(stream.outcome or Outcome.FINISHED)
        if outcome not in {Outcome.HANDED_BACK, Outcome.CUT_OFF} and (data := transformer.end()):
            await self.reply.write(data)
        return outcome

    def _relays(self, stream: Stream, transformer: StreamTransformer, data: bytes, *, written: bool) -> bool:
        """Whether native code sends ``data``, and passes on what follows it, from now on: from the stream's beginning,
        or once that is ``written``.
        """
        reply, response, resuming = self.reply, stream.response, self.resuming
        if not (
            isinstance(response, NativeResponse)
            and isinstance(reply, NativeReply)
            and isinstance(transformer, StreamFilter)
            and isinstance(self.turn, PlainTurn)
            and not response.ended
        ):
            return False
        first = response.begins
        if not (resuming.fresh if first else written and transformer.passes and resuming.passes):
            return False
        if first:
            transformer.begin()
        response.relay(
            *(reply.native, reply.take_head(), data, response.take() if first else stream.begun()),
            first=first,
            strip_ids=transformer.strips_ids,
            strip_usage=transformer.strips_usage,
            notes=resuming.resumable,
            single=transformer.single,
            send_seconds=reply.seconds,
        )
        return True

    async def _next(
        self, stream: Stream, transformer: StreamTransformer, worker: str, *, relaying: bool
    ) -> list[bytes]:
        """The next events that native code does not pass on; none at the end."""
        response = stream.response
        if relaying and isinstance(response, NativeResponse):
            with self.stalled.listening(worker, response.silent_seconds):
                relayed = await response.relayed()
            if relayed.usage:
                self.stalled.heard(worker)  # its answer is whole
            if events := self._left(stream, transformer, relayed):
                return events
        return await stream.more()

    def _left(self, stream: Stream, transformer: StreamTransformer, relayed: Relayed) -> list[bytes]:
        if relayed.gone:
            raise ClientGoneError
        if relayed.beginning is not None:
            name, kind, created, model, prompt = relayed.beginning
            self.resuming.begin(Name(name, kind, created, model), prompt)
        self.resuming.add(relayed.ids, relayed.text, relayed.finish)
        if relayed.usage:
            transformer.feed(relayed.usage)  # learns from it; the client has all
        return stream.left(relayed.events, relayed.rest)
