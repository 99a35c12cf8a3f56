"""Relays one worker's stream to the client: native code passes its ordinary events on, where both ends are native."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cachefleet_controlplane.gateway.apis.api import StreamTransformer
from cachefleet_controlplane.gateway.attempts.resume import Resumption
from cachefleet_controlplane.gateway.attempts.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.conversations.turn import PlainTurn, Turn
from cachefleet_controlplane.gateway.upstream.answer import StreamFilter
from cachefleet_controlplane.gateway.upstream.native_sender import NativeResponse
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.gateway.upstream.worker_answer import Stream
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
            if data := b"".join(map(transformer.feed, await self.turn.passed(resuming.relayed(events)))):
                await self.reply.write(data)
                written = True
            stream.first, events, data = [], [], b""  # not kept while others come
            if resuming.stopped:
                return Outcome.FINISHED
            if events := await self._next(stream, transformer if written else None, worker):
                self.stalled.heard(worker)
        outcome = resuming.outcome(stream.outcome or Outcome.FINISHED)
        if outcome not in {Outcome.HANDED_BACK, Outcome.CUT_OFF} and (data := transformer.end()):
            await self.reply.write(data)
        return outcome

    async def _next(self, stream: Stream, transformer: StreamTransformer | None, worker: str) -> list[bytes]:
        """The next events that native code does not pass on; none at the end. It needs an answer that has begun."""
        response = stream.response
        if (
            isinstance(response, NativeResponse)
            and isinstance(transformer, StreamFilter)
            and not response.ended
            and transformer.passes
            and self._passes
        ):
            with self.stalled.listening(worker, response.silent_seconds):
                events = await stream.left_by(partial(self._pass, response, transformer))
            if events:
                return events
        return await stream.more()

    @property
    def _passes(self) -> bool:
        return self.reply.native is not None and isinstance(self.turn, PlainTurn) and self.resuming.passes

    async def _pass(
        self, response: NativeResponse, transformer: StreamFilter, begun: bytes
    ) -> tuple[list[bytes], bytes]:
        relayed = await response.relay(
            self.reply.native,
            begun,
            strip_ids=transformer.strips_ids,
            strip_usage=transformer.strips_usage,
            notes=self.resuming.resumable,
            single=transformer.single,
            send_seconds=self.reply.seconds,
        )
        if relayed.gone:
            raise ClientGoneError
        self.resuming.add(relayed.ids, relayed.text, relayed.finish)
        if relayed.usage:
            transformer.feed(relayed.usage)  # learns from it; the client has all
        return relayed.events, relayed.rest
