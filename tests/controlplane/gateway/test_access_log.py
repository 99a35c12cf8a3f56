"""The access log: what a line tells of a request, and that it tells nothing of a prompt."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from cachefleet_controlplane.gateway.access_log import LOGGER
from tests.controlplane.gateway.harness import MODEL, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, directory
from tests.controlplane.waiting import until

CHATS, SECRET = "/v1/chat/completions", "a-secret-of-the-prompt"


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def of_access(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [line for line in caplog.records if line.name == LOGGER]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_line_tells_what_became_of_a_request(caplog: pytest.LogCaptureFixture, *, stream: bool) -> None:
    async with engine() as worker, front([worker], access_log=True) as gate:
        body = chat(SECRET, stream=stream)
        _, headers, _ = await gate.settled(f"{CHATS}?{SECRET}", body, x_request_id="r-1", x_secret=SECRET)
        await until(lambda: bool(of_access(caplog)))
        (line,) = of_access(caplog)
        told = vars(line)
        assert (told["method"], told["path"], told["status"], told["request"]) == ("POST", CHATS, 200, "r-1")
        assert (told["tenant"], told["model"], told["decision"]) == ("default", MODEL, headers["x-cachefleet-decision"])
        assert (told["worker"], told["attempts"], told["completion_tokens"]) == ("default/demo/demo-0", 1, 4)
        assert told["prompt_tokens"] > told["cached_tokens"] == 0
        assert told["seconds"] >= 0
        assert ("first_token_seconds" in told) is stream
        assert SECRET not in json.dumps(told, default=str) + line.getMessage()


async def test_refusals_and_paths_that_are_not_here_have_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as worker, front([worker], access_log=True, known=Known(directory(ACME))) as gate:
        await gate.post(CHATS, chat("x"))
        await gate.post("/v1/no%0Asuch", {})
        async with gate.http.get(f"{gate.url}/health") as answer:
            assert answer.status == 200
        await until(lambda: len(of_access(caplog)) == 2)
        refused, lost = map(vars, of_access(caplog))
        assert (refused["status"], "tenant" in refused, "model" in refused) == (401, False, False)
        assert (lost["status"], lost["path"]) == (404, "/v1/no\\nsuch")


async def test_a_target_that_is_no_path_has_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as worker, front([worker], access_log=True) as gate:
        reader, writer = await asyncio.open_connection(*gate.url.removeprefix("http://").split(":"))
        writer.write(b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"404"
        await until(lambda: bool(of_access(caplog)))
        (line,) = of_access(caplog)
        assert line.getMessage().startswith("CONNECT  404 ")
        writer.close()


async def test_there_is_none_by_default(caplog: pytest.LogCaptureFixture) -> None:
    async with engine() as worker, front([worker]) as gate:
        await gate.settled(CHATS, chat("x"))
    assert not of_access(caplog)
