"""Which sockets are opened for a host's name or address."""

import errno
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from cachefleet_controlplane.transport import listening_sockets as module
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.listening_sockets import listening_sockets
from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.transports import made


async def _opened(host: str, port: int = 0) -> list[tuple[str, int]]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(one) for one in await listening_sockets(host, port)]
        assert all(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for one in sockets)
        return [one.getsockname()[:2] for one in sockets]


@pytest.mark.parametrize(("host", "origin"), [("::", "http://[::]:8080"), ("localhost", "http://localhost:8080")])
async def test_a_server_tells_where_it_is_to_listen_as_a_url(host: str, origin: str, probe: Probe) -> None:
    async with Completions() as completions:
        assert made(completions, probe, host=host, port=8080).origin == origin


async def test_an_address_is_listened_on_at_a_free_port() -> None:
    ((address, port),) = await _opened("127.0.0.1")
    assert address == "127.0.0.1"
    assert port


async def test_all_addresses_of_a_name_have_one_port() -> None:
    opened = await _opened("localhost")
    assert len({port for _, port in opened}) == 1
    assert "127.0.0.1" in [address for address, _ in opened]


async def test_without_ipv6_a_name_is_its_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = module._open

    def without(family: int, address: str, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
        return opens(family, address, port)

    monkeypatch.setattr(module, "_open", without)
    assert [address for address, _ in await _opened("localhost")] == ["127.0.0.1"]
    with pytest.raises(OSError, match="no such address"):
        await _opened("::1")


async def test_a_port_that_is_taken_is_told_and_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, made = (await listening_sockets("127.0.0.1", 0))[0], list[socket.socket]()
    original = socket.socket

    def noted(*arguments: Any, **named: Any) -> socket.socket:
        made.append(original(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(socket, "socket", noted)
    with taken, pytest.raises(OSError, match="in use"):
        await listening_sockets("127.0.0.1", taken.getsockname()[1])
    assert [one.fileno() for one in made] == [-1] * len(made)


async def test_all_addresses_are_those_of_both_families() -> None:
    """Pods of one family, or of both, are asked at their own address."""
    sockets = await listening_sockets("::", 0)
    port = sockets[0].getsockname()[1]
    with ExitStack() as stack:
        for one in sockets:
            stack.enter_context(one)
        assert {one.getsockname()[:2] for one in sockets} == {("0.0.0.0", port), ("::", port)}  # all
        for address in ("127.0.0.1", "::1"):
            stack.enter_context(socket.create_connection((address, port)))


async def test_without_ipv6_all_addresses_are_the_other_family_s(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = module._open

    def without(family: int, address: str, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return opens(family, address, port)

    monkeypatch.setattr(module, "_open", without)
    assert [address for address, _ in await _opened("::")] == ["0.0.0.0"]  # all
