"""One request to workers that keep conversations: by handle where a worker keeps its beginning, else whole.

The worker puts the whole together again and renders it anew, so a handle saves bytes and their parsing and changes no
prompt. A handle that a worker does not continue costs one more trip: the whole body follows in the same attempt.
"""

from __future__ import annotations

from collections.abc import Callable

from cachefleet_controlplane.gateway.handles.conversation_items import Items
from cachefleet_controlplane.gateway.handles.handle_memory import HandleMemory, HandleMetrics, HeldPrefix
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome, Send, keep_header, kept_prefix, refusal_code
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.wire.json_members import edited
from cachefleet_core.continuation import Fingerprints, KeptPrefix

Continued = Callable[[KeptPrefix, bytes], None]


class Continuing:
    """Which handles one request may use, and what its workers keep of it."""

    only = False

    def __init__(
        self,
        memory: HandleMemory,
        items: Items,
        fingerprints: Fingerprints,
        *,
        keepers: frozenset[str],
        metrics: HandleMetrics,
        on_continued: Continued,
    ) -> None:
        """``keepers`` are the URLs of workers that keep conversations.

        ``on_continued`` is called once, when a worker has rendered a prompt by a handle of an earlier request, with
        what it keeps of it and the whole body.
        """
        self._memory = memory
        self._items = items
        self._fingerprints = fingerprints
        self._keepers = keepers
        self._metrics = metrics
        self._on_continued = on_continued
        self._differs = False
        self._held = self._remembered()
        self._earlier = dict(self._held)
        self._known = bool(self._held)
        """A handle of an earlier request could serve."""
        self._continued: set[str] = set()
        self._unchecked = b""

    @property
    def first(self) -> str:
        """URL of the worker that keeps most of the conversation; "" where none does."""
        return next(iter(self._held), "")

    def headers(self, url: str) -> list[tuple[str, str]]:
        """Return the header that has a worker keep the request; none where it cannot."""
        return [keep_header(self._fingerprints)] if url in self._keepers else []

    async def send(self, url: str, body: bytes, send: Send) -> AttemptResult:
        """Send a request to a worker: by handle where that is shorter; whole else, and where the worker refuses it."""
        found = self._held.get(url) if url in self._keepers else None
        if found is None:
            return self._learnt(url, await send(body))
        count, held = found
        short, _ = edited(body, self._items.after(count, held.kept.ref(self._fingerprints)))
        if len(short) >= len(body):  # a short conversation is shorter than a reference
            self._known = False
            return self._learnt(url, await send(body))
        opened = await send(short)
        if code := refusal_code(opened.answer):
            self._lost(url, count, held, code)
            return self._learnt(url, await send(body))
        self._metrics.spared(len(body) - len(short))
        if opened.succeeded and self._earlier.get(url) == found:
            self._note(url, opened.kept, body)
        return self._learnt(url, opened)

    def answered(self, url: str, opened: AttemptResult) -> AttemptResult:
        """Learn what the worker keeps, now that it has answered."""
        if url in self._continued and self._unchecked:
            self._check(opened.kept, self._unchecked)
        return self._learnt(url, opened)

    def rendered(self, tokens: int) -> None:
        """Any worker can be sent the whole."""

    async def whole(self, body: bytes) -> bytes:
        """Return the body, which is whole."""
        return body

    def _outcome(self, url: str) -> HandleOutcome | None:
        """Return what became of earlier requests' handles in the worker that served the request; None without any."""
        if url in self._continued:
            return HandleOutcome.HIT
        if self._known:
            return HandleOutcome.MISS
        return HandleOutcome.FINGERPRINT_MISMATCH if self._differs else None

    def ended(self, url: str) -> HandleOutcome | None:
        """Count and return the outcome; to be called once, at the request's end."""
        outcome = self._outcome(url)
        if outcome is not None:
            self._metrics.request(outcome)
        return outcome

    def _remembered(self) -> dict[str, tuple[int, HeldPrefix]]:
        """The longest beginning that each worker keeps, the longest of all first."""
        found: dict[str, tuple[int, HeldPrefix]] = {}
        for count, digest in self._items.beginnings():
            for held in self._memory.at(digest):
                if held.url not in self._keepers or held.url in found:
                    continue
                if held.fingerprints == self._fingerprints:
                    found[held.url] = count, held
                else:
                    self._differs = True
        return found

    def _note(self, url: str, told: str, body: bytes) -> None:
        first = not self._continued
        self._continued.add(url)
        if first:
            self._check(told, body)

    def _check(self, told: str, body: bytes) -> None:
        """Tell of the first request by handle, once its worker has said what it has rendered."""
        kept = kept_prefix(told)
        self._unchecked = b"" if kept else body
        if kept is not None:
            self._on_continued(kept, body)

    def _lost(self, url: str, count: int, held: HeldPrefix, code: str) -> None:
        self._memory.drop(self._items.digests[count], held)
        self._metrics.refused(code)
        del self._held[url]
        self._earlier.pop(url, None)

    def _learnt(self, url: str, opened: AttemptResult) -> AttemptResult:
        """Note what a worker keeps of the whole conversation."""
        kept = kept_prefix(opened.kept) if url in self._keepers else None
        if kept is not None:
            held = HeldPrefix(url, kept, self._fingerprints)
            self._memory.add(self._items.whole, held)
            self._memory.place(kept.handle, url)
            self._held[url] = len(self._items.items), held
        return opened
