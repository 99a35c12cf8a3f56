"""The endpoints of an event stream, out of what the engine says."""

from __future__ import annotations

from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints, endpoints_for, offset


def test_sockets_follow_from_what_the_engine_says() -> None:
    url = "http://127.0.0.1:8000"
    assert endpoints_for("tcp://*:5557", "tcp://*:5657", url) == Endpoints(
        "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657"
    )
    assert endpoints_for("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657", url) == Endpoints(
        "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5657", bind=True
    )
    assert endpoints_for("ipc:///run/e", "", url) == Endpoints("ipc:///run/e", "")
    assert endpoints_for("tcp://[::]:5557", "tcp://10.1.2.3:5657", url).events == "tcp://127.0.0.1:5557"


def test_ranks_are_at_the_next_ports() -> None:
    assert offset("tcp://127.0.0.1:5557", 3) == "tcp://127.0.0.1:5560"
    assert offset("ipc:///run/e", 0) == "ipc:///run/e"
    assert offset("", 1) == ""
