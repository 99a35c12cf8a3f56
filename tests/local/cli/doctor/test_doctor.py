"""``cachefleet doctor`` against the real admin API, before a fake engine that is really examined."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from cachefleet_local import __main__ as cli
from tests.controlplane.admin.served_admin import admin_over, listening, mounted
from tests.controlplane.gateway.converse.talk import Kept, introduce, keyed
from tests.controlplane.gateway.harness import MODEL, Front, front
from tests.local.cli.tenants.test_tenant_commands import token_of

Told = tuple[int, str, str]
Command = Callable[..., Awaitable[Told]]


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@pytest.fixture
async def gate(kept: Kept) -> AsyncIterator[Front]:
    async with keyed() as worker, front([worker], turns=kept) as gate:
        introduce(gate)
        yield gate


@pytest.fixture
async def command(
    gate: Front, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Command]:
    monkeypatch.setenv("CACHEFLEET_ADMIN_TOKEN_FILE", str(token_of(tmp_path)))

    def main(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["cachefleet", "doctor", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    async def run(*arguments: str) -> Told:
        status = await asyncio.to_thread(main, *arguments)
        told = capsys.readouterr()
        return status, told.out, told.err

    async with listening(mounted(admin_over(kept.database, certifier=kept.examiner))) as port:
        monkeypatch.setenv("CACHEFLEET_ADMIN_URL", f"http://127.0.0.1:{port}")
        yield run


async def test_a21_a_sound_profile_is_certified_and_listed(command: Command) -> None:
    status, out, err = await command("certify", "--chats", "2", "-o", "json")
    assert (status, err) == (0, "")
    (item,) = json.loads(out)
    assert (item["certified"], item["model"], item["counts"]["chats"]) == (True, f"default/{MODEL}", 2)
    status, out, _ = await command("certificates")
    assert status == 0
    assert "yes" in out
    assert "2 chats" in out


async def test_a21_one_that_is_refused_says_why_and_fails(command: Command, gate: Front) -> None:
    worker = gate.engines[0]
    worker.fail_next(503, 9)  # type: ignore[attr-defined] # a fake engine
    status, out, err = await command("certify", "--chats", "1", "--model", MODEL)
    assert status == 1
    assert " no " in out
    assert "could not be rendered" in err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("certify", "--model", "nobody"), 1, "nobody"),
        (("certify", "--pool", "default/nobody"), 1, "nobody"),
        (("certify", "--chats", "0"), 2, ""),
        (("certify", "--chats", "201"), 2, ""),
    ],
)
async def test_bad_input_is_told(command: Command, arguments: tuple[str, ...], status: int, words: str) -> None:
    found = await command(*arguments)
    assert found[0] == status
    assert words in found[2]


async def test_a21_a_pools_model_is_examined(command: Command) -> None:
    status, out, _ = await command("certify", "--pool", "default/demo", "--chats", "1", "-o", "json")
    assert (status, len(json.loads(out))) == (0, 1)
