import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from cachefleet_operator.controlplane_client.client import MAX_BYTES, ControlPlaneClient, NoControlPlane
from cachefleet_operator.reasons import Reason

pytestmark = pytest.mark.usefixtures("hurried")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Failures(list[str]):
    """Reasons of what was not answered."""


@asynccontextmanager
async def asking(
    handler: Handler, token_file: Path | None = None
) -> AsyncIterator[tuple[ControlPlaneClient, Failures]]:
    app = web.Application()
    app.router.add_get("/admin/v1/pools/{namespace}/{name}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    failures = Failures()
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            yield ControlPlaneClient(session, url, token_file=token_file, at_once=2, failed=failures.append), failures
    finally:
        await runner.cleanup()


def answering(status: int, body: bytes) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    return handler


async def test_asks_for_a_pool_with_the_token_as_it_is_now(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path, request.headers["Authorization"]))
        return web.json_response({"key": "serving/demo", "members": [{"name": "demo-a"}]})

    token = tmp_path / "token"
    async with asking(handler, token) as (client, failures):
        for text in ("one\n", "two"):
            token.write_text(text)
            facts = await client.ask("serving/demo", seconds=30)
            assert facts.pool is not None
            assert facts.pool.members[0].name == "demo-a"
    path = "/admin/v1/pools/serving/demo"
    assert seen == [(path, "Bearer one"), (path, "Bearer two")]
    assert failures == []


@pytest.mark.parametrize(
    ("status", "body", "reason", "counted"),
    [
        (404, b"{}", Reason.POOL_NOT_KNOWN, []),
        (401, b"{}", Reason.CONTROL_PLANE_UNREACHABLE, ["401"]),
        (503, b"later", Reason.CONTROL_PLANE_UNREACHABLE, ["503"]),
        (302, b"", Reason.CONTROL_PLANE_UNREACHABLE, ["302"]),
        (200, b"<html>", Reason.CONTROL_PLANE_UNREACHABLE, ["not_understood"]),
        (200, b" " * (MAX_BYTES + 1), Reason.CONTROL_PLANE_UNREACHABLE, ["not_understood"]),
    ],
)
async def test_any_other_answer_is_no_facts(status: int, body: bytes, reason: Reason, counted: list[str]) -> None:
    async with asking(answering(status, body)) as (client, failures):
        facts = await client.ask("serving/demo", seconds=30)
    assert (facts.pool, facts.reason) == (None, reason)
    assert failures == counted


async def test_silence_ends() -> None:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with asking(handler) as (client, failures):
        facts = await client.ask("serving/demo", seconds=0.1)
    assert facts.reason == Reason.CONTROL_PLANE_UNREACHABLE
    assert failures == ["no_answer"]


async def test_waiting_for_a_turn_is_no_silence() -> None:
    """With more pools than questions at once, the last ones would else never be answered."""
    free, begun = asyncio.Event(), asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        begun.set()
        await free.wait()
        return web.json_response({"key": "serving/a"})

    async with asking(handler) as (client, failures):
        first = [asyncio.create_task(client.ask(f"serving/{name}", seconds=30)) for name in "ab"]
        await begun.wait()
        late = asyncio.create_task(client.ask("serving/c", seconds=30))
        impatient = asyncio.create_task(client.ask("serving/d", seconds=3))
        await asyncio.sleep(3.5)  # past one's bound, within the other's
        assert not impatient.done()
        free.set()
        assert all(facts.pool for facts in await asyncio.gather(*first, late, impatient))
    assert failures == []


async def test_nobody_there_and_no_token_are_no_facts(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        for token in (None, tmp_path / "missing"):
            failures = Failures()
            url = "http://127.0.0.1:1"
            client = ControlPlaneClient(session, url, token_file=token, at_once=1, failed=failures.append)
            assert (await client.ask("serving/demo", seconds=30)).reason == Reason.CONTROL_PLANE_UNREACHABLE
            assert failures == ["no_answer"]
    assert (await NoControlPlane().ask("serving/demo", seconds=1)).reason == Reason.NO_CONTROL_PLANE
