"""``cachefleet flush``: what a person reads and is asked, and what the command asks of the admin API."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.flushing.flush_scope import Scope
from cachefleet_controlplane.flushing.flusher import WorkerFlush
from cachefleet_controlplane.store.database import Database
from tests.controlplane.admin.test_flush_routes import Flushing
from tests.local.cli.tenants.test_tenant_commands import served, token_of
from tests.local.test_command_line import run

Told = tuple[int, str, str]
TABLE = """\
WORKER  POOL  BLOCKS  TOKENS  BUSY  ERROR
a       ns/p       3      48     1  -
b       ns/p       0       0     0  no plugin
3 blocks (48 tokens) {}; 1 are in use and stay
"""
WOULD, GONE = TABLE.format("would go"), TABLE.format("are gone")


class Terminal(io.StringIO):
    """Standard input of somebody who answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def flushing() -> Flushing:
    return Flushing()


@pytest.fixture
def flush(
    tmp_path: Path, flushing: Flushing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Told]]:
    with (
        closing(Database(f"sqlite:///{tmp_path / 'x.db'}", timeout_seconds=0.5)) as database,
        served(database, flush=flushing) as url,
    ):
        given = ("--url", url, "--token-file", str(token_of(tmp_path)))

        def command(*arguments: str, answer: str | None = None) -> Told:
            stdin = io.StringIO() if answer is None else Terminal(f"{answer}\n")
            monkeypatch.setattr(sys, "stdin", stdin)
            return run("flush", *arguments, *given, monkeypatch=monkeypatch, capsys=capsys)

        yield command


def test_a_dry_run_says_what_would_go(flush: Callable[..., Told], flushing: Flushing) -> None:
    assert flush("--tenant", "acme", "--dry-run") == (1, WOULD, "")
    assert flushing.asked == [(Scope(tenant="acme"), True)]


def test_on_a_terminal_it_shows_a_dry_run_and_asks(flush: Callable[..., Told], flushing: Flushing) -> None:
    status, out, err = flush("--model", "m", "--worker", "a", answer="y")
    assert (status, out) == (1, GONE)
    assert err.startswith(WOULD)
    assert "Flush them? [y/N]" in err
    scope = Scope(model="m", worker="a")
    assert flushing.asked == [(scope, True), (scope, False)]


def test_no_is_no(flush: Callable[..., Told], flushing: Flushing) -> None:
    status, out, err = flush("--all", answer="n")
    assert (status, out) == (1, "")
    assert err.endswith("[y/N] nothing was flushed\n")
    assert flushing.asked == [(Scope(everything=True), True)]


def test_nothing_to_flush_is_not_asked_about(
    flush: Callable[..., Told], flushing: Flushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.controlplane.admin.test_flush_routes.TOLD", [WorkerFlush(worker="a", pool="ns/p")])
    status, out, err = flush("--pool", "ns/p", answer="y")
    assert (status, out) == (0, "")
    assert "0 blocks (0 tokens) would go" in err
    monkeypatch.setattr("tests.controlplane.admin.test_flush_routes.TOLD", [])
    assert flush("--pool", "ns/p", "--yes") == (0, "no worker has anything of this\n", "")
    assert [dry for _, dry in flushing.asked] == [True, False]


def test_a_script_has_to_say_yes(flush: Callable[..., Told], flushing: Flushing) -> None:
    status, out, err = flush("--all")
    assert (status, out) == (2, "")
    assert "--yes" in err
    assert flushing.asked == []
    status, out, err = flush("--all", "--yes", "-o", "json")
    assert json.loads(out)["workers"][0] == {
        "worker": "a",
        "pool": "ns/p",
        "blocks": 3,
        "tokens": 48,
        "busy": 1,
        "error": None,
    }
    assert (status, err, flushing.asked) == (1, "", [(Scope(everything=True), False)])


def test_a_prompt_is_a_requests_or_a_text(flush: Callable[..., Told], flushing: Flushing, tmp_path: Path) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "system", "content": "x"}]}
    (tmp_path / "body.json").write_text(json.dumps(body))
    flush("--prompt", str(tmp_path / "body.json"), "--dry-run")
    flush("--prompt", str(tmp_path / "body.json"), "--model", "n", "--dry-run")
    flush("--text", "Once upon", "--model", "n", "--dry-run")
    assert [scope for scope, _ in flushing.asked] == [
        Scope(model="m", prompt=body),
        Scope(model="n", prompt=body),
        Scope(model="n", prompt={"prompt": "Once upon"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say what to flush"),
        (("--prompt", "x", "--text", "y"), "one of them"),
        (("--prompt", "/nowhere/body.json"), "cannot read"),
        (("--prompt", "BAD"), "not JSON"),
        (("--prompt", "LIST"), "must be an object"),
    ],
)
def test_bad_input(
    flush: Callable[..., Told], flushing: Flushing, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    for name, text in (("BAD", "{"), ("LIST", "[]")):
        (tmp_path / name).write_text(text)
        arguments = tuple(str(tmp_path / name) if each == name else each for each in arguments)
    status, out, err = flush(*arguments, "--yes")
    assert (status, out) == (2, "")
    assert said in err
    assert flushing.asked == []
