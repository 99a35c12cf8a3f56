"""What one answer writes, and in how many packets; whole servers are in test_http_server.py and test_http_heads.py."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from cachefleet_controlplane import http_protocol
from cachefleet_controlplane.http_protocol import _AnswerTransport


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
async def answer(transport: Transport) -> _AnswerTransport:
    def end() -> None:
        transport.written.append(b"end")

    return _AnswerTransport(asyncio.get_running_loop(), cast("Any", transport), end)


async def test_a_head_goes_with_what_follows_at_once(answer: _AnswerTransport, transport: Transport) -> None:
    for data in (b"head ", b"body ", b"more"):
        answer.write(data)
    await asyncio.sleep(0)

    assert transport.written == [b"head body ", b"more"]


async def test_a_head_by_itself_waits_for_nothing_else(answer: _AnswerTransport, transport: Transport) -> None:
    answer.write(b"head")
    await asyncio.sleep(0)
    assert transport.written == [b"head"]

    answer.write(b"body")
    assert transport.written == [b"head", b"body"]


async def test_a_large_piece_is_not_copied(
    answer: _AnswerTransport, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "_JOINED_BYTES", 3)
    answer.write(b"head")
    answer.write(b"body")

    assert transport.written == [b"head", b"body"]


async def test_an_answer_that_ends_is_written_before(answer: _AnswerTransport, transport: Transport) -> None:
    answer.write(b"head")
    answer.close()
    await asyncio.sleep(0)

    assert transport.written == [b"head", b"end"]


async def test_nothing_is_written_where_the_client_is_gone(answer: _AnswerTransport, transport: Transport) -> None:
    answer.write(b"head")
    transport.closing = True
    await asyncio.sleep(0)

    assert not transport.written
