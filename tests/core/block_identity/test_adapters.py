from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.block_identity.adapters import FIRST_REVISION, adapter_namespace, path_revision


@given(st.text())
def test_a_revision_is_no_number_that_an_engine_gives_and_fits_a_signed_word(path: str) -> None:
    assert FIRST_REVISION <= path_revision(path) < 1 << 63
    assert path_revision(path) == path_revision(path)


def test_paths_have_revisions_of_their_own() -> None:
    paths = ["/a", "/a/", "/b", "org/adapter", "", "\ud800"]
    assert len({path_revision(path) for path in paths}) == len(paths)


def test_a_revision_is_the_same_in_every_process() -> None:
    assert adapter_namespace("sql", path_revision("/weights/sql")) == "sql@4cdcf25d2688a3da"


def test_an_engines_own_number_is_no_revision() -> None:
    with pytest.raises(ValueError, match="must be told by the worker plugin"):
        adapter_namespace("sql", 1)
