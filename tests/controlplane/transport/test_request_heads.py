"""Heads that are too large, too late, malformed, or that two servers might read differently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.raw_client import chunk, chunked, posted, request
from tests.controlplane.transport.transports import Served, served

BEGIN = b"POST /echo HTTP/1.1\r\nhost: x\r\n"
MIB = 1024 * 1024
MAX_HEAD_BYTES, MAX_HEAD_FIELDS = 64 * 1024, 100
SHORT = 0.2
SMUGGLED = request(b"/smuggled")


def _fields(number: int, size: int = 4) -> bytes:
    return b"".join(b"x-%d: %s\r\n" % (index, b"v" * size) for index in range(number))


def _cut(sent: bytes, size: int) -> Iterator[bytes]:
    return (sent[start : start + size] for start in range(0, len(sent), size))


async def _answer(side: Served, *sent: bytes) -> bytes:
    async with await side.connect() as connection:
        await connection.send(*sent)
        return await connection.rest()


async def test_a_head_at_its_bounds_is_served(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(BEGIN + _fields(MAX_HEAD_FIELDS - 2, size=600) + b"content-length: 2\r\n\r\nok")
        assert (await connection.response()).body == b"ok"


TOO_LARGE = {
    "fields": BEGIN + _fields(MAX_HEAD_FIELDS),
    "bytes": BEGIN + _fields(90, size=800),
    "one value": BEGIN + b"x: " + b"v" * (MAX_HEAD_BYTES + 1) + b"\r\n",
    "one name": BEGIN + b"x" * (MAX_HEAD_BYTES + 1) + b": v\r\n",
    "target": b"POST /?" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n",
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_over_its_bounds_is_refused_and_the_connection_closed(
    side: Served, probe: Probe, name: str
) -> None:
    async with await side.connect() as connection:
        await connection.send(TOO_LARGE[name] + b"content-length: 2\r\n\r\nok")
        response = await connection.response()
        assert (response.status, response.closes) == (431, True)
        assert response.line == b"HTTP/1.1 431 Request Header Fields Too Large"
        assert await connection.ended()
    assert not probe.scopes


@pytest.mark.parametrize("begin", [BEGIN + b"x: ", BEGIN, b"POST /"])
async def test_what_never_ends_is_refused_while_it_arrives(side: Served, begin: bytes) -> None:
    def endless() -> Iterator[bytes]:
        yield begin
        for _ in range(64):
            yield b"y" * MIB if begin is not BEGIN else b"a: b\r\n" * (MIB // 6)

    async with await side.connect() as connection:
        sent = await connection.flood(endless())
        assert (await connection.response()).status == 431
    assert sent < 16 * MIB  # what the sockets' own buffers hold


async def test_an_older_client_needs_no_host(side: Served) -> None:
    answer = await _answer(side, b"POST /echo HTTP/1.0\r\ncontent-length: 2\r\n\r\nok")
    assert b" 200 " in answer.split(b"\r\n")[0], answer


async def test_a_body_may_offer_another_protocol_than_a_websocket(side: Served) -> None:
    """As Java's client does, which would go on in HTTP/2."""
    offered = (b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AA", b"content-length: 2")
    async with await side.connect() as connection:
        await connection.send(_post(*offered, body=b"ok"))
        assert (await connection.response()).status == 200  # the reference, uvicorn, drops its body


async def test_a_second_head_is_bounded_like_the_first(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send(posted(b"ok"))
        assert (await connection.response()).status == 200
        await connection.send(BEGIN + _fields(MAX_HEAD_FIELDS) + b"\r\n")
        assert (await connection.response()).status == 431
        assert await connection.ended()


async def test_each_head_is_counted_by_itself(side: Served) -> None:
    async with await side.connect() as connection:
        await connection.send((BEGIN + _fields(50, size=100) + b"content-length: 2\r\n\r\nok") * 30)
        for _ in range(30):
            assert (await connection.response()).status == 200


async def test_a_trailer_is_bounded_too(side: Served, probe: Probe) -> None:
    def endless() -> Iterator[bytes]:
        yield BEGIN + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx: "
        for _ in range(64):
            yield b"y" * MIB

    async with await side.connect() as connection:
        assert await connection.flood(endless()) < 16 * MIB
        assert b" 200 " not in await connection.rest()
    assert "read 2" not in probe.noted


_HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
MALFORMED = {
    "another protocol": b"SSH-2.0-OpenSSH_9.0\r\n\r\n",
    "TLS": bytes.fromhex("16030100f1010000ed0303") + bytes(64) + b"\r\n\r\n",
    "a version that is none": b"GET /echo HTTP/9.9\r\nhost: x\r\n\r\n",
    "a blank in a name": b"GET /echo HTTP/1.1\r\nhost: x\r\nx y: 1\r\n\r\n",
    "a blank after a name": b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length : 2\r\n\r\nok",
    "no name": b"GET /echo HTTP/1.1\r\nhost: x\r\n: 1\r\n\r\n",
    "no colon": b"GET /echo HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n",
    "a folded value": b"GET /echo HTTP/1.1\r\nhost: x\r\nx-one: 1\r\n 2\r\n\r\n",
    "a fold first": b"GET /echo HTTP/1.1\r\n host: x\r\n\r\n",
    "NUL in a value": b"GET /echo HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n",
    "NUL in a name": b"GET /echo HTTP/1.1\r\nhost: x\r\nx\0y: 1\r\n\r\n",
    "NUL in the target": b"GET /ec\0ho HTTP/1.1\r\nhost: x\r\n\r\n",
    "CR in a value": b"GET /echo HTTP/1.1\r\nhost: x\r\nx: a\rb\r\n\r\n",
    "a blank in the target": b"GET /ec ho HTTP/1.1\r\nhost: x\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\nhost: x\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nhost: x\r\n\r\n",
}


MALFORMED |= {
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "no host, and a body": b"POST /echo HTTP/1.1\r\ncontent-length: 2\r\n\r\nok",
    "two hosts": b"GET /echo HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "a handshake with chunks": _HANDSHAKE + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a handshake with a body": _HANDSHAKE + b"content-length: 2\r\n\r\nok",
}
BARE_LF = {
    "bare LF after the request's line": b"POST /echo HTTP/1.1\nhost: x\r\ncontent-length: 2\r\n\r\nok",
    "bare LF after a field": b"POST /echo HTTP/1.1\r\nhost: x\ncontent-length: 2\r\n\r\nok",
    "bare LF after the last field": b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\n\r\nok",
    "bare LF after the head": b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\nok",
    "bare LF everywhere": b"POST /echo HTTP/1.1\nhost: x\ncontent-length: 2\n\nok",
    "bare LF after an empty value": b"GET /echo HTTP/1.1\r\nhost: x\r\nx:\ny: 1\r\n\r\n",
}
MALFORMED |= BARE_LF


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_head_is_a_400_and_the_end(side: Served, probe: Probe, name: str) -> None:
    answer = await _answer(side, MALFORMED[name] + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer
    assert b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not probe.scopes


def _post(*fields: bytes, body: bytes = b"") -> bytes:
    return request(b"/echo", *fields, method=b"POST") + body


CHUNKED = b"transfer-encoding: chunked"
AMBIGUOUS = {
    "two lengths": _post(b"content-length: 2", b"content-length: 3", body=b"abc"),
    "two lengths in one": _post(b"content-length: 2, 3", body=b"abc"),
    "a signed length": _post(b"content-length: +2", body=b"ab"),
    "a negative length": _post(b"content-length: -1"),
    "a length in hex": _post(b"content-length: 0x2", body=b"ab"),
    "a length with a blank": _post(b"content-length: 1 2", body=b"ab"),
    "a length that is none": _post(b"content-length: many"),
    "no length": _post(b"content-length:"),
    "a length without end": _post(b"content-length: " + b"9" * 30),
    "not chunked last": _post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked twice": _post(b"transfer-encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "an unknown coding": _post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "a coding with a control": _post(b"transfer-encoding: \x0bchunked", body=b"0\r\n\r\n"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_a_length_that_can_be_read_in_two_ways_smuggles_nothing(side: Served, probe: Probe, name: str) -> None:
    answer = await _answer(side, AMBIGUOUS[name] + SMUGGLED)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not any(scope["path"] == "/smuggled" for scope in probe.scopes)
    assert not any(note.startswith("read") for note in probe.noted)


@pytest.mark.parametrize(
    "lengths", [(b"content-length: 4", CHUNKED), (CHUNKED, b"content-length: 4"), (CHUNKED, b"content-length: 900")]
)
async def test_of_two_lengths_chunks_count_or_none_and_the_connection_ends(
    side: Served, probe: Probe, lengths: tuple[bytes, bytes]
) -> None:
    answer = await _answer(side, _post(*lengths, body=chunk(b"ok") + b"0\r\n\r\n") + SMUGGLED)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not any(scope["path"] == "/smuggled" for scope in probe.scopes)
    if not answer.startswith(b"HTTP/1.1 400 "):
        assert b"connection: close" in answer
        assert answer.endswith(b"\r\n\r\nok")


async def test_http_2_by_prior_knowledge_is_no_request(side: Served, probe: Probe) -> None:
    answer = await _answer(side, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED)
    assert b" 200 " not in answer
    assert not probe.scopes


BAD_CHUNKS = {
    "no size": b"\r\nok\r\n",
    "no number": b"zz\r\nok\r\n",
    "a negative size": b"-2\r\nok\r\n",
    "a signed size": b"+2\r\nok\r\n",
    "a prefix": b"0x2\r\nok\r\n",
    "a size beyond all": b"f" * 17 + b"\r\nok\r\n",
    "a blank before": b" 2\r\nok\r\n",
    "longer than said": b"2\r\nokay\r\n",
    "bare LF after the size": b"2\nok\r\n",
    "bare LF after the data": b"2\r\nok\n",
    "bare CR after the size": b"2\rok\r\n",
    "LF in an extension": b"2;a\nb\r\nok\r\n",
    "NUL in the size": b"2\0\r\nok\r\n",
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
async def test_a_chunk_that_is_none_ends_the_connection(side: Served, probe: Probe, name: str) -> None:
    answer = await _answer(side, _post(CHUNKED, body=chunk(b"first") + BAD_CHUNKS[name] + b"0\r\n\r\n") + SMUGGLED)
    assert b" 200 " not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not any(scope["path"] == "/smuggled" for scope in probe.scopes)
    assert not any(note.startswith("read") for note in probe.noted)


@pytest.mark.parametrize("said", [b"", b"G", b"\r\n", b"POST /echo HTTP/1.1\r\nhost:", b"\r\n" * 3])
async def test_without_a_whole_head_a_connection_is_closed_in_time(probe: Probe, said: bytes) -> None:
    async with served(probe, head_seconds=SHORT) as side, await side.connect() as connection:
        await connection.send(said)
        assert await connection.ended()


async def test_a_head_that_drips_is_closed_all_the_same(probe: Probe) -> None:
    async with served(probe, head_seconds=SHORT) as side, await side.connect() as connection:

        async def drip() -> None:
            for byte in BEGIN * 100:
                await connection.send(bytes([byte]))
                await asyncio.sleep(SHORT / 10)

        dripping = asyncio.create_task(drip())
        assert await connection.ended()
        dripping.cancel()
    assert not probe.scopes


async def test_a_second_head_must_come_in_time_too(probe: Probe) -> None:
    async with served(probe, head_seconds=SHORT) as side, await side.connect() as connection:
        await connection.send(posted(b"ok"))
        assert (await connection.response()).body == b"ok"
        await connection.send(b"POST /ec")
        assert await connection.ended()


async def test_an_answer_may_take_longer_than_a_head(probe: Probe) -> None:
    async with served(probe, head_seconds=SHORT) as side, await side.connect() as connection:
        await connection.send(posted(b"ok", b"/held"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.reader.read(1), 2 * SHORT)
        probe.release.set()
        assert (await connection.response()).body == b"ok"


@pytest.mark.parametrize("target", [b"*", b"/", b"/echo"])
async def test_options_of_anything_reach_the_application(side: Served, target: bytes) -> None:
    answer = await _answer(side, request(target, b"connection: close", method=b"OPTIONS"))
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), answer
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_target_in_utf_8_is_refused_or_kept(side: Served, probe: Probe) -> None:
    answer = await _answer(side, request("/\xe4".encode(), b"connection: close"))
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), answer
    if b" 200 " in answer:
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["path"] == "/\xe4"


@pytest.mark.parametrize("pieces", [1, MIB])
@pytest.mark.parametrize("before", ["no body", "a body", "chunks"])
async def test_a_bare_lf_is_refused_behind_another_request_too(
    side: Served, probe: Probe, before: str, pieces: int
) -> None:
    """The request before it may have its answer: uvicorn ends the connection at once."""
    first = {
        "no body": request(b"/first"),
        "a body": posted(b"{\n}\n", b"/first"),
        "chunks": chunked(b"{\n}\r\n\r\n", target=b"/first", trailer=b"x: y\r\n"),
    }
    for head in BARE_LF.values():
        answer = await _answer(side, *_cut(first[before] + head + SMUGGLED, pieces))
        assert answer.count(b"HTTP/1.1 400 ") == 1, answer
        assert answer.count(b"HTTP/1.1 ") <= 2
    assert {scope["path"] for scope in probe.scopes} <= {"/first"}


@pytest.mark.parametrize("pieces", [1, 7, MIB])
async def test_bodies_may_have_bare_lfs_and_empty_lines(side: Served, pieces: int) -> None:
    body = b"{\n\n}\r\n\r\n\n"
    sent = (posted(body) + chunked(body, body, trailer=b"x: y\r\n") + request(b"/first")) * 3
    async with await side.connect() as connection:
        await connection.send(*_cut(sent, pieces))
        for _ in range(3):
            assert (await connection.response()).body == body
            assert (await connection.response()).body == body * 2
            assert (await connection.response()).status == 200


async def test_a_request_without_a_version_is_the_last(side: Served) -> None:
    """The reference, uvicorn, answers it, as one of HTTP/0.9."""
    answer = await _answer(side, b"GET /echo\r\n\r\n" + SMUGGLED)
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), answer
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_what_others_get_after_a_smuggler_is_theirs(side: Served) -> None:
    for sent in (*AMBIGUOUS.values(), *MALFORMED.values()):
        await _answer(side, sent + SMUGGLED)
    async with await side.connect() as connection:
        await connection.send(chunked(b"mine"))
        assert (await connection.response()).body == b"mine"
