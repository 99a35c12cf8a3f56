"""Reads the lines of a kept file: all of them in order, or one by its place."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from cachefleet_controlplane.gateway.files.file_object import KeptFile
from cachefleet_controlplane.gateway.files.kept_files import KeptFiles


class LinePlace(Struct, frozen=True):
    """Where a line stands in its file."""

    number: int
    """From 1, blank lines counted."""
    start: int
    """Bytes before it."""
    size: int
    """Bytes, without its end."""


class LongLineError(ValueError):
    """A line is longer than is read."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class InputFile:
    """One file; the part that was read last is kept in memory."""

    def __init__(self, files: KeptFiles, file: KeptFile) -> None:
        self._files = files
        self._file = file
        self._latest: tuple[int, bytes] = (-1, b"")

    async def lines(self, *, longest: int) -> AsyncIterator[list[tuple[LinePlace, bytes]]]:
        """Iterate over all lines but blank ones, part by part. LongLineError; ApiError 404, 503."""
        rest, number, start = b"", 0, 0
        for part in range(self._file.parts):
            *whole, rest = (rest + await self._part(part)).split(b"\n")
            found = list[tuple[LinePlace, bytes]]()
            for line in whole:
                number += 1
                _add(found, number, start, line, longest)
                start += len(line) + 1
            if len(rest) > longest:
                raise LongLineError(number + 1)
            yield found
        last = list[tuple[LinePlace, bytes]]()
        _add(last, number + 1, start, rest, longest)
        yield last

    async def line(self, place: LinePlace) -> bytes:
        """Return one line. ApiError 404, 503."""
        size = self._file.part_bytes
        first, last = place.start // size, (place.start + place.size - 1) // size
        parts = [await self._part(number) for number in range(first, last + 1)]
        begin = place.start - first * size
        return b"".join(parts)[begin : begin + place.size]

    async def _part(self, number: int) -> bytes:
        if self._latest[0] != number:
            self._latest = number, await self._files.part(self._file, number)
        return self._latest[1]


def _add(found: list[tuple[LinePlace, bytes]], number: int, start: int, line: bytes, longest: int) -> None:
    if len(line) > longest:
        raise LongLineError(number)
    if line.strip():
        found.append((LinePlace(number, start, len(line)), line))
