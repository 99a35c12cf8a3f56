"""The product's version: pyproject.toml has it, others name it; ``python -m release.version 0.2.0`` sets them all."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "pyproject.toml": (r'^version = "(.*)"$',),
    "native/Cargo.toml": (r'^version = "(.*)"$',),
    "native/pyproject.toml": (r'^version = "(.*)"$',),
    "charts/cachefleet/Chart.yaml": (r"^version: (.*)$", r'^appVersion: "(.*)"$', r"^      image: cachefleet:(.*)$"),
    "README.md": (r"`make image TAG=REGISTRY/cachefleet:(\S+?)`",),
    "docs/install.md": (r"^make image TAG=registry\.example/cachefleet:(\S+)",),
}
"""Files that name the version, and how; each pattern matches once."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_SECTION: Final = r"^## \[{}\](?: - \d{{4}}-\d\d-\d\d)?\n(.*?)(?=^## |\Z)"


class VersionError(ValueError):
    """A version that is none, or places that name different ones."""


def version(root: Path = ROOT) -> str:
    """The version that pyproject.toml has; VersionError where another place names another."""
    wanted = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    others = [f"{place} has {named}" for place, named in named_versions(root) if named != wanted]
    if others:
        raise VersionError(f"pyproject.toml has {wanted}, but {', '.join(others)}: python -m release.version {wanted}")
    return wanted


def named_versions(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Each place with the version that it names; VersionError where a pattern does not match exactly once."""
    for file, patterns in PLACES.items():
        text = (root / file).read_text()
        for pattern in patterns:
            named = re.findall(pattern, text, re.MULTILINE)
            if len(named) != 1:
                raise VersionError(f"{file} should name the version once by {pattern!r}, not {len(named)} times")
            yield file, named[0]


def set_version(wanted: str, root: Path = ROOT) -> None:
    """Write it to every place."""
    if _VERSION.fullmatch(wanted) is None:
        raise VersionError(f"{wanted!r} is no version: three numbers, as in 0.2.0, or a candidate, as in 0.2.0rc1")
    for file, patterns in PLACES.items():
        text = (root / file).read_text()
        for pattern in patterns:
            text = re.sub(pattern, lambda match: _replaced(match, wanted), text, flags=re.MULTILINE)
        (root / file).write_text(text)


def changes(of: str, root: Path = ROOT) -> str:
    """The changelog's section of a version; VersionError where there is none."""
    text = (root / "CHANGELOG.md").read_text()
    section = re.search(_SECTION.format(re.escape(of)), text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise VersionError(f"CHANGELOG.md has no section '## [{of}] - YYYY-MM-DD'")
    return section[1].strip()


def _replaced(match: re.Match[str], wanted: str) -> str:
    start, end = match.start(1) - match.start(), match.end(1) - match.start()
    return match[0][:start] + wanted + match[0][end:]


if __name__ == "__main__":
    try:
        [_, *given] = sys.argv
        if given:
            set_version(given[0])
        print(version())
    except VersionError as problem:
        sys.exit(f"release: {problem}")
