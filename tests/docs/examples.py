"""Examples in the pages that people read: fenced blocks, and the commands in those that show a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachefleet_local.cli.command_table import TABLE

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PROGRAMS: Final = frozenset(
    {"cachefleet", "curl", "export", "helm", "kubectl", "make", "python", ".venv/bin/pytest", ".venv/bin/python"}
)
"""First words of the commands that pages show."""
SHELLS: Final = frozenset({"", "bash", "sh"})
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SETTING: Final = re.compile(r"[A-Z_]+=")
_SETTINGS: Final = re.compile(r"^(?:[A-Z_]+=(?:<[^>]*>|\"[^\"]*\"|\$\([^)]*\)|\S)*(?:\s+|$))+")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, the line of its fence, its language, its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands of a block that shows a shell; what it answers is none. Nothing for any other block."""
        if self.language not in SHELLS:
            return ()
        told = list(_logical_lines(self.text))
        if not told or told[0].startswith(" ") or not _is_command(told[0]):
            return ()  # a drawing, a formula, or what something prints
        return tuple(line.removeprefix("$ ") for line in told if _is_command(line))


def blocks() -> Iterator[Block]:
    """Every block of every page, in their order."""
    for page in PAGES:
        text = page.read_text()
        for found in _FENCE.finditer(text):
            yield Block(str(page.relative_to(ROOT)), text.count("\n", 0, found.start()) + 1, found[1], found[2])


def program(command: str) -> str:
    """The first word of a command that is no setting of a variable; "" where there is nothing else."""
    return _SETTINGS.sub("", command.removeprefix("$ ")).partition(" ")[0].strip()


def _is_command(line: str) -> bool:
    first = program(line)
    if first == "cachefleet":
        return line.partition("cachefleet ")[2].partition(" ")[0] in TABLE
    return first in PROGRAMS or _SETTING.match(line) is not None


def _logical_lines(text: str) -> Iterator[str]:
    """Lines, with those joined that a backslash or an open quote joins."""
    held = ""
    for line in text.splitlines():
        held = f"{held}\n{line}" if held else line
        if _is_command(held) and (held.endswith("\\") or not _closed(held)):
            continue
        if held.strip():
            yield held
        held = ""
    if held.strip():
        yield held


def _closed(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True
