"""Where programs of a cluster are kept: those whose source is here are built anew when it changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.cluster import binaries
from e2e.cluster.binaries import KSTATUS, NODE_PROGRAMS, PROGRAMS, Program, cached

OURS = [KSTATUS, *(each for each in NODE_PROGRAMS if each.name in {"coredns", "devicedriver", "pause"})]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the modules, which a test may change."""
    copy = Path(shutil.copytree(binaries.MODULES, tmp_path / "modules"))
    monkeypatch.setattr(binaries, "MODULES", copy)
    return copy


@pytest.mark.parametrize("program", OURS, ids=lambda program: program.name)
def test_one_whose_source_changes_is_built_anew(program: Program, modules: Path) -> None:
    before = {each: cached(each) for each in OURS}
    source = modules / program.module / "main.go"
    source.write_text(source.read_text() + "// changed\n")
    assert {each for each in OURS if cached(each) != before[each]} == {program}


def test_what_is_no_source_changes_nothing(modules: Path) -> None:
    before = cached(KSTATUS)
    (modules / "kstatus" / "README.md").write_text("read me")
    assert cached(KSTATUS) == before


def test_those_of_others_are_kept_by_their_version() -> None:
    for program in PROGRAMS:
        assert cached(program).parent.name == f"{program.module}-{binaries.version(program.module)}"
