"""Pages of the documentation that findings refer to, as this version has them: plain text below linkable headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from markupsafe import Markup, escape

FOLDER: Final = Path(__file__).parent / "docs"
"""Links to the pages in a checkout, the pages themselves in a wheel."""
NAMES: Final = ("block-index", "continuation", "operations", "tenants", "troubleshooting", "worker")
_HEADING: Final = re.compile(r"^(#{1,4}) (.+)$")
_LINK: Final = re.compile(r"\[([^\]\n]+)\]\(([a-z-]+)?(?:\.md)?(#[\w-]+)?\)")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it, in Markdown."""

    level: int
    title: str
    anchor: str
    """As GitHub makes it of the title."""
    text: Markup


class DocPages:
    """The pages that are there, by name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @cached_property
    def names(self) -> frozenset[str]:
        """Pages that can be shown; none where the package came without them."""
        return frozenset(name for name in NAMES if self._file(name) is not None)

    def sections(self, name: str) -> list[Section]:
        """The sections of a page; none where there is no such page."""
        file = self._file(name) if name in NAMES else None
        return [] if file is None else parsed(file.read_text(encoding="utf-8"))

    def _file(self, name: str) -> Path | None:
        file = self._folder / f"{name}.md"
        return file if file.is_file() else None


def parsed(text: str) -> list[Section]:
    """The sections of a page; what looks like a heading within a code block is none."""
    found: list[tuple[int, str, list[str]]] = []
    code = False
    for line in text.splitlines():
        code ^= line.startswith("```")
        heading = None if code else _HEADING.match(line)
        if heading is not None:
            found.append((len(heading[1]), heading[2], []))
        elif found:
            found[-1][2].append(line)
    return [Section(level, title, anchor(title), linked("\n".join(lines).strip())) for level, title, lines in found]


def anchor(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def linked(text: str) -> Markup:
    """The text, escaped, with links to pages that are here."""
    parts, at = [], 0
    for found in _LINK.finditer(text):
        page = found[2] or ""
        if not page or page in NAMES:
            where = f"/console/docs/{page}{found[3] or ''}" if page else found[3]
            parts += [escape(text[at : found.start()]), Markup('<a href="{}">{}</a>').format(where, found[1])]
            at = found.end()
    return Markup("").join([*parts, escape(text[at:])])
