"""Nobody but vLLM makes a prompt out of messages, or ids out of text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.requirements.found import ROOT

PACKAGES: Final = ("core", "controlplane", "local", "operator", "worker")
MAKERS: Final = {"jinja2", "transformers", "tokenizers", "tiktoken", "sentencepiece", "mistral_common"}
"""Libraries by which templates are filled or text is encoded."""
MEMO: Final = "worker/cachefleet_worker/plugin/tokens/tokenizer.py"
"""Within vLLM: remembers what vLLM's own tokenizer says of parts, and compares."""
PAGES: Final = "controlplane/cachefleet_controlplane/console/templating.py"
"""Fills the console's pages."""
WHERE: Final = "worker/cachefleet_worker/plugin/tokens/short_renders.py"
"""Within vLLM: says on which thread vLLM's own function fills its template."""


def test_a15_no_package_renders_or_encodes_by_itself() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    found = {path.relative_to(ROOT).as_posix() for path in files if MAKERS & set(_imported(path))}
    assert found == {MEMO, PAGES}
    named = [path for path in files if "apply_chat_template" in path.read_text(encoding="utf-8")]
    assert [path.relative_to(ROOT).as_posix() for path in named] == [WHERE]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (name.partition(".")[0] for name in names)
