"""Commands that texts of the product and its docs advise work as they are typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from cachefleet_local.__main__ import app

ROOT = Path(__file__).parents[2]
PARTS = ("core", "runtime", "worker", "operator", "controlplane", "local")
ADVISED = re.compile(r"(?:(?<!`)`(?:kubectl )?cachefleet ([^`\n]+)`(?!`)|with: cachefleet ([^\"\n]+))")
CODE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\{[^}]*\}")


def advised() -> Iterator[tuple[str, str]]:
    """Where each is, and its words after ``cachefleet``."""
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text())
            for found in ADVISED.finditer(joined):
                yield str(path.relative_to(ROOT)), (found[1] or found[2]).strip()
    for path in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]):
        for block in CODE.findall(path.read_text()):
            for line in block.splitlines():
                for each in re.findall(r"^(?:\$ )?cachefleet ([a-z][^#;|>\n]+)", line):
                    yield str(path.relative_to(ROOT)), each.strip()


def words_of(text: str) -> list[str]:
    """As a person types them, with a word for each placeholder."""
    return shlex.split(re.sub(r"\[[^\]]*\]", "", PLACEHOLDER.sub("x", text)).replace("...", ""))


def parsed(words: list[str]) -> None:
    """Have the command line understand them, and run nothing."""
    command = typer.main.get_command(app)
    context = command.make_context("cachefleet", list(words))
    while (rest := [*context._protected_args, *context.args]) and hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("where", "text"), sorted(set(advised())))
def test_advice_is_understood_as_it_is_typed(where: str, text: str) -> None:
    try:
        parsed(words_of(text))
    except typer.Exit:
        pass
    except Exception as error:  # noqa: BLE001 - of whatever library reads the command line
        pytest.fail(f"{where}: cachefleet {text}: {getattr(error, 'message', error)}")
