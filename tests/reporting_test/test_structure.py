"""What crosses a limit is named, with its place."""

from pathlib import Path
from typing import Any

import pytest

from tests.reporting.structure import findings, read_package, table

LIMITS: dict[str, Any] = {
    "function_median": 6,
    "function_p90": 20,
    "function_longest": 3,
    "module_median": [1, 160],
    "module_longest": 12,
    "module_imports": 1,
    "parameters": 2,
    "folder_files": 2,
    "broad_excepts": 1,
    "documented": 0.5,
}
GOOD = '''
def add(a, b):
    """The sum."""
    return a + b
'''
BROAD = '''
def run(work):
    """Runs it."""
    try:
        work()
    except Exception:{reason}
        print(1)
'''


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("top/package")
    (folder / "room").mkdir(parents=True)
    (folder / "good.py").write_text(GOOD)
    sign(folder, "good", "long", "deep", "bare", "broad")
    sign(folder / "room", "good", "a", "one", "two", "three")
    return folder


def sign(folder: Path, *names: str) -> None:
    (folder / "__init__.py").write_text('"""A room.\n\n' + "\n".join(f"{name}  a file" for name in names) + '\n"""\n')


def found(folder: Path, **changes: Any) -> list[str]:
    return findings([read_package("package", folder)], LIMITS | changes)


def test_good_source_has_no_findings_and_a_table(source: Path) -> None:
    assert found(source) == []
    header, package, every = table([read_package("package", source)]).splitlines()
    assert header.split()[0] == "modules"
    assert package.split()[:2] == ["package", "1"]
    assert every.split()[-1] == "100.0%"


@pytest.mark.parametrize(
    ("name", "text", "finding"),
    [
        ("long.py", "x = 1\n" * 13, "top/package/long.py: 13, at most 12 (module_longest)"),
        ("deep.py", "def f():\n" + "    x = 1\n" * 4, "top/package/deep.py:1 f: 4, at most 3 (function_longest)"),
        ("room/good.py", GOOD, "package has several files called good.py"),
        ("bare.py", "def a(): ...\ndef b(): ...\n", "public docstrings: 33.3%, at least 50%"),
        (
            "deep.py",
            "class _A:\n    def f(self, a, *, b, c): ...\n",
            "parameters of top/package/deep.py:2 f: 3, at most 2 (parameters)",
        ),
        (
            "deep.py",
            "from cachefleet_a import a\nfrom cachefleet_b import b, c\nfrom other import d\n",
            "modules of ours that top/package/deep.py imports from: 2, at most 1 (module_imports)",
        ),
    ],
)
def test_what_crosses_a_limit_is_named(source: Path, name: str, text: str, finding: str) -> None:
    (source / name).write_text(text)
    assert found(source) == [finding]


def test_a_broad_except_needs_a_reason_unless_it_raises_again(source: Path) -> None:
    path = source / "broad.py"
    path.write_text(BROAD.format(reason="  # a task of its own"))
    assert found(source, function_longest=9) == []
    path.write_text(BROAD.format(reason=""))
    assert found(source, function_longest=9) == ["top/package/broad.py:6: a broad except without its reason"]
    path.write_text(BROAD.format(reason="").replace("print(1)", "raise"))
    assert found(source, function_longest=9, broad_excepts=0) == []


def test_imports_that_go_round_between_folders_are_named(source: Path) -> None:
    (source / "other").mkdir()
    sign(source / "other", "b")
    (source / "room" / "a.py").write_text("from package.other.b import x\n")
    (source / "other" / "b.py").write_text("from package.room import a\n")
    assert found(source) == ["imports go round: package.room -> package.other -> package.room"] or found(source) == [
        "imports go round: package.other -> package.room -> package.other"
    ]


def test_a_file_that_its_folder_does_not_list_is_named(source: Path) -> None:
    (source / "new.py").write_text("x = 1\n")
    assert found(source) == ["top/package/__init__.py has no line for new"]


def test_a_crowded_folder_is_named(source: Path) -> None:
    for name in ("one", "two", "three"):
        (source / "room" / f"{name}.py").write_text("x = 1\n")
    assert found(source) == ["files in top/package/room: 3, at most 2 (folder_files)"]


def test_a_class_is_named_once_but_for_those_of_the_admin_api(source: Path) -> None:
    first, second = source / "long.py", source / "room" / "a.py"
    first.write_text('class _A: ...\nclass B:\n    """It."""\n')
    second.write_text('class _A: ...\nclass B(Schema):\n    """It."""\n')
    assert found(source) == []
    second.write_text('class B:\n    """It."""\n')
    assert found(source) == ["package has several classes called B"]
