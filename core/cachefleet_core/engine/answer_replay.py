"""Streams that another worker can go on with: what a worker records of an answer, and how it is replayed elsewhere.

The gateway asks with HEADER for a record of a stream. The plugin sends it in the stream itself, as comments of
server-sent events, each before the events that came of it: the token ids of one output of the engine, as its serving
code got them. Where the stream breaks, another worker gets the same request, with the record behind its body: it puts
these outputs before its own, so that its serving code (parsers of reasoning and tools, the events of every API) makes
the stream from its beginning, and the gateway leaves out what its client has. Names and times in events come of the
header, so they are the same at every worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

FEATURE: Final = "answer_replay"
HEADER: Final = "x-cachefleet-replay"
"""``NAME;SECONDS``, and ``;BYTES`` where the body ends with a record of so many bytes."""
COMMENT: Final = b": cachefleet.replay "
"""How an event begins that is a part of the record, one line of JSON."""
MAX_NAME: Final = 128
MAX_SECONDS: Final = 2**33
MAX_RECORD_BYTES: Final = 32 * 1024 * 1024
"""Longest record that a worker takes."""
_END: Final = b"\n\n"


class Unrecorded(StrEnum):
    """Why no other worker could go on with a stream."""

    CHOICES = "choices"
    """It has several choices, or several prompts: they end up in different states."""
    SEED = "seed"
    """Random numbers are counted from the answer's beginning."""
    PENALTIES = "penalties"
    """They count what was produced, of which another engine knows as prompt alone."""
    LOGPROBS = "logprobs"
    """Those of the prompt, or of all tokens, are in no record."""
    GRAMMAR = "grammar"
    """A grammar has a state that another engine does not have: named and required tools, JSON schemas."""
    EMBEDS = "embeds"
    """The prompt is no list of token ids."""
    ROUNDS = "rounds"
    """The engine was asked more than once: tools that the server calls itself."""
    SAMPLING = "sampling"
    """A sampling parameter that is not known here."""
    PROMPT = "prompt"
    """The second worker makes another prompt of the request."""


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """Log probabilities at one token: the produced one's, then the likeliest ones', as an answer has them."""

    rank: int
    """The produced token's."""
    ids: list[int]
    values: list[float | None]
    """None for minus infinity, which JSON has not."""


class Part(Struct, frozen=True, omit_defaults=True):
    """A part of a record that is more than ids; the first one is, and the last."""

    ids: list[int] = []  # msgspec copies it
    prompt: str = ""
    """Digest of the prompt's ids."""
    cached: int | None = None
    """Tokens of the prompt that came from cache."""
    written: int | None = None
    """Tokens of the prompt that were put into it."""
    finish: str = ""
    """Why the engine ended the answer with these ids."""
    stop: int | str | None = None
    """The token or string that ended it."""
    logprobs: list[TokenLogprobs] = []  # msgspec copies it
    """One for each id, where they were asked for."""
    off: Unrecorded | None = None
    """There is no record, for this reason; nothing follows."""


class ReplayAsk(Struct, frozen=True):
    """What the gateway asks for."""

    name: str
    """Names of the answer's parts come of it."""
    seconds: int
    """Unix time at which the answer began."""
    record_bytes: int = 0
    """The body ends with a record of so many bytes; 0 where the stream begins."""

    @property
    def header(self) -> str:
        """The header's value."""
        return f"{self.name};{self.seconds}" + (f";{self.record_bytes}" if self.record_bytes else "")


class ReplayError(ValueError):
    """A header or record that cannot be read."""


_line = msgspec.json.Decoder(list[int] | Part)
_encode = msgspec.json.Encoder().encode


def read_ask(value: bytes) -> ReplayAsk:
    """The header's value, read. ReplayError."""
    name, *numbers = value.decode("latin-1").split(";")
    if not 0 < len(name) <= MAX_NAME or not name.isascii() or not name.isprintable():
        raise ReplayError(f"its name must be 1 to {MAX_NAME} visible ASCII characters")
    if len(numbers) not in {1, 2} or not all(each.isdecimal() and len(each) <= 10 for each in numbers):
        raise ReplayError("it must be NAME;SECONDS or NAME;SECONDS;BYTES")
    seconds, length = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if seconds > MAX_SECONDS or length > MAX_RECORD_BYTES:
        raise ReplayError(f"seconds must be at most {MAX_SECONDS}, bytes at most {MAX_RECORD_BYTES}")
    return ReplayAsk(name, seconds, length)


def comment(part: Part) -> bytes:
    """A part as an event of a stream."""
    plain = part == Part(ids=part.ids)
    return COMMENT + _encode(part.ids if plain else part) + _END


def part_of(event: bytes) -> bytes:
    """The line of an event that is a part of a record; b"" for any other event."""
    return event[len(COMMENT) :].strip() if event.startswith(COMMENT) else b""


def read_part(line: bytes) -> Part:
    """One line of a record, read. ReplayError."""
    try:
        found = _line.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReplayError(f"a part of the record cannot be read: {error}") from None
    return Part(ids=found) if isinstance(found, list) else found


def read_record(record: bytes) -> list[Part]:
    """The parts of a record, one a line. ReplayError."""
    return [read_part(line) for line in record.splitlines()]


def record_of(lines: Iterable[bytes]) -> bytes:
    """The record of these lines."""
    return b"\n".join(lines)
