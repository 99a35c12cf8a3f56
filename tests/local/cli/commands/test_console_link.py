"""``cachefleet console`` and the link that ``up`` prints: on a terminal alone, and a fleet runs without one, too."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from rich.console import Console

from cachefleet_local.cli.command_table import TABLE
from cachefleet_local.cli.commands import up
from cachefleet_local.cli.commands.console_link import console, console_link
from cachefleet_local.cli.contexts.access import AdminAccess, Where
from cachefleet_local.cli.contexts.cluster_access import Cluster, end_forwards
from cachefleet_local.cli.screen import Screen
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.demo.__main__ import NEXT, show_console
from cachefleet_local.fleet.data_folder import open_folder
from cachefleet_local.fleet.local_fleet import Prepared
from cachefleet_local.fleet.processes import CONTROL_PLANE
from tests.controlplane.waiting import until
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
    plan = replace(made.plan, replicas={CONTROL_PLANE: replica.url})
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
    link = await up.signed_in_console(prepared(tmp_path, replica, browse=browse), screen)
    assert bool(link) is told
    assert bool(opened) is opens
    assert "code" not in out.getvalue()


async def test_a_fleet_runs_without_a_link(tmp_path: Path, replica: Replica) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=200))
    assert await up.signed_in_console(prepared(tmp_path, replica, said="old"), screen) == ""
    assert "the admin token is not accepted" in out.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
async def test_the_demo_tells_people_where_to_look_on(tmp_path: Path, replica: Replica, *, terminal: bool) -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=terminal, width=40))
    await show_console(prepared(tmp_path, replica), screen)
    assert (f"{replica.url}/console/enter#code1" in out.getvalue()) is terminal


def test_the_demo_ends_with_commands_that_there_are() -> None:
    named = {line.split()[1] for line in NEXT if line.startswith("  cachefleet ")}
    assert {"up", "console"} <= named <= set(TABLE)


KUBECTL = """#!{python}
import json, pathlib, sys, time
if "services" in sys.argv:
    port = {{"name": "internal", "port": 8081, "appProtocol": "http"}}
    print(json.dumps({{"items": [{{"metadata": {{"namespace": "n", "name": "s"}}, "spec": {{"ports": [port]}}}}]}}))
elif "token" in sys.argv:
    print("right")
else:
    print("Forwarding from 127.0.0.1:{port} -> 8081", flush=True)
    while not pathlib.Path(__file__).with_name("end").exists():
        time.sleep(0.01)
"""


async def test_a_link_through_kubectl_leads_somewhere_until_its_port_ends(
    tmp_path: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, port=replica.url.rpartition(":")[2]))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    where = SimpleNamespace(obj=Where(cluster=Cluster(service_account="serving/sre")))
    given = dict.fromkeys(("context", "url", "token_file", "data_dir"))
    asking = asyncio.create_task(asyncio.to_thread(console, where, browse=False, **given))
    said: list[str] = []

    def told() -> bool:
        said.extend(capsys.readouterr())
        return "until Ctrl-C" in "".join(said)

    await until(told)
    assert f"{replica.url}/console/enter#code1\n" in "".join(said)
    assert not asking.done()
    (tmp_path / "end").touch()
    await asking
    end_forwards()
