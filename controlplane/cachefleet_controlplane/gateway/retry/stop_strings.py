"""Finds stop strings that begin in one worker's text and end in the next one's."""

from __future__ import annotations

from collections.abc import Sequence


class StopGuard:
    """Finds stop strings across the seam of two workers' texts; later ones the second worker finds itself.

    ``said``: the first worker's text. Where a stop string is no part of the answer (``included`` is false) its last
    characters, ``kept_back``, must not be sent to the client yet: a match may remove them.
    """

    def __init__(self, stops: Sequence[str], said: str, *, included: bool = False) -> None:
        self._stops = [stop for stop in stops if stop]
        self._reach = max(map(len, self._stops), default=1) - 1
        self._included = included
        self._text = said[len(said) - min(self._reach, len(said)) :]
        self._seam = len(self._text)
        self._out = self._seam if included else 0
        """Characters of ``_text`` that were sent to the client."""
        self.stopped: str | None = None
        """The stop string found; nothing follows it."""

    @property
    def kept_back(self) -> int:
        """How many of the last characters of ``said`` are not to be sent before ``feed`` returns them."""
        return self._seam - self._out

    def feed(self, text: str, *, last: bool = False, stop: str = "") -> str:
        """Return what to send to the client for the second worker's next ``text``.

        ``last``: no more text follows; the worker found the stop string ``stop`` where that is not empty.
        """
        if self.stopped is not None:
            return ""
        beyond = len(self._text) - self._seam >= self._reach
        self._text += text
        if not beyond and (match := self._match(stop)) is not None:
            start, self.stopped = match
            return self._give(start + len(self.stopped) if self._included else start)
        if last or self._included or len(self._text) - self._seam >= self._reach:
            return self._give(len(self._text))
        return ""

    def _match(self, own: str) -> tuple[int, str] | None:
        """Where a stop string begins that crosses the seam; of several the one that ends first, then the first listed.

        ``own`` was found by the second worker, right after its text if it is not part of that.
        """
        text = self._text if self._included else self._text + own
        found = [(len(text), self._stops.index(own), -1)] if own in self._stops else []
        for place, stop in enumerate(self._stops):
            start = text.find(stop, max(0, self._seam - len(stop) + 1), self._seam + len(stop) - 1)
            if start >= 0:
                found.append((start + len(stop), place, start))
        _, place, start = min(found, default=(0, 0, -1))
        return (start, self._stops[place]) if start >= 0 else None

    def _give(self, end: int) -> str:
        text = self._text[self._out : end]
        self._out = max(self._out, end)
        return text
