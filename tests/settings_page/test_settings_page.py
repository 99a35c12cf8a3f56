"""The page of all settings: what its rows say, and that it is known to be out of date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cachefleet_core.environment.removed_variables import REMOVED
from tests.settings_page import __main__ as command
from tests.settings_page.page import page
from tests.settings_page.rows import (
    PROCESSES,
    Row,
    agent_rows,
    control_plane_rows,
    docstrings,
    operator_rows,
    plugin_rows,
)


def row(rows: list[Row], name: str) -> Row:
    return next(each for each in rows if each.variable == name)


class Said:
    whole: int = 1
    """How many. Raise it for more."""
    silent: int = 1
    never: int = 1
    """How many."""


def test_a_docstring_says_what_a_setting_is_and_when_to_change_it() -> None:
    assert docstrings(Said, ["whole"]) == {"whole": ("How many.", "Raise it for more.")}
    with pytest.raises(ValueError, match="silent has no docstring"):
        docstrings(Said, ["silent"])
    with pytest.raises(ValueError, match="never: the docstring does not say when"):
        docstrings(Said, ["never"])


def test_rows_have_defaults_and_bounds() -> None:
    body = row(control_plane_rows(), "CACHEFLEET_REQUEST_MAX_BYTES")
    assert (body.default, body.allowed) == ("32 MiB", "from 1 KiB to 1 GiB")
    key = row(control_plane_rows(), "CACHEFLEET_FLEET_KEY_FILE")
    assert (key.default, key.allowed) == ("required", "a path")
    policy = row(control_plane_rows(), "CACHEFLEET_POLICY")
    assert (policy.default, policy.allowed) == ("`cacheAware`", "`cacheAware`, `leastLoaded`, `roundRobin`")
    assert row(operator_rows(), "KUBECONFIG").default == "empty"
    assert row(agent_rows(), "CACHEFLEET_ADAPTER_LOAD_SECONDS").allowed == "above 0"
    assert row(plugin_rows(), "CACHEFLEET_TOKENS_CACHE_BYTES").default == "256 MiB"


@pytest.mark.parametrize("process", PROCESSES)
def test_a_variable_is_read_or_was_removed(process: str) -> None:
    read = {each.variable.removeprefix("CACHEFLEET_") for each in PROCESSES[process]()}
    (removed,) = [names for name, names in REMOVED.items() if name == process.lower()]
    assert read & removed == set()


def test_lines_of_text_fit() -> None:
    assert [line for line in page().splitlines() if len(line) > 119 and not re.match(r"\|", line)] == []


def test_a_page_that_is_out_of_date_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PATH", tmp_path / "settings.md")
    assert command.main(["--check"]) == 1
    assert "run: python -m tests.settings_page" in capsys.readouterr().err
    assert command.main([]) == 0
    assert command.main(["--check"]) == 0
    (tmp_path / "settings.md").write_text(page() + "more")
    assert command.main(["--check"]) == 1
