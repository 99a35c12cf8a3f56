"""Where kopf finds the API server and by which credentials, and what it watches."""

from __future__ import annotations

import asyncio
import itertools

import kopf
import pytest

from cachefleet_operator.manifests.child_objects import children
from cachefleet_operator.watching import handlers
from cachefleet_operator.watching.handlers import pool_of, server, settings
from cachefleet_runtime.kubernetes import WATCH_INACTIVITY_SECONDS
from tests.operator.pools import SETTINGS, pool


@pytest.mark.parametrize(
    ("host", "expected"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_the_server_is_found_by_its_address(host: str, expected: str) -> None:
    assert server({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}) == expected


def test_a_namespace_that_may_not_be_read_ends_no_watch_for_days() -> None:
    """Kopf gives up the watches of all after the last of these pauses."""
    backoffs = settings().networking.error_backoffs
    assert isinstance(backoffs, tuple)
    assert sum(backoffs) > 2 * 86_400
    assert max(backoffs) <= 20


def test_a_watch_that_the_server_forgot_is_noticed_as_soon_as_the_control_plane_s() -> None:
    watching = settings().watching
    assert watching.inactivity_timeout == WATCH_INACTIVITY_SECONDS
    assert str(watching.server_timeout) == "20", "an API server refuses 20.0"
    assert watching.inactivity_timeout > 20, "the server ends each watch before it counts as silent"


def test_all_pods_with_a_pools_label_are_watched() -> None:
    """Some may be nobody's, without the label of what the operator makes."""
    selectors = settings().watching.label_selectors
    assert selectors["", "pods"] == "cachefleet.io/pool"
    assert selectors["apps", "deployments"] == "app.kubernetes.io/managed-by=cachefleet-operator"


def test_an_object_is_of_its_pool_also_without_the_label() -> None:
    for child in children(pool(), SETTINGS):
        child["metadata"]["labels"]["cachefleet.io/pool"] = "other"
        assert pool_of(child) == "demo"
        child["metadata"]["labels"].pop("cachefleet.io/pool")
        assert pool_of(child) == "demo"
    assert pool_of({"metadata": {"labels": {"cachefleet.io/pool": "demo"}}}) == "demo"
    assert pool_of({"metadata": {"labels": {"app.kubernetes.io/managed-by": "cachefleet-operator"}}}) == ""


@pytest.mark.usefixtures("hurried")
async def test_credentials_are_given_again_ever_more_rarely_and_never_as_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kopf takes none that are equal to those that were refused: it would go on without its watches."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(handlers, "_credentials", lambda **_: kopf.ConnectionInfo(server="https://x", token="t"))
    login, given, pauses = handlers._logins(loop.time), [], []
    for _ in range(8):
        before = loop.time()
        given.append(await login())
        pauses.append(round(loop.time() - before))
    assert pauses == [0, 1, 2, 4, 8, 16, 20, 20]
    assert all(one != other for one, other in itertools.combinations(given, 2))
    await asyncio.sleep(handlers.CALM_SECONDS)
    before = loop.time()
    assert await login() not in given
    assert loop.time() - before < 1
