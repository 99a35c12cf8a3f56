"""The latest requests of this replica, to simulate with: when, how long, which blocks, and what was served. In memory.

No prompt is kept, and nothing that names who asked: block keys are keyed hashes, and are never written anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

OVERHEAD: Final = 400
"""Bytes of one request besides its keys, about."""


class RecordedRequest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One answered request; times are in seconds."""

    at: float
    """When it came, in Unix time."""
    pool: str
    """As "namespace/name"."""
    keys: bytes
    """Packed block keys of its prompt, 8 bytes each."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_seconds: float | None = None
    queue_seconds: float = 0.0
    """How long it waited at the gateway, and the queue of its worker as the decision reckoned it."""


class RecordedRequests:
    """The latest requests in at most ``max_bytes``; 0 keeps none."""

    def __init__(self, max_bytes: int = 0) -> None:
        self._max_bytes = max_bytes
        self._requests: deque[RecordedRequest] = deque()
        self.bytes = 0

    @property
    def on(self) -> bool:
        """Whether any are kept."""
        return self._max_bytes > 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: RecordedRequest) -> None:
        """Keep a request, and drop the oldest beyond the bound."""
        self._requests.append(request)
        self.bytes += OVERHEAD + len(request.keys)
        while self.bytes > self._max_bytes:
            self.bytes -= OVERHEAD + len(self._requests.popleft().keys)

    def latest(self, pool: str, count: int) -> Sequence[RecordedRequest]:
        """The last ``count`` of a pool, as they ended."""
        found: list[RecordedRequest] = []
        for request in reversed(self._requests):
            if len(found) == count:
                break
            if request.pool == pool:
                found.append(request)
        return found[::-1]
