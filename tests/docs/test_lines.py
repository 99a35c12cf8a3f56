"""Lines of the pages that people read: at most 120 characters, so that they can be read and compared side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.examples import PAGES, ROOT

LONGEST: Final = 120
ADRS: Final = sorted((ROOT / "docs" / "adr").glob("*.md"))
_FENCED: Final = re.compile(r"^\s*```.*?^\s*```\s*$", re.MULTILINE | re.DOTALL)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced blocks and tables, each with its number."""
    text = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if not line.lstrip().startswith("|"))


def too_long(text: str) -> list[int]:
    """Numbers of the lines that are too long; one that is a single word, such as an address, cannot be shorter."""
    return [number for number, line in prose(text) if len(line) > LONGEST and " " in line.strip().removeprefix("- ")]


@pytest.mark.parametrize("page", [*PAGES, *ADRS, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_lines_of_pages_are_not_too_long(page: Path) -> None:
    assert too_long(page.read_text()) == []


def test_tables_and_fenced_blocks_may_be_wider() -> None:
    wide = "a " * 61
    assert too_long(f"```\n{wide}\n```\n| {wide} |\n{wide}\n") == [5]
