"""One version: every place names the same, one command sets it, and the changelog has a page on it."""

from __future__ import annotations

import shutil
from importlib.metadata import version as installed
from pathlib import Path

import pytest

from release.version import PLACES, ROOT, VersionError, changes, named_versions, set_version, version

PAGE: int = 80
"""Lines that a person reads of a release."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that name the version."""
    for file in (*PLACES, "CHANGELOG.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_every_place_names_the_same_version() -> None:
    assert {named for _, named in named_versions()} == {version()}
    assert installed("cachefleet") == installed("cachefleet-native") == version()


@pytest.mark.parametrize("wanted", ["0.2.0", "1.0.0rc1"])
def test_one_command_sets_all_of_them(clone: Path, wanted: str) -> None:
    set_version(wanted, clone)
    assert version(clone) == wanted
    assert [named for _, named in named_versions(clone)] == [wanted] * sum(map(len, PLACES.values()))


@pytest.mark.parametrize("file", [file for file in PLACES if file != "pyproject.toml"])
def test_a_place_that_has_another_is_named(clone: Path, file: str) -> None:
    text = (clone / file).read_text()
    (clone / file).write_text(text.replace(version(), "0.0.9"))
    with pytest.raises(VersionError, match=rf"{file} has 0\.0\.9"):
        version(clone)


def test_a_place_that_names_none_any_more_is_named(clone: Path) -> None:
    (clone / "README.md").write_text("")
    with pytest.raises(VersionError, match=r"README\.md should name the version once"):
        version(clone)


@pytest.mark.parametrize("wanted", ["", "1", "v0.2.0", "0.2", "0.2.0-rc1", "0.2.0\n"])
def test_what_is_no_version_is_refused(clone: Path, wanted: str) -> None:
    before = version(clone)
    with pytest.raises(VersionError, match="three numbers"):
        set_version(wanted, clone)
    assert version(clone) == before


def test_the_changelog_has_a_page_on_it() -> None:
    assert 10 < len(changes(version()).splitlines()) <= PAGE


def test_the_changelog_begins_with_what_is_not_released() -> None:
    heads = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert heads[0] == "## [Unreleased]"
    assert heads[1].startswith(f"## [{version()}] - ")


def test_a_version_without_its_section_is_refused(clone: Path) -> None:
    with pytest.raises(VersionError, match=r"## \[9\.9\.9\]"):
        changes("9.9.9", clone)
