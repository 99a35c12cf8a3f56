"""A job on its way to the process that runs it: in pieces, so that none holds up the event loop that makes them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import msgspec

from cachefleet_controlplane.history.recorded_requests import RecordedRequest
from cachefleet_controlplane.simulation.simulation_job import Job

RECORDS: Final = 64
"""Of one piece."""
_LENGTH: Final = struct.Struct("<I")


def pieces(job: Job) -> Iterator[bytes]:
    """The job without its records, then these: each piece after its length, as msgpack."""
    yield _piece(msgspec.structs.replace(job, records=()))
    for start in range(0, len(job.records), RECORDS):
        yield _piece(job.records[start : start + RECORDS])


def read_job(stream: BinaryIO) -> Job:
    """The job whose pieces a stream has."""
    job = msgspec.msgpack.decode(_read(stream), type=Job)
    records: list[RecordedRequest] = []
    while piece := _read(stream):
        records += msgspec.msgpack.decode(piece, type=list[RecordedRequest])
    return msgspec.structs.replace(job, records=tuple(records))


def _piece(value: Any) -> bytes:
    data = msgspec.msgpack.encode(value)
    return _LENGTH.pack(len(data)) + data


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(head)[0]) if head else b""
