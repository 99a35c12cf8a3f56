"""A stream without what only the gateway asked for, what is counted of it, and which events native code may relay."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import cachefleet_native

from cachefleet_controlplane.gateway.send.answers.answer import restated_event
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.wire.json_members import encode


class Passes(IntEnum):
    """Events that a stage need not read; the least of all stages' is what native code relays."""

    NOTHING = 0
    """The stage reads or edits every event."""
    ORDINARY = 1
    """Events with text and token ids alone, which are noted for it, and the ordinary end of a stream."""
    RECORDED = 2
    """As MOST, but for the parts of the stream's record, which are noted for it with what is relayed."""
    MOST = 3
    """All but errors, and an answer that its engine gives up."""


class StreamFilter:
    """Turns one stream of a worker into the client's; ``native`` is fed whole events in order, by ``feed`` or by native
    code that relays them. Of an endpoint (a path) other than chats and completions all passes unchanged but errors.

    ``fingerprint`` is the worker's last system fingerprint, as JSON (b"" where it has none); while it is None, not
    known, the last event of a choice waits for it. With a single choice it always waits: usage follows at once.
    ``echoes``: so many choices begin with their prompt, which may be among the ids.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        strip_usage: bool,
        strip_ids: bool,
        single: bool,
        fingerprint: bytes | None = None,
        echoes: int = 0,
    ) -> None:
        self._endpoint = endpoint
        self.native: Final = cachefleet_native.StreamFilter(
            endpoint,
            strip_usage=strip_usage,
            strip_ids=strip_ids,
            single=single,
            fingerprint=fingerprint,
            echoes=echoes,
        )

    @property
    def usage(self) -> Usage | None:
        """The usage that came at the stream's end; None before it, and where it is none."""
        counts = self.native.usage
        return None if counts is None else Usage(*counts)

    @property
    def sequence(self) -> int:
        """Number of the next event."""
        return self.native.sequence

    @property
    def fingerprint(self) -> bytes | None:
        """The worker's system fingerprint, as JSON; None where it is not known."""
        return self.native.fingerprint

    def omit_zeros(self, *, omit: bool) -> None:
        """Set whether counts of cached tokens that are 0 are left out."""
        self.native.omit_zeros(omit)

    def name_model(self, name: str) -> None:
        """Have the model bear the name by which the client asked for it."""
        self.native.name_model(encode(name))

    def feed(self, event: bytes) -> bytes:
        """Return the bytes to send to the client now; an error gets the shape of the API."""
        return self.native.feed(restated_event(self._endpoint, event, sequence=self.native.sequence))

    def end(self) -> bytes:
        """Return what is still held back, unchanged; for a stream that ends without usage."""
        return self.native.end()

    def so_far(self, *, prompts: int, choices: int, known_prompt: int) -> Usage:
        """The usage as far as it is known; ``known_prompt`` are the prompt's tokens where the worker sent no ids."""
        produced, of_prompts, longest = self.native.counted
        # Each choice begins with its prompt's ids.
        prompt = longest if prompts <= 1 else of_prompts // max(1, choices)
        begun = Usage(*self.native.begun or (prompt,))
        return Usage(
            begun.prompt_tokens or known_prompt, max(produced, begun.completion_tokens or 0), begun.cached_tokens
        )
