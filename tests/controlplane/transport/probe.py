"""An ASGI application that tells what it is asked, and notes, in order, what happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from cachefleet_controlplane.transport.native_exchange import reply_of
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import (
    DEPARTURE,
    ClientGoneError,
    Receive,
    Reply,
    Scope,
    Send,
    read_body,
    while_present,
)

PIECE = b"event\n" * 5000
SIZED = b"of this length"


class Probe:
    """Serves by path: see ``_paths``; ``noted`` has a line for each step of each request.

    A ``plain`` one answers by ASGI's messages, else by what the transport has for answers.
    """

    def __init__(
        self,
        *,
        limit: int = 1 << 20,
        body_seconds: float = 60,
        stall_seconds: float = 30,
        send_seconds: float = 30,
        plain: bool = False,
    ) -> None:
        self.limit = limit
        self.body_seconds = body_seconds
        self.stall_seconds = stall_seconds
        self.send_seconds = send_seconds
        self.plain = plain
        self.noted: list[str] = []
        self.scopes: list[Scope] = []
        self.release = asyncio.Event()
        self.under_way = 0
        self.short = False
        """``/sized`` sends its first piece alone."""
        self._paths: Mapping[str, Callable[[Scope, Receive, Reply], Any]] = {
            "/echo": self._echo,
            "/held": self._held,
            "/unread": self._unread,
            "/refused": self._refused,
            "/streamed": self._streamed,
            "/sized": self._sized,
            "/flood": self._flood,
            "/empty": self._empty,
            "/dropped": self._dropped,
            "/fails": self._fails,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as the gateway does: a client that leaves ends the work."""
        self.scopes.append(scope)
        if self.plain:
            reply = Reply(send, seconds=self.send_seconds, path=scope["path"])
        else:
            reply = reply_of(scope, send, seconds=self.send_seconds)
        serve = self._paths.get(scope["path"], self._told)
        self.under_way += 1
        try:
            if await while_present(_refusing(serve(scope, receive, reply), reply), receive, reply, scope[DEPARTURE]):
                self.noted.append(f"answered {scope['path']}")
            else:
                self.noted.append(f"left {scope['path']}")
        except ClientGoneError:
            self.noted.append(f"gone {scope['path']}")
        finally:
            self.under_way -= 1

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        seconds, stall = self.body_seconds, self.stall_seconds
        return await read_body(scope, receive, limit=self.limit, seconds=seconds, stall_seconds=stall)

    async def _told(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """What the request's head says, after its body is in."""
        body = await self._body(scope, receive)
        names = ("method", "path", "raw_path", "query_string", "http_version")
        told: dict[str, Any] = {name: _text(scope[name]) for name in names} | {"body": _text(body)}
        told["headers"] = [[_text(name), _text(value)] for name, value in scope["headers"]]
        await reply.whole(200, [(b"content-type", b"application/json")], msgspec.json.encode(told))

    async def _echo(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """The body itself."""
        self.noted.append("asked")
        body = await self._body(scope, receive)
        self.noted.append(f"read {len(body)}")
        await reply.whole(200, [(b"content-type", b"text/plain"), (b"x-first", b"1"), (b"x-second", b"2")], body)

    async def _held(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """As ``_echo``, once the test says so."""
        body = await self._body(scope, receive)
        self.noted.append(f"held {len(body)}")
        await self.release.wait()
        await reply.whole(200, [(b"content-type", b"text/plain")], body)

    async def _unread(self, _: Scope, __: Receive, reply: Reply) -> None:
        """Answers without a look at the body."""
        await reply.whole(200, [(b"content-type", b"text/plain")], b"unread")

    async def _refused(self, _: Scope, __: Receive, reply: Reply) -> None:
        """Answers without a look at the body, and ends the connection."""
        await reply.whole(413, [(b"content-type", b"text/plain"), (b"connection", b"close")], b"refused")

    async def _streamed(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Three pieces of unknown length, the second once the test says so."""
        await self._body(scope, receive)
        await reply.start(200, [(b"content-type", b"text/event-stream"), (b"x-first", b"1")])
        await reply.write(b"data: 1\n\n")
        await self.release.wait()
        await reply.write(b"data: 2\n\n")
        await reply.end(b"data: [DONE]\n\n")

    async def _sized(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Two pieces of the length that its head tells; has more to do once they are sent, until the test says so."""
        await self._body(scope, receive)
        await reply.start(200, [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(SIZED))])
        await reply.write(SIZED[:3])
        if not self.short:
            await reply.write(SIZED[3:])
        await self.release.wait()
        await reply.write(b"")
        await reply.end()

    async def _flood(self, _: Scope, __: Receive, reply: Reply) -> None:
        """Pieces without end."""
        await reply.start(200, [(b"content-type", b"text/event-stream")])
        while True:
            await reply.write(PIECE)
            self.noted.append("wrote")
            await asyncio.sleep(0)  # as an application whose pieces come from elsewhere

    async def _empty(self, _: Scope, __: Receive, reply: Reply) -> None:
        """Nothing."""
        await reply.start(204, [(b"x-first", b"1")])
        await reply.end()

    async def _dropped(self, _: Scope, receive: Receive, reply: Reply) -> None:
        """Reads a body and keeps nothing of it."""
        while (await receive()).get("more_body"):
            pass
        await reply.whole(200, [], b"")

    async def _fails(self, _: Scope, __: Receive, ___: Reply) -> None:
        raise ValueError("as the test wants it")


async def _refusing(work: Coroutine[Any, Any, None], reply: Reply) -> None:
    try:
        await work
    except ApiError as error:
        await reply.error(error)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
