"""An HTTP/2 client for one connection, on the state machine of the library h2; what it reads of answers, tests say."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes

from tests.controlplane.transport.raw_client import PATIENCE_SECONDS
from tests.controlplane.transport.tls_side import NAME, Secured, trusting

_FRAME_HEAD: Final = 9

Fields = Sequence[tuple[str, str]]


@dataclass
class Exchange:
    """What has come of one request."""

    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None

    @property
    def status(self) -> int:
        return int(self.fields[":status"])


class Http2Client:
    """One connection; windows are opened as data comes, unless ``reads`` is False."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reads: bool = True) -> None:
        self._reader, self._writer, self._reads = reader, writer, reads
        self.state: Final = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.exchanges: defaultdict[int, Exchange] = defaultdict(Exchange)
        self.goaway: int | None = None
        self.closed = False
        self._news = asyncio.Event()

    @property
    def advertised(self) -> Any:
        """The server's settings."""
        return self.state.remote_settings

    async def begin(self, window: int | None = None) -> None:
        """Say hello; ``window`` is how much of each answer may come."""
        self.state.initiate_connection()
        if window is not None:
            self.state.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        await self.flush()

    async def flush(self) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(self.state.data_to_send())
            await self._writer.drain()

    async def ask(self, path: str, body: bytes = b"", *, fields: Fields = (), ends: bool = True) -> int:
        """Send a request; its number. Windows of the server are waited for."""
        number = self.state.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "https"), (":authority", NAME), (":path", path), *fields]
        self.state.send_headers(number, head, end_stream=ends and not body)
        self.exchanges[number] = Exchange()
        while body:
            room = min(self.state.local_flow_control_window(number), self.state.max_outbound_frame_size, len(body))
            if not room:
                await self.flush()
                await self.news()
                continue
            self.state.send_data(number, body[:room], end_stream=ends and room == len(body))
            body = body[room:]
        await self.flush()
        return number

    async def reset(self, number: int) -> None:
        self.state.reset_stream(number, error_code=8)
        await self.flush()

    async def answer(self, number: int) -> Exchange:
        """What comes of a request, once that is all."""
        await self.until(lambda: self.exchanges[number].over or self.closed)
        return self.exchanges[number]

    async def asked(self, path: str, body: bytes = b"", *, fields: Fields = ()) -> Exchange:
        return await self.answer(await self.ask(path, body, fields=fields))

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await self.news()

    async def news(self) -> None:
        self._news.clear()
        if not self.closed:
            await self._news.wait()

    async def listen(self) -> None:
        """Take what comes until the connection ends."""
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await self._reader.readexactly(_FRAME_HEAD)
                    frame = head + await self._reader.readexactly(int.from_bytes(head[:3]))
                    for event in self.state.receive_data(frame):
                        self._take(event)
                    await self.flush()
                    self._news.set()
        finally:
            self.closed = True
            self._news.set()

    def _take(self, event: Event) -> None:
        match event:
            case ConnectionTerminated():
                self.goaway = int(event.error_code or 0)
                # h2 would take nothing more, but answers under way end first.
                self.state.state_machine.state = ConnectionState.CLIENT_OPEN
            case ResponseReceived():
                self.exchanges[event.stream_id].fields = {str(name): str(value) for name, value in event.headers}
            case StreamEnded():
                self.exchanges[event.stream_id].ended = True
            case StreamReset():
                self.exchanges[event.stream_id].reset = int(event.error_code)
            case DataReceived():
                self.exchanges[event.stream_id].body += event.data
                if self._reads:
                    self.state.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def pause(self) -> None:
        """Read nothing more."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined] # it is one that reads, too

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def http2(side: Secured, *, window: int | None = None, reads: bool = True) -> AsyncIterator[Http2Client]:
    """A connection that has begun."""
    reader, writer = await side.streams(trusting("h2", "http/1.1"))
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    client = Http2Client(reader, writer, reads=reads)
    await client.begin(window)
    listening = asyncio.create_task(client.listen())
    try:
        yield client
    finally:
        client.close()
        await listening
