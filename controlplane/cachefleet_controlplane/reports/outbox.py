"""What waits to be sent to one agent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cachefleet_core.reports import DownFrame, FrameError, encode


@dataclass(frozen=True, slots=True)
class Farewell:
    """The last thing to be said."""

    code: str
    reason: str


class Outbox:
    """A bounded queue of frames and at most one farewell; the Link that a fleet speaks through."""

    def __init__(self, frames: int) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(frames)
        self.farewell: asyncio.Future[Farewell] = asyncio.get_running_loop().create_future()

    def send(self, frame: DownFrame) -> None:
        try:
            self._queue.put_nowait(encode(frame))
        except asyncio.QueueFull:
            self.close("slow", "the agent does not read what it is sent")
        except FrameError as error:
            self.close("internal", str(error))

    def close(self, code: str, reason: str) -> None:
        if not self.farewell.done():
            self.farewell.set_result(Farewell(code, reason))

    async def take(self) -> bytes:
        return await self._queue.get()
