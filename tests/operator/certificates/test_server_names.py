"""Servers are known by the names that are used."""

from __future__ import annotations

from cachefleet_operator.certificates.server_names import control_plane_names
from cachefleet_operator.settings import Settings


def test_the_control_plane_is_known_by_the_names_that_are_used() -> None:
    chosen = Settings(
        agent_image="example.org/agent:1",
        operator_namespace="ops",
        control_plane="fleet-headless.ops.svc:8081",
        admin_url="https://fleet.ops.svc:8081",
    )
    assert control_plane_names(chosen) == {
        *("localhost", "127.0.0.1", "fleet-headless.ops.svc", "fleet-headless.ops", "fleet.ops.svc", "fleet.ops"),
        *("fleet-headless.ops.svc.cluster.local", "fleet.ops.svc.cluster.local"),
    }
