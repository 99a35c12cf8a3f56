"""Checks an input file line by line, and puts its lines in the order in which they run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from cachefleet_controlplane.gateway.batches.batch_lines import LineError, check_line, places_of
from cachefleet_controlplane.gateway.batches.batch_object import BatchBounds, ErrorLine
from cachefleet_controlplane.gateway.batches.batch_repository import WaitingLine
from cachefleet_controlplane.gateway.batches.input_file import InputFile, LinePlace, LongLineError

MAX_ERRORS: Final = 100
"""Errors that are told; the check ends there."""
_ID_BYTES: Final = 16


class Validation:
    """What is known of a file so far; memory per line is some 200 bytes, and nothing of its text."""

    def __init__(self, endpoint: str, bounds: BatchBounds, secret: bytes) -> None:
        self._endpoint = endpoint
        self._bounds = bounds
        self._secret = secret
        self._seen = set[bytes]()
        self._orders = list[bytes]()
        self._places = list[LinePlace]()
        self.model = ""
        self.errors = list[ErrorLine]()

    async def read(self, file: InputFile) -> None:
        """Check a whole file. ApiError 404, 503 where it cannot be read."""
        try:
            async for lines in file.lines(longest=self._bounds.line_bytes):
                await asyncio.to_thread(self.take, lines)
                if self._over():
                    return
        except LongLineError as error:
            message = f"A line has at most {self._bounds.line_bytes} bytes."
            self.errors.append(ErrorLine("invalid_json_line", message, error.number))
        if not self._places and not self.errors:
            self.errors.append(ErrorLine("empty_file", "The input file has no requests."))

    def take(self, lines: Sequence[tuple[LinePlace, bytes]]) -> None:
        """Check some lines."""
        for at, raw in lines:
            if self._over():
                return
            try:
                self._check(at, raw)
            except LineError as error:
                self.errors.append(error.at(at.number))

    def waiting(self) -> list[WaitingLine]:
        """Return all lines with their turns."""
        turns = places_of(self._orders)
        return [WaitingLine(turn, at) for turn, at in zip(turns, self._places, strict=True)]

    def _check(self, at: LinePlace, raw: bytes) -> None:
        checked = check_line(raw, self._endpoint, self._secret)
        named = hashlib.blake2b(checked.custom_id.encode(), digest_size=_ID_BYTES).digest()
        if named in self._seen:
            message = "The custom_id of another line is used again: each has one of its own."
            raise LineError("duplicate_custom_id", message, "custom_id")
        self._seen.add(named)
        if not self._places:
            self.model = checked.model
        if checked.model != self.model:
            message = f"All lines of a batch ask for one model; the first asks for `{self.model}`."
            raise LineError("mismatched_model", message, "body.model")
        self._orders.append(checked.order)
        self._places.append(at)

    def _over(self) -> bool:
        if len(self._places) > self._bounds.lines and not self._too_many():
            message = f"A batch has at most {self._bounds.lines} requests (CACHEFLEET_BATCH_LINES)."
            self.errors.append(ErrorLine("too_many_requests", message))
        return len(self.errors) >= MAX_ERRORS or self._too_many()

    def _too_many(self) -> bool:
        return bool(self.errors) and self.errors[-1].code == "too_many_requests"
