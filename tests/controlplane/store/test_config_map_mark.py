"""The marker's copy in a ConfigMap: what it says, where it is not there, and where it is out of reach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.store.access_marker import AccessMarker, ClosedReason, Mark
from cachefleet_controlplane.store.config_map_mark import FRESH_SECONDS, ConfigMapMark
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_runtime.kubernetes import RetryableError
from tests.controlplane.store.test_tenants import ACME, TENANT, key, loaded


class Cluster:
    """An API server with one ConfigMap, and what it was asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.data: dict[str, str] | None = {}
        """None where there is no ConfigMap."""
        self.status = 0
        """With which every request is refused; 0 for none."""
        self.reachable = True
        self.asked: list[str] = []
        self.now = 0.0

    async def exchange(
        self, method: str, path: str, *, query: Any = None, body: Any = None, seconds: float
    ) -> tuple[int, bytes]:
        assert path == "/api/v1/namespaces/ops/configmaps/c-access"
        self.asked.append(method)
        if not self.reachable:
            raise RetryableError(0, "ClientConnectorError", f"no answer within {seconds} s")
        if self.status or self.data is None:
            return self.status or 404, b'{"reason": "NotFound", "message": "no"}'
        if method == "PATCH":
            assert query["fieldManager"] == "cachefleet-controlplane"
            self.data = body.get("data", {})
        return 200, msgspec.json.encode({"data": self.data} if self.data else {})

    def mark(self) -> ConfigMapMark:
        """As a process that starts now has it."""
        found = ConfigMapMark("ops", "c-access", now=lambda: self.now)
        found.connect(self, self.loop)
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    yield Cluster(loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def opened(cluster: Cluster, folder: Path) -> SqlTenants:
    """A store as a process that starts now finds it."""
    url = f"sqlite:///{folder / 'x.db'}"
    tenants = SqlTenants(Database(url, timeout_seconds=1, cluster_marker=cluster.mark()))
    tenants.open()
    return tenants


def emptied(folder: Path) -> None:
    for part in folder.iterdir():
        part.unlink()


@pytest.mark.parametrize("mark", [Mark.KEYED, Mark.LOST])
def test_what_was_written_is_read_by_another(cluster: Cluster, mark: Mark) -> None:
    cluster.mark().write(mark)
    assert cluster.data == {"access": str(mark)}
    assert cluster.mark().read() is mark
    cluster.mark().write(Mark.ABSENT)
    assert cluster.data == {}
    assert cluster.mark().read() is Mark.ABSENT


def test_it_is_asked_once_a_minute_and_written_where_it_says_something_else(cluster: Cluster) -> None:
    mark = cluster.mark()
    for _ in range(3):
        mark.write(Mark.KEYED)
        assert mark.read() is Mark.KEYED
    assert cluster.asked == ["GET", "PATCH"]
    cluster.data, cluster.now = {}, FRESH_SECONDS
    assert mark.read() is Mark.ABSENT


def test_one_that_is_not_there_says_nothing(cluster: Cluster) -> None:
    cluster.data = None
    assert cluster.mark().read() is Mark.ABSENT


def test_what_is_not_understood_opens_nothing(cluster: Cluster) -> None:
    cluster.data = {"access": "what?"}
    assert cluster.mark().read() is Mark.UNREADABLE


def test_one_out_of_reach_is_an_error_and_after_that_what_it_said(cluster: Cluster) -> None:
    cluster.reachable = False
    mark = cluster.mark()
    with pytest.raises(StoreError, match="ConfigMap ops/c-access cannot be read: ClientConnectorError"):
        mark.read()
    cluster.reachable, cluster.data = True, {"access": "keyed"}
    assert mark.read() is Mark.KEYED
    cluster.reachable, cluster.now = False, 2 * FRESH_SECONDS
    assert mark.read() is Mark.KEYED
    with pytest.raises(StoreError, match="cannot be written"):
        mark.write(Mark.LOST)


def test_before_there_is_a_client_it_is_out_of_reach() -> None:
    with pytest.raises(StoreError, match="is not asked yet"):
        ConfigMapMark("ops", "c-access").read()


def test_a_first_installation_is_open(cluster: Cluster, tmp_path: Path) -> None:
    assert loaded(opened(cluster, tmp_path)).closed is ClosedReason.NO
    assert cluster.asked == ["GET"], "nothing is written before there are keys"


def keyed(cluster: Cluster, folder: Path) -> None:
    tenants = opened(cluster, folder)
    loaded(tenants)
    tenants.create(TENANT)
    tenants.add_key(key(1))


def test_an_emptied_volume_stays_closed_until_somebody_decides(cluster: Cluster, tmp_path: Path) -> None:
    keyed(cluster, tmp_path)
    emptied(tmp_path)
    tenants = opened(cluster, tmp_path)
    assert loaded(tenants).closed is ClosedReason.LOST
    tenants.admit_all()
    assert loaded(tenants).closed is ClosedReason.NO
    assert cluster.data == {}
    emptied(tmp_path)
    assert loaded(opened(cluster, tmp_path)).closed is ClosedReason.NO


@pytest.mark.parametrize("how", ["unreachable", "forbidden"])
def test_an_empty_volume_is_not_read_while_the_cluster_cannot_say_whether_it_was_so_before(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    keyed(cluster, tmp_path)
    emptied(tmp_path)
    cluster.reachable, cluster.status = how != "unreachable", 403 if how == "forbidden" else 0
    tenants = opened(cluster, tmp_path)
    with pytest.raises(StoreError, match="ConfigMap ops/c-access cannot be read"):
        tenants.load(None)
    assert not tenants.never_keyed()
    cluster.reachable, cluster.status = True, 0
    assert loaded(tenants).closed is ClosedReason.LOST


def test_a_volume_that_says_that_there_never_was_a_key_needs_no_cluster(cluster: Cluster, tmp_path: Path) -> None:
    loaded(opened(cluster, tmp_path))
    cluster.reachable = False
    assert loaded(opened(cluster, tmp_path)).closed is ClosedReason.NO


def test_a_store_with_keys_needs_no_cluster(cluster: Cluster, tmp_path: Path) -> None:
    keyed(cluster, tmp_path)
    (tmp_path / "x.db.access").unlink()
    cluster.reachable = False
    tenants = opened(cluster, tmp_path)
    assert loaded(tenants).keys
    assert "ConfigMap ops/c-access cannot be read" in tenants.problem


def test_where_it_cannot_be_written_no_key_is_made(cluster: Cluster, tmp_path: Path) -> None:
    tenants = opened(cluster, tmp_path)
    loaded(tenants)
    tenants.create(TENANT)
    cluster.status = 403
    with pytest.raises(StoreError, match="ConfigMap ops/c-access cannot be written"):
        tenants.add_key(key(1))
    assert tenants.keys(ACME) == []


def test_an_entry_that_somebody_took_away_is_written_again(cluster: Cluster, tmp_path: Path) -> None:
    keyed(cluster, tmp_path)
    cluster.data = {}
    assert loaded(opened(cluster, tmp_path)).keys
    assert cluster.data == {"access": "keyed"}


def test_several_threads_ask_at_once(cluster: Cluster) -> None:
    mark = cluster.mark()

    def write(number: int) -> Mark:
        mark.write((Mark.KEYED, Mark.LOST)[number % 2])
        return mark.read()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(write, range(40))) <= {Mark.KEYED, Mark.LOST}
    assert cluster.mark().read() is mark.read()


def test_a_client_whose_loop_has_ended_is_out_of_reach(cluster: Cluster) -> None:
    ended = asyncio.new_event_loop()
    ended.close()
    mark = ConfigMapMark("ops", "c-access")
    mark.connect(cluster, ended)
    with pytest.raises(StoreError, match="loop is closed"):
        mark.read()


def test_a_marker_without_a_file_asks_the_cluster(cluster: Cluster) -> None:
    """Of a PostgreSQL whose replicas begin with empty folders."""
    cluster.data = {"access": "keyed"}
    said: Callable[[], Mark] = AccessMarker(None, None, cluster.mark()).read
    assert said() is Mark.KEYED
