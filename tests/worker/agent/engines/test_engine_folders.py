"""An engine's name stands in its own folder and in the agent's wiring, and nowhere else in the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefleet_worker import agent

ROOT = Path(agent.__file__).parent
ENGINES = ROOT / "engines"
WIRING = ROOT / "wiring.py"


def names() -> list[str]:
    return [folder.parent.name for folder in ENGINES.glob("*/__init__.py")]


def mentions(name: str) -> set[Path]:
    return {path for path in ROOT.rglob("*.py") if name in path.read_text().lower()}


@pytest.mark.parametrize("name", names())
def test_an_engine_is_named_in_its_folder_and_where_it_is_wired(name: str) -> None:
    beyond = {path for path in mentions(name) if ENGINES / name not in path.parents}
    assert beyond == {WIRING}


def test_there_is_an_engine() -> None:
    assert names() == ["vllm"]
