"""What the parts of a control plane are made of."""

import os
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.index.block_index import MOST_BYTES
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource
from cachefleet_controlplane.wiring.fleet_parts import index_memory, process_memory
from cachefleet_controlplane.wiring.pool_parts import pool_source
from cachefleet_controlplane.wiring.settings import Settings


@pytest.mark.parametrize("tls", [False, True])
def test_the_source_of_pools_knows_whether_agents_report_by_tls(tmp_path: Path, *, tls: bool) -> None:
    """Else workers of the other kind would wait for agents that cannot come while a pool rolls."""
    given: dict[str, Any] = {"pool_source": "kubernetes", "auth": "kubernetes", "fleet_key_file": tmp_path / "key"}
    api: Any = object()
    folder = {"tls_folder": tmp_path} if tls else {}
    source = pool_source(Settings(**given | folder), api, Metrics(), announced=lambda _: ())
    assert isinstance(source, KubePoolSource)
    assert source._tls is tls


class TestIndexMemory:
    def test_a_containers_bound_counts_and_none_is_the_machines(self, tmp_path: Path) -> None:
        files = (tmp_path / "memory.max", tmp_path / "none")
        machine = process_memory((tmp_path / "none",))
        assert machine == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for text, expected in (("max\n", machine), ("1073741824\n", 1 << 30), (f"{1 << 62}\n", machine)):
            files[0].write_text(text)
            assert process_memory(files) == expected

    def test_half_of_it_is_the_indexs_unless_set(self, tmp_path: Path) -> None:
        given: dict[str, Any] = {"pool_source": "kubernetes", "auth": "kubernetes", "fleet_key_file": tmp_path / "key"}
        unset, set_to = Settings(**given), Settings(**given, index_memory_bytes=1 << 27)
        assert index_memory(unset, 4 << 30) == 2 << 30
        assert index_memory(unset, 64 << 30) == MOST_BYTES
        assert index_memory(set_to, 4 << 30) == 1 << 27
