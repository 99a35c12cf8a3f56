"""``cachefleet console`` and the link that ``up`` prints: on a terminal alone, and a fleet runs without one, too."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from cachefleet_local.cli.commands import up
from cachefleet_local.cli.commands.console_link import console_link
from cachefleet_local.cli.contexts.access import AdminAccess
from cachefleet_local.cli.screen import Screen
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.fleet.data_folder import open_folder
from cachefleet_local.fleet.local_fleet import Prepared
from tests.local.test_command_line import fleet


class Replica:
    """Gives links to the bearer of "right"."""

    def __init__(self) -> None:
        self.url = ""
        self.made = 0

    async def link(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != "Bearer right":
            return web.json_response({"detail": "no"}, status=401)
        self.made += 1
        return web.json_response({"path": f"/console/enter#code{self.made}", "seconds": 600}, status=201)


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    made, app = Replica(), web.Application()
    app.router.add_post("/console/sign-in-links", made.link)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def test_a_link_is_asked_for_with_the_token(replica: Replica) -> None:
    assert (
        await asyncio.to_thread(console_link, AdminAccess(replica.url, "right")) == f"{replica.url}/console/enter#code1"
    )
    with pytest.raises(FailureError, match="the admin token is not accepted"):
        await asyncio.to_thread(console_link, AdminAccess(replica.url, "wrong"))
    with pytest.raises(FailureError, match="has no console"):
        await asyncio.to_thread(console_link, AdminAccess(f"{replica.url}/else", "right"))
    with pytest.raises(FailureError, match="cannot reach the control plane"):
        await asyncio.to_thread(console_link, AdminAccess("http://127.0.0.1:1", "right"))


def prepared(folder: Path, replica: Replica, *, said: str = "right", browse: bool = False) -> Prepared:
    made = fleet()
    data = open_folder(folder)
    data.admin_token_file.write_text(said)
    plan = replace(made.plan, internal_url=replica.url)
    return replace(made, folder=data, plan=plan, options=replace(made.options, browse=browse))


@pytest.mark.parametrize(
    ("terminal", "browse", "told", "opens"),
    [
        (True, False, True, False),
        (True, True, True, True),
        (False, False, False, False),
        (False, True, False, True),
    ],
)
async def test_a_link_is_for_people_and_for_no_log(
    tmp_path: Path,
    replica: Replica,
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: bool,
    browse: bool,
    told: bool,
    opens: bool,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=terminal))
    link = await up._console(prepared(tmp_path, replica, browse=browse), screen)
    assert bool(link) is told
    assert bool(opened) is opens
    assert "code" not in out.getvalue()


async def test_a_fleet_runs_without_a_link(tmp_path: Path, replica: Replica) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=200))
    assert await up._console(prepared(tmp_path, replica, said="old"), screen) == ""
    assert "the admin token is not accepted" in out.getvalue()
