"""What of prompts others can read: of events, reports, logs, metrics and databases: row 28."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from cachefleet_local.fleet.ports import take_ports
from tests.chaos.measurements import measured
from tests.chaos.parts.invariants import Scenario
from tests.chaos.parts.local_fleet import ADMIN, ChaosFleet, chaos_fleet, so
from tests.chaos.parts.own_network import own_network
from tests.chaos.parts.relay import Relay
from tests.fakes.tokenizer import ByteTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SECRET = "the quarterly numbers of umbrella are these, and nobody is to know of them"


async def test_prompts_are_read_nowhere_but_in_engines(tmp_path: Path) -> None:
    """All bytes between agents and replica are noted by a relay; logs, metrics and databases are read at the end."""
    async with AsyncExitStack() as stack:
        ports = take_ports({"internal": 0})
        relay = await stack.enter_async_context(Relay("127.0.0.1", ports["internal"]).running())
        reached = f"http://127.0.0.1:{relay.port}"
        fleet = await stack.enter_async_context(
            chaos_fleet(tmp_path, reached=lambda _worker, _url: reached, internal_port=ports["internal"])
        )
        scenario = Scenario(fleet)
        async with scenario.loaded():
            await _ask(fleet)
            await scenario.answered(50)
        await so(fleet.agreed)
        reports = b"".join(_unmasked(bytes(stream)) for stream in relay.asked)
        assert all(name.encode() in reports for name in fleet.workers)  # they can be read, and pass by here
        read = {"reports": reports, "answers": b"".join(relay.answered), **await _everything(fleet)}
        found = [(where, what) for where, text in read.items() for what, secret in _secrets(fleet) if secret in text]
        assert found == []
        measured(28, "bytes read, of reports, logs, metrics and databases", sum(map(len, read.values())), unit="")
        await scenario.hold()


def _unmasked(stream: bytes) -> bytes:
    """The payloads of a WebSocket's frames, which its client masks (RFC 6455, 5.2)."""
    at, payloads = stream.index(b"\r\n\r\n") + 4, bytearray()
    while at + 2 <= len(stream):
        size = stream[at + 1] & 0x7F
        more = {126: 2, 127: 8}.get(size, 0)
        size = int.from_bytes(stream[at + 2 : at + 2 + more], "big") if more else size
        at += 2 + more
        mask, at = stream[at : at + 4], at + 4
        payloads += bytes(byte ^ mask[place % 4] for place, byte in enumerate(stream[at : at + size]))
        at += size
    return bytes(payloads)


async def _ask(fleet: ChaosFleet) -> None:
    """The secret, by a tenant of its own."""
    body = {"model": "bench", "messages": [{"role": "user", "content": SECRET * 4}], "max_tokens": 4}
    url, headers = f"{fleet.replicas[0].gateway}/v1/chat/completions", {"authorization": f"Bearer {fleet.other}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.post(url, json=body) as answer:
        assert answer.status == 200


def _secrets(fleet: ChaosFleet) -> Iterator[tuple[str, bytes]]:
    """The prompt, its ids in three codings, the tenants' API keys and the workers' own."""
    ids = ByteTokenizer().encode(SECRET)[8:24]
    yield "prompt", SECRET[8:40].encode()
    yield "ids in msgpack", msgspec.msgpack.encode(ids)[1:]
    yield "ids in JSON", msgspec.json.encode(ids)[1:-1]
    yield "ids of four bytes", b"".join(each.to_bytes(4, "little") for each in ids)
    yield from (("API key", key.encode()) for key in (fleet.key, fleet.other))
    yield from (("worker key", worker.key.encode()) for worker in fleet.workers.values())


async def _everything(fleet: ChaosFleet) -> dict[str, bytes]:
    """Logs of all processes, both metrics pages, and all files of the replica's store."""
    files = [*fleet.folder.glob("*.log"), *(fleet.folder / "data-0").rglob("*")]
    found = {file.name: file.read_bytes() for file in files if file.is_file()}
    pages = [f"{fleet.replicas[0].internal}/metrics"]
    pages += [worker.probe.replace("/readyz", "/metrics") for worker in fleet.workers.values()]
    async with aiohttp.ClientSession(headers=ADMIN) as http:
        for page in pages:
            async with http.get(page) as answer:
                found[page] = await answer.read()
    return found


async def test_events_are_for_who_is_beside_the_engine(tmp_path: Path) -> None:
    """From another network there is nothing at their addresses."""
    async with chaos_fleet(tmp_path, workers=1) as fleet:
        flags = fleet.workers["chaos-0"].engine.arguments
        ports = [int(flag.partition("=")[2]) for flag in flags if flag.startswith(("--events-port=", "--replay-port="))]
        assert len(ports) == 2
        for port in ports:
            assert _connects("127.0.0.1", port)
            assert not _connects(_own_address(), port)
        with own_network():
            assert not any(_connects("127.0.0.1", port) for port in ports)
            assert not _connects("127.0.0.1", urlsplit(fleet.replicas[0].internal).port or 0)


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _own_address() -> str:
    """Another address of this machine than loopback's first: as who is not beside the engine would use."""
    return "127.0.0.3"
