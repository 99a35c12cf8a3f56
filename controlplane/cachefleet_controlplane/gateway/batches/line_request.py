"""One line of a batch, as the request that it stands for: the gateway answers it as its tenant's, in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec import Struct

from cachefleet_controlplane.gateway.admit.tenant_admission import AdmittedRequest
from cachefleet_controlplane.wire.errors import error_of
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.http_exchange import DEPARTURE, JSON, Departure, Message, Receive, Scope, Send
from cachefleet_core.fleet_status.tenant_limits import BUDGET

Enter = Callable[[], AdmittedRequest]
"""Admits a request of a batch's tenant. ApiError."""
Serve = Callable[[Scope, Receive, Send, Enter], Awaitable[None]]
"""The gateway, for a request that it makes itself."""

SPARE_ONLY: Final[Header] = (b"prefer", b"wait=0")
"""It does not wait in the queue: there is spare room, or there is none."""
OVER_LIMIT: Final = 429
AGAIN: Final = frozenset({408, OVER_LIMIT, 503})
"""Statuses after which a line is asked again, for as long as its window lasts."""
MAX_RETRY_SECONDS: Final = 300.0
"""Longest wait before that: limits may be raised meanwhile."""


class LineAnswer(Struct, frozen=True):
    """What a line was answered."""

    status: int
    request_id: str
    retry_seconds: float | None
    """What it says of when to ask again."""
    body: bytes

    @property
    def again(self) -> bool:
        """Whether it is to be asked again: nobody has refused what it asks."""
        return self.status in AGAIN

    @property
    def spent_seconds(self) -> float:
        """For how long a budget by the calendar is spent that this line was held to; 0 where none is."""
        spent = self.status == OVER_LIMIT and error_of(self.status, self.body).code in BUDGET
        return (self.retry_seconds or 0.0) if spent else 0.0


class _Answer:
    """Takes an answer as ASGI's messages."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message.get("body", b"")

    def whole(self) -> LineAnswer:
        asked = self.headers.get(b"retry-after", b"").decode("latin-1")
        seconds = float(asked) if asked.isascii() and asked.isdigit() else None
        return LineAnswer(self.status, self.headers.get(b"x-request-id", b"").decode(), seconds, bytes(self.body))


async def answer_line(serve: Serve, enter: Enter, *, url: str, body: bytes) -> LineAnswer:
    """Have the gateway answer a line's request; cancelled with its task."""
    answer, given = _Answer(), [body]

    async def receive() -> Message:
        return {"type": "http.request", "body": given.pop(), "more_body": False}

    await serve(_scope(url, len(body)), receive, answer.send, enter)
    return answer.whole()


def _scope(url: str, size: int) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": url,
        "query_string": b"",
        "headers": [JSON, (b"content-length", b"%d" % size), SPARE_ONLY],
        DEPARTURE: Departure(),  # nobody leaves
    }
