"""``cachefleet doctor hit`` through a real gateway before fake engines."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.transport.served_tls import ServedTls
from cachefleet_core.tls_names import AUTHORITIES, CERTIFICATE
from cachefleet_local import __main__ as cli
from cachefleet_local.cli.doctor import hit_probe
from cachefleet_local.cli.doctor.hit_probe import WORDS, opening, shortcomings
from tests.controlplane.gateway.harness import MODEL, Known, engine, front, pool
from tests.fakes.secret_volume import SecretVolume, authority, issued

Result = tuple[int, str, str]
Hit = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
def hit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hit:
    """Run the command in a thread: the gateway it asks is in this one, and has the worker's report at once."""
    monkeypatch.setattr(hit_probe, "PAUSE_SECONDS", 0.05)

    def main(arguments: tuple[str, ...]) -> int:
        monkeypatch.setattr(sys, "argv", ["cachefleet", "doctor", "hit", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    async def run(*arguments: str) -> Result:
        status = await asyncio.to_thread(main, arguments)
        told = capsys.readouterr()
        return status, told.out, " ".join(told.err.split())

    return run


async def test_the_second_turn_is_a_hit(hit: Hit) -> None:
    async with engine() as worker, front([worker]) as gate:
        status, out, err = await hit("--gateway", gate.url + "/v1/", "--output", "json")
        assert (status, err) == (0, "")
        first, second = json.loads(out)
        assert (first["cachedTokens"], first["worker"], first["model"]) == (0, "demo-0", MODEL)
        assert second["cachedTokens"] >= 0.8 * first["promptTokens"] > 3 * 16
        assert second["promptTokens"] > first["promptTokens"]
        assert [record.id for record in gate.records] == [first["decision"], second["decision"]]
        status, out, _ = await hit("--gateway", gate.url, "--model", MODEL)
        assert status == 0
        assert out.splitlines()[0].split() == ["TURN", "MODEL", "WORKER", "TOKENS", "CACHED", "KNOWLEDGE", "DECISION"]
        assert len(out.splitlines()) == 3


async def test_a_cache_that_keeps_nothing_is_no_hit(hit: Hit) -> None:
    async with engine(prefix_caching=False) as worker, front([worker]) as gate:
        status, out, err = await hit("--gateway", gate.url)
        assert (status, len(out.splitlines())) == (1, 3)
        assert "no hit: worker demo-0 computed all" in err
        assert f"cachefleet explain {gate.records[-1].id}" in err


async def test_without_a_pool_it_says_what_to_do(hit: Hit) -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.fleet.update_pools([])
        status, _, err = await hit("--gateway", gate.url, "--wait", "0")
        assert status == 1
        assert "no model is served that chats; apply a pool first: kubectl apply -f POOL.yaml" in err
        assert not worker.requests


async def test_it_waits_for_a_worker(hit: Hit) -> None:
    async with engine() as worker, front([worker], ready=False) as gate:
        asking = asyncio.create_task(hit("--gateway", gate.url, "--wait", "60"))
        while not gate.records:  # noqa: ASYNC110 - the command's first try, in another thread
            await asyncio.sleep(0.01)
        assert not asking.done()
        gate.fleet.update_pools([PoolView(pool(), gate.endpoints())])
        status, out, err = await asking
        assert (status, err) == (0, "")
        assert len(out.splitlines()) == 3


async def test_a_model_that_is_not_served_is_told_with_those_that_are(hit: Hit) -> None:
    async with engine() as worker, front([worker]) as gate:
        status, _, err = await hit("--gateway", gate.url, "--wait", "0", "--model", "other")
        assert status == 1
        assert f"model other is not served (served: {MODEL})" in err


async def test_a_request_that_fails_is_told(hit: Hit) -> None:
    async with engine() as worker, front([worker]) as gate:
        worker.fail_next(400, 99)
        status, _, err = await hit("--gateway", gate.url)
        assert status == 1
        assert "POST /v1/chat/completions: 400," in err


@pytest.mark.parametrize(("wait", "status"), [("60", 0), ("0", 1)])
async def test_a_second_turn_that_finds_no_room_yet_is_sent_again(hit: Hit, wait: str, status: int) -> None:
    asked = 0

    async def chat(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 2:
            return web.Response(status=503, text="later")
        usage = {"prompt_tokens": 300, "prompt_tokens_details": {"cached_tokens": 256}}
        answer = {"choices": [{"message": {"content": "a"}}], "usage": usage}
        return web.json_response(answer, headers={"x-cachefleet-decision": "d"})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        found, _, err = await hit("--gateway", url, "--wait", wait)
    finally:
        await runner.cleanup()
    assert (found, asked) == (status, 3 if status == 0 else 2)
    assert ("503" in err) is (status != 0)


async def test_a_key_that_is_not_accepted_is_told_at_once(hit: Hit, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known(Directory(required=True))
    async with engine() as worker, front([worker], known=known) as gate:
        monkeypatch.setenv("PROBE_KEY", "wrong")
        status, _, err = await hit("--gateway", gate.url, "--api-key-env", "PROBE_KEY")
        assert status == 1
        assert "the API key is not accepted" in err


async def test_without_a_key_it_says_that_one_is_needed(hit: Hit) -> None:
    async with engine() as worker, front([worker], known=Known(Directory(required=True))) as gate:
        status, _, err = await hit("--gateway", gate.url)
    assert status == 1
    assert "an API key is needed, and none was given; $CACHEFLEET_API_KEY, or the variable" in err


async def test_the_local_fleets_gateway_is_tried_unless_another_one_is_named(
    hit: Hit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cachefleet").mkdir()
    (tmp_path / ".cachefleet" / "fleet.json").write_text('{"gateway": "http://127.0.0.1:9"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "cannot reach the gateway at http://127.0.0.1:9:" in (await hit("--wait", "0"))[2]
    monkeypatch.setenv("CACHEFLEET_ADMIN_URL", "http://127.0.0.1:8")
    assert "http://127.0.0.1:9:" not in (await hit("--wait", "0"))[2], "another control plane is meant"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (
            ("--gateway", "http://127.0.0.1:9", "--wait", "0"),
            1,
            "cannot reach the gateway at http://127.0.0.1:9: Connection refused",
        ),
        (("--gateway", "127.0.0.1:8080"), 2, "--gateway: got '127.0.0.1:8080', allowed: an address like"),
        (("--wait", "-1"), 2, "wait"),
    ],
)
async def test_bad_input_is_told(hit: Hit, arguments: tuple[str, ...], status: int, words: str) -> None:
    found, _, err = await hit(*arguments)
    assert found == status
    assert words in err


def test_a_prompt_is_long_and_new() -> None:
    one, other = (opening(Random(seed), words=WORDS) for seed in (1, 2))
    assert one[:8] != other[:8]
    assert len(one.split()) > WORDS


@pytest.mark.parametrize(("cached", "hit"), [(0, False), (48, False), (150, False), (288, True), (320, True)])
def test_what_all_conversations_begin_with_is_no_hit(cached: int, *, hit: bool) -> None:
    """A chat template's own beginning is cached on every worker."""
    first = {"turn": 1, "worker": "a", "promptTokens": 300, "cachedTokens": 0, "decision": "d"}
    found = shortcomings([first, {**first, "turn": 2, "worker": "b", "promptTokens": 330, "cachedTokens": cached}])
    assert (found == []) is hit
    if cached == 48:
        assert "no hit: worker b computed 282 of 330 tokens of the second turn (the first was served by a)" in found[0]


def test_an_answer_that_tells_nothing_is_no_hit() -> None:
    told = {"turn": 2, "worker": "w", "promptTokens": 9, "cachedTokens": None, "decision": "d"}
    assert "does not tell" in shortcomings([told, told])[0]
    assert "no gateway of cachefleet" in shortcomings([told | {"decision": ""}])[0]


async def test_an_https_gateway_is_verified_by_the_certificates_that_are_given(hit: Hit, tmp_path: Path) -> None:
    signing, other = authority(), authority()
    served = SecretVolume(tmp_path / "served", issued(signing, "localhost"))
    async with engine() as worker, front([worker], tls=ServedTls(served.folder)) as gate:
        url = gate.url.replace("127.0.0.1", "localhost")
        (tmp_path / "other.crt").write_bytes(other.pem)
        for trusted, status in ((served.folder / CERTIFICATE, 0), (served.folder / AUTHORITIES, 0), ("other.crt", 1)):
            found, _, err = await hit("--gateway", url, "--wait", "0", "--certificate", str(tmp_path / trusted))
            assert found == status, err
            assert ("certificate verify failed" in err) is (status != 0)


async def test_a_file_without_certificates_is_told(hit: Hit, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    for file in ("absent", "empty"):
        status, _, err = await hit("--gateway", "https://localhost:1", "--certificate", str(tmp_path / file))
        assert (status, "--certificate: no certificate can be read from" in err) == (2, True)
