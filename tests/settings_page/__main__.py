"""Writes docs/settings.md; with ``--check`` it only says that the page is out of date, and ends with 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.settings_page.page import page

PATH: Final = Path(__file__).parents[2] / "docs" / "settings.md"


def main(arguments: Sequence[str]) -> int:
    if "--check" not in arguments:
        PATH.write_text(page())
        return 0
    if PATH.exists() and PATH.read_text() == page():
        return 0
    sys.stderr.write(f"{PATH.name} is not what the settings say; run: python -m tests.settings_page\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
