"""Plays Envoy before a picker: a request over ``ext_proc``, what the picker makes of it, and its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from google.protobuf.json_format import MessageToDict, ParseDict

from cachefleet_controlplane.transport.native_server import PickerServer, ServerBounds
from cachefleet_controlplane.transport.served_tls import ServedTls
from tests.controlplane.gateway.harness import Front

DUPLEX = ProcessingMode.FULL_DUPLEX_STREAMED
BUFFERED = ProcessingMode.BUFFERED
ENDPOINT = "x-gateway-destination-endpoint"
CHATS = "/v1/chat/completions"


@dataclass
class Picked:
    """What a picker says of a request; ``status`` is 0 where it goes to an endpoint."""

    endpoints: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    body: bytes = b""
    pieces: int = 0
    clears_route_cache: bool = False
    status: int = 0
    order: list[str] = field(default_factory=list)

    def members(self) -> Any:
        return json.loads(self.body)


class Asking:
    """One request on a stream of its own."""

    def __init__(self, call: Any, mode: int, answer_mode: int) -> None:
        self._call = call
        self._reading: asyncio.Future[Any] | None = None
        self._bare = False
        self.mode, self.answer_mode = mode, answer_mode

    async def head(
        self,
        path: str = CHATS,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        metadata: Mapping[str, Any] | None = None,
        last: bool = False,
    ) -> None:
        given = list(headers.items() if isinstance(headers, Mapping) else headers)
        named = [(":method", method), (":path", path), (":authority", "models"), (":scheme", "http"), *given]
        told = messages.HttpHeaders(headers=_headers(named), end_of_stream=last)
        config = messages.ProtocolConfiguration(request_body_mode=self.mode, response_body_mode=self.answer_mode)
        request = messages.ProcessingRequest(request_headers=told, protocol_config=config)
        if metadata is not None:
            ParseDict({"filterMetadata": metadata}, request.metadata_context)
        await self._call.write(request)

    async def body(self, *pieces: bytes, end: bool = True) -> None:
        for place, piece in enumerate(pieces):
            last = end and place + 1 == len(pieces)
            told = messages.HttpBody(body=piece, end_of_stream=last)
            await self._call.write(messages.ProcessingRequest(request_body=told))

    async def trailers(self) -> None:
        """The last of a request."""
        await self._call.write(messages.ProcessingRequest(request_trailers=messages.HttpTrailers()))

    async def is_body_wanted(self) -> bool:
        """Whether the picker asks for a body that comes whole; else what it says is read next."""
        message = await self.read()
        assert message is not None, "the picker has ended the stream"
        wanted: bool = message.WhichOneof("response") == "request_headers"
        if not wanted:
            self._reading = asyncio.get_running_loop().create_future()
            self._reading.set_result(message)
        return wanted

    async def read(self) -> Any:
        """The next message of the picker; None where it has ended the stream."""
        reading, self._reading = self._reading or asyncio.ensure_future(self._call.read()), None
        message = await asyncio.wait_for(reading, 20)
        return None if message is grpc.aio.EOF else message

    async def is_silent(self, seconds: float = 0.1) -> bool:
        """Whether the picker says nothing for a while."""
        self._reading = self._reading or asyncio.ensure_future(self._call.read())
        return not (await asyncio.wait({self._reading}, timeout=seconds))[0]

    async def picked(self) -> Picked:
        """Read until the request is decided on."""
        picked = Picked()
        while True:
            message = await self.read()
            assert message is not None, "the picker has ended the stream"
            kind = message.WhichOneof("response")
            picked.order.append(kind)
            if kind == "immediate_response":
                told = message.immediate_response
                picked.status, picked.body = told.status.code, told.body
                picked.headers = _set(told.headers)
                return picked
            common = getattr(message, kind).response
            if message.HasField("dynamic_metadata"):
                picked.metadata = MessageToDict(message.dynamic_metadata)
            picked.clears_route_cache |= common.clear_route_cache
            picked.headers |= _set(common.header_mutation)
            picked.removed += common.header_mutation.remove_headers
            picked.endpoints = picked.headers.get(ENDPOINT, "").split(",")
            if kind == "request_headers" and self.mode == BUFFERED and ENDPOINT not in picked.headers:
                continue  # the body comes next, or has come unasked
            if kind == "request_headers" and picked.metadata and self._bare:
                return picked
            if kind == "request_body":
                mutation = common.body_mutation
                piece = mutation.streamed_response if mutation.HasField("streamed_response") else None
                picked.body += mutation.body if piece is None else piece.body
                picked.pieces += 1
                if piece is None or piece.end_of_stream:
                    return picked

    async def answered(
        self,
        *pieces: bytes,
        status: int = 200,
        content_type: str = "application/json",
        served: str | None = None,
        trailers: bool = False,
    ) -> tuple[bytes, dict[str, str]]:
        """Tell the picker of a whole answer; what the client gets of its body, and headers that are added."""
        headers = await self.begun(status=status, content_type=content_type, served=served, last=not pieces)
        got: bytes = b""
        for place, piece in enumerate(pieces):
            last = place + 1 == len(pieces)
            got += await self.piece(piece, last=last and not trailers)
        if trailers:
            await self._call.write(messages.ProcessingRequest(response_trailers=messages.HttpTrailers()))
            assert (await self.read()).WhichOneof("response") == "response_trailers"
        await self._call.done_writing()
        assert await self.read() is None
        return got, headers

    async def begun(
        self,
        *,
        status: int = 200,
        content_type: str = "application/json",
        served: str | None = None,
        last: bool = False,
    ) -> dict[str, str]:
        named = [(":status", str(status)), ("content-type", content_type)]
        told = messages.HttpHeaders(headers=_headers(named), end_of_stream=last)
        request = messages.ProcessingRequest(response_headers=told)
        if served is not None:
            ParseDict({"filterMetadata": {"envoy.lb": {ENDPOINT + "-served": served}}}, request.metadata_context)
        await self._call.write(request)
        message = await self.read()
        assert message.WhichOneof("response") == "response_headers"
        return _set(message.response_headers.response.header_mutation)

    async def piece(self, piece: bytes, *, last: bool = False) -> bytes:
        told = messages.HttpBody(body=piece, end_of_stream=last)
        await self._call.write(messages.ProcessingRequest(response_body=told))
        got = b""
        while True:
            message = await self.read()
            assert message.WhichOneof("response") == "response_body"
            mutation = message.response_body.response.body_mutation
            kind = mutation.WhichOneof("mutation")
            if kind == "streamed_response":
                got += mutation.streamed_response.body
                if len(mutation.streamed_response.body) == 62_000 and not mutation.streamed_response.end_of_stream:
                    continue
                assert mutation.streamed_response.end_of_stream == last
                return bytes(got)
            return piece if kind is None else bytes(mutation.body)

    async def done(self) -> None:
        """Nothing more comes."""
        await self._call.done_writing()

    def leave(self) -> None:
        """The client is gone, or the worker: Envoy ends the stream."""
        self._call.cancel()


@dataclass
class EnvoyStub:
    """Plays the Envoy of a picker."""

    server: PickerServer
    channel: grpc.aio.Channel
    address: str

    def asking(self, mode: int = DUPLEX, answer_mode: int | None = None) -> Asking:
        call = ExternalProcessorStub(self.channel).Process()
        return Asking(call, mode, mode if answer_mode is None else answer_mode)

    async def ask(self, body: Any, path: str = CHATS, *, mode: int = DUPLEX, **head: Any) -> tuple[Asking, Picked]:
        """Ask with a whole body, as Envoy 1.40 sends it: one message and an empty one, or one when that is wanted."""
        asking = self.asking(mode)
        await asking.head(path, **head)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if mode == DUPLEX:
            await asking.body(data, b"")
        elif await asking.is_body_wanted():
            await asking.body(data)
        return asking, await asking.picked()

    async def get(self, path: str, **head: Any) -> Picked:
        asking = self.asking()
        asking._bare = True
        await asking.head(path, method="GET", last=True, **head)
        return await asking.picked()


@asynccontextmanager
async def picker(
    made: Front,
    *,
    head_seconds: float = 10,
    body_bytes: int = 1 << 20,
    buffer_bytes: int = 256 << 20,
    tls: ServedTls | None = None,
) -> AsyncIterator[EnvoyStub]:
    """A picker beside a gateway, and an Envoy before it."""
    assert made.server is not None
    server = PickerServer(
        made.gateway,
        made.server._completions,
        host="127.0.0.1",
        port=0,
        bounds=ServerBounds(head_seconds=head_seconds, drain_seconds=5, tls=tls),
        body_bytes=body_bytes,
        buffer_bytes=buffer_bytes,
    )
    serving = asyncio.create_task(server.serve())
    address = f"127.0.0.1:{await server.listening()}"
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield EnvoyStub(server, channel, address)
    finally:
        server.stop()
        await serving


def _headers(named: Sequence[tuple[str, str]]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=name, raw_value=value.encode()) for name, value in named])


def _set(mutation: Any) -> dict[str, str]:
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}


def hint(value: Any) -> dict[str, Any]:
    """Metadata that names the endpoints to choose among."""
    return {"envoy.lb.subset_hint": {ENDPOINT + "-subset": value}}
