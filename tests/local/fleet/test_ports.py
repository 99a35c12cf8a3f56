from __future__ import annotations

import socket

import pytest

from cachefleet_local.fleet.ports import EPHEMERAL, PortError, take_ports


def test_free_ports_differ() -> None:
    ports = take_ports(dict.fromkeys("abcdefgh", 0))
    assert len(set(ports.values())) == 8
    assert all(port > 0 for port in ports.values())


def test_a_chosen_port_is_none_of_outgoing_connections() -> None:
    """One of those could be taken while its worker is down."""
    first = int(EPHEMERAL.read_text().split()[0])
    assert max(take_ports(dict.fromkeys("abcdefgh", 0)).values()) < first


def test_a_taken_port_is_named_with_what_it_was_for() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(PortError, match=f"port {port} for the gateway is taken by another process"):
            take_ports({"gateway": port, "other": 0})


def test_one_port_asked_for_twice_is_refused() -> None:
    port = take_ports({"free": 0})["free"]
    with pytest.raises(PortError, match=f"port {port}"):
        take_ports({"gateway": port, "internal port": port})


def test_what_was_asked_for_is_given() -> None:
    port = take_ports({"free": 0})["free"]
    assert take_ports({"gateway": port, "internal port": 0})["gateway"] == port
