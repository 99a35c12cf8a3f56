"""Has another worker make a recorded stream again, and leaves out of it what the client has.

A worker's record comes in its stream, as comments. The next worker gets the same request with the record behind it, and
its stream is that of the first, from the beginning, byte for byte: as many events as the client has are dropped, and
their digest says whether they were the same.
"""

from __future__ import annotations

from typing import Final

import cachefleet_native
import msgspec
from cachefleet_native import KeptBytes
from msgspec import Struct

from cachefleet_controlplane.gateway.request.replay_eligibility import Unresumed
from cachefleet_controlplane.gateway.send.answers.produced_tokens import aborts
from cachefleet_controlplane.gateway.send.worker_call import Trail
from cachefleet_core.engine.answer_replay import HEADER, ReplayAsk, part_of
from cachefleet_runtime.sse import is_end

MAX_RECORD_BYTES: Final = 4 * 1024 * 1024
"""Of one stream's record that are kept, here and by native code: some hundred thousand tokens."""
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""Of one request's body that are kept while its stream lasts."""
MAX_KEPT_BYTES: Final = 512 * 1024 * 1024
"""Of all bodies and records that are kept for streams that last."""
_DIGESTS: Final = 2**64
_OFF: Final = b'"off"'


class _Refusal(Struct, frozen=True):
    off: str = ""


_refusal = msgspec.json.Decoder(_Refusal)


class StreamReplay:
    """Follows one recorded stream from worker to worker; fed each worker's events, with ``again`` between them."""

    def __init__(self, ask: ReplayAsk, kept: KeptBytes) -> None:
        self._ask = ask
        self._kept = kept
        self._kept_bytes = 0
        """Of them, those of the body."""
        self._lines = bytearray()
        self._count = 0
        """Parts of the record that are known; a later worker tells them again."""
        self._at = 0
        """Parts that the present worker has told."""
        self._events = 0
        """Events that the client has, and their digest."""
        self._digest = 0
        self._dropped = 0
        """Events of the present worker that the client has; their digest."""
        self._dropped_digest = 0
        self._again = False
        self._why = ""
        self.lost = False
        """What comes is no stream that the client has the beginning of."""
        self.aborted = False
        """The present worker's engine gave the answer up."""
        self.ended = False
        """The client has the stream's last event."""

    @property
    def why(self) -> str:
        """Why nobody can go on; "" where somebody can."""
        return self._why or ("" if self._count else Unresumed.NOT_RECORDED)

    @property
    def movable(self) -> bool:
        """Another worker may be able to make it: native code that relays it has not told yet what is recorded."""
        return not self._why and not self.ended

    @property
    def survives(self) -> bool:
        """Another worker can make the stream again."""
        return not self.why and not self.ended

    @property
    def steady(self) -> bool:
        """All that comes is new to the client, and is to be noted alone."""
        return not self.dropping and self._at >= self._count and not self.aborted

    @property
    def kept(self) -> KeptBytes:
        """What counts the bytes that are kept of all streams."""
        return self._kept

    @property
    def parts(self) -> int:
        """Parts of the record: about as many as tokens that were produced."""
        return self._count

    @property
    def record(self) -> bytes:
        """What goes behind the body; b"" while no worker has recorded anything."""
        return bytes(self._lines) if self._again else b""

    @property
    def header(self) -> tuple[str, str]:
        """What asks the next worker for a record, and tells it where one begins."""
        ask = self._ask
        return HEADER, ReplayAsk(ask.name, ask.seconds, len(self._lines) if self._again else 0).header

    @property
    def dropping(self) -> bool:
        """What comes is what the client has."""
        return self._dropped < self._events and self._again

    def keep(self, body: bytes) -> bytes:
        """Return what is kept of the body while the stream lasts: all, or nothing where there is no room."""
        if len(body) > MAX_BODY_BYTES:
            self._why = Unresumed.TOO_LONG
        elif not self._kept.take(len(body)):
            self._why = Unresumed.NO_ROOM
        else:
            self._kept_bytes += len(body)
            return body
        return b""

    def close(self) -> None:
        """Keep nothing any more."""
        self._kept.give_back(self._kept_bytes)
        self._kept_bytes = 0
        self._forget()

    def again(self) -> None:
        """Another worker makes the stream, from its beginning."""
        self._again, self.aborted = True, False
        self._at = self._dropped = self._dropped_digest = 0

    def feed(self, event: bytes) -> list[bytes]:
        """Return the events to relay for one event of the present worker."""
        if line := part_of(event):
            self._note(line)
            return []
        if self.lost:
            return []
        if self.aborted or aborts(event):
            self.aborted = True
            return []
        if self.dropping:
            self._drop(event)
            return []
        self._passed(1, cachefleet_native.event_digest(event))
        self.ended = self.ended or is_end(event)
        return [event]

    def trail(self, trail: Trail) -> None:
        """Note what others have relayed, and the parts of the record that came with it."""
        self._why = self._why or trail.unkept
        if self.steady and _OFF not in trail.record:
            self._keep(trail.record, trail.record.count(b"\n"))
        else:
            for line in trail.record.splitlines():
                self._note(line)
        self._passed(trail.events, trail.digest)

    def _passed(self, events: int, digest: int) -> None:
        self._events += events
        self._digest = (self._digest + digest) % _DIGESTS
        if self._again:
            self._dropped = self._events

    def _drop(self, event: bytes) -> None:
        self._dropped += 1
        self._dropped_digest = (self._dropped_digest + cachefleet_native.event_digest(event)) % _DIGESTS
        whole = not self.dropping
        if is_end(event) or (whole and self._dropped_digest != self._digest):
            self._lose(Unresumed.DIVERGED)

    def _lose(self, why: str) -> None:
        self.lost = True
        self._why = self._why or why

    def _note(self, line: bytes) -> None:
        if _OFF in line and (off := _off(line)):
            self._why = self._why or off
            self.lost = self.dropping
        if self._at < self._count:
            self._at += 1
        else:
            self._keep(line + b"\n", 1)

    def _keep(self, lines: bytes, parts: int) -> None:
        """Put parts behind the record, where nothing says yet that nobody can go on, and there is room for them."""
        self._at += parts
        if not self._why and len(self._lines) + len(lines) > MAX_RECORD_BYTES:
            self._why = Unresumed.TOO_LONG
        elif not self._why and not self._kept.take(len(lines)):
            self._why = Unresumed.NO_ROOM
        if self._why:
            self._forget()
            return
        self._lines += lines
        self._count += parts

    def _forget(self) -> None:
        """Keep no record any more."""
        self._kept.give_back(len(self._lines))
        self._lines.clear()


def _off(line: bytes) -> str:
    """Why a worker records nothing, by its own word; "" where it does."""
    try:
        return _refusal.decode(line).off
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
