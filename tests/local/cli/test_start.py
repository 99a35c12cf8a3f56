"""What a command imports: a start that is quick stays so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cachefleet_local.cli.command_table import TABLE

HEAVY = (
    *("aiohttp", "asyncio", "cachefleet_controlplane", "cachefleet_core.pool", "fastapi", "kubernetes", "msgspec"),
    *("prometheus_client", "pydantic", "rich", "sqlmodel", "vllm", "yaml"),
)
PROBE = """
import atexit, sys
atexit.register(lambda: print("imported:", *sorted(sys.modules)))
from cachefleet_local.__main__ import main
main()
"""
NOWHERE = ("--url", "http://127.0.0.1:1", "--token-file", "token")


def imported(words: tuple[str, ...], folder: object) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=False, cwd=str(folder)
    )
    [told] = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    return set(told.split()[1:])


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("pools", *NOWHERE),
        ("explain", "d1", *NOWHERE),
        ("status", *NOWHERE),
        ("top", "--once", *NOWHERE),
        ("doctor", *NOWHERE),
        ("tenants", "list", *NOWHERE),
        ("contexts", "--help"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_imports_what_it_needs_alone(words: tuple[str, ...], tmp_path: object) -> None:
    (tmp_path / "token").write_text("t")  # type: ignore[operator]
    found = imported(words, tmp_path)
    assert not [name for name in HEAVY if name in found]


def test_the_help_of_all_commands_is_their_own() -> None:
    for name, entry in TABLE.items():
        command = entry.load(name)
        assert command.name == name
        assert entry.help.endswith(".")
