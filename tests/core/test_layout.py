"""What holds for the repository as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MACHINE_PATHS = re.compile(r"(?<![\w./~-])/(root|work|home)/[\w.]")
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("registry", "npmjs", "org"),
            ("crates", "io"),
            ("proxy", "golang", "org"),
            ("download", "pytorch", "org"),
            ("registry-1", "docker", "io"),
        )
    )
    + r"|https?://[^\s/\"']*(artifactory|/simple\b)"
)


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for name in tracked():
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        found += [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in pattern.finditer(text)]
    return found


def test_the_operator_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert (ROOT / "operator" / "cachefleet_operator" / "__init__.py").exists()
    seen = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    assert not Path(seen.stdout.strip()).is_relative_to(ROOT / "operator")


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert matching(MACHINE_PATHS) == []


def test_no_file_names_a_package_registry() -> None:
    assert matching(REGISTRIES) == []


@pytest.mark.parametrize("lock", ["uv.lock", "package-lock.json", "Cargo.lock"])
def test_no_lock_file_that_writes_down_registries(lock: str) -> None:
    assert [name for name in tracked() if Path(name).name == lock] == []


def test_the_patterns_above_find_what_they_look_for() -> None:
    for text in ("see /" + "root/x", "'/" + "home/me'", "(/" + "work/main)"):
        assert MACHINE_PATHS.search(text)
    for text in ("https://example.test/" + "work/main", "a/home/b", "~/" + "work/x", "~/.cache"):
        assert not MACHINE_PATHS.search(text)
    assert REGISTRIES.search("https://files." + "pythonhosted" + ".org/a")
