"""A chat's or completion's stream without what only the gateway asked for, which native code takes out."""

from __future__ import annotations

from typing import ClassVar, Final

import cachefleet_native
import msgspec

from cachefleet_controlplane.gateway.send.answers.answer import restated_event
from cachefleet_controlplane.gateway.send.answers.passes import Passes
from cachefleet_controlplane.gateway.send.answers.usage import Usage, usage_in
from cachefleet_controlplane.wire.json_members import READ_ERRORS

_decode = msgspec.json.Decoder().decode


class StreamFilter:
    """A StreamTransformer; ``native`` is fed whole events, in order, by ``feed`` or by native code that relays them.

    ``fingerprint`` is the worker's last system fingerprint, as JSON (b"" where it has none); while it is None, not
    known, the last event of a choice waits for it. With a single choice it always waits: usage follows at once.
    ``echoes``: so many choices begin with their prompt, which may be among the ids.
    """

    passes: ClassVar = Passes.MOST
    sequence: ClassVar = 0
    """Its events have no numbers."""

    def __init__(
        self, *, strip_usage: bool, strip_ids: bool, single: bool, fingerprint: bytes | None = None, echoes: int = 0
    ) -> None:
        self.native: Final = cachefleet_native.StreamFilter(
            strip_usage=strip_usage, strip_ids=strip_ids, single=single, fingerprint=fingerprint, echoes=echoes
        )

    @property
    def usage(self) -> Usage | None:
        """The usage that came at the stream's end; None before it, and where it is none."""
        told = self.native.usage
        try:
            return None if told is None else usage_in(_decode(told))
        except READ_ERRORS:
            return None

    @property
    def fingerprint(self) -> bytes | None:
        """The worker's system fingerprint, as JSON; None where it is not known."""
        return self.native.fingerprint

    def omit_zeros(self, *, omit: bool) -> None:
        """Set whether counts of cached tokens that are 0 are left out."""
        self.native.omit_zeros(omit)

    def feed(self, event: bytes) -> bytes:
        """Return the bytes to send to the client now."""
        return self.native.feed(restated_event("", event))

    def end(self) -> bytes:
        """Return what is still held back, unchanged; for a stream that ends without usage."""
        return self.native.end()

    def so_far(self, *, prompts: int, choices: int, known_prompt: int) -> Usage:
        """The usage as far as it is known; ``known_prompt`` are the prompt's tokens where the worker sent no ids."""
        produced, of_prompts, longest = self.native.counted
        # Each choice begins with its prompt's ids.
        prompt = longest if prompts <= 1 else of_prompts // max(1, choices)
        return Usage(prompt or known_prompt, produced)
