"""One request with a conversation and its answer: what is kept of them, and the header that says so."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cachefleet_core.continuation import CONVERSATION_HEADER, PromptCacheRef, prefix_hash
from cachefleet_worker.plugin.asgi import Headers, Send
from cachefleet_worker.plugin.conversations.conversation_body import Joined, followed, kept
from cachefleet_worker.plugin.conversations.turn import Turn
from cachefleet_worker.plugin.conversations.turn_store import Outcome, TurnStore
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.prompts.recorded_prompt import Recording

log = logging.getLogger("vllm.cachefleet")

FEATURE: Final = "conversations"
HEADER: Final = CONVERSATION_HEADER.encode()


class Exchange:
    """What is kept of one request that became whole, and of its answer."""

    def __init__(self, joined: Joined, record: Recording, store: TurnStore, faults: Faults) -> None:
        self._joined = joined
        self._record = record
        self._store = store
        self._faults = faults
        self._turn: Turn | None = None
        self._tried = False

    def headers(self) -> Headers:
        """The header that says what is kept of the request, now that it is rendered; none where nothing is."""
        turn = self._kept()
        return ((HEADER, msgspec.json.encode(turn.kept)),) if turn is not None else ()

    def reference(self, answer: array[int]) -> PromptCacheRef | None:
        """The reference to prompt and answer, which are kept together; None where they are not."""
        turn, both = self._kept(), None
        with self._faults.guard(FEATURE):
            both = self._store.keep(followed(turn, answer)) if turn is not None and answer else turn
        return None if both is None else both.kept.ref(both.common.fingerprints)

    def _kept(self) -> Turn | None:
        """The request's turn, kept when it is first asked for."""
        if not self._tried and self._faults.on(FEATURE):
            self._tried = True
            with self._faults.guard(FEATURE):
                self._turn = self._keep()
        return self._turn

    def _keep(self) -> Turn | None:
        ids = self._record.only
        turn = kept(self._joined, ids, prefix_hash(ids)) if ids else None
        if turn is None:
            self._store.count(Outcome.NOT_KEPT)
        elif not turn.handle:
            turn = self._store.keep(turn)
        if turn is None:
            log.debug("prefix cache: snapshot failed; not cached")
        return turn


class KeepingAnswer:
    """Passes an answer on; one of status 200 begins with further headers."""

    def __init__(self, send: Send, headers: Callable[[], Headers]) -> None:
        self._send = send
        self._headers = headers

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            message = {**message, "headers": [*message.get("headers", ()), *self._headers()]}
        await self._send(message)
