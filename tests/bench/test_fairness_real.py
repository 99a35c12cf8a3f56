"""The flood on a real engine: what it reports, and that it reports nothing of answers that are not whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.fairness_real import FLOOD, MODEST, OUTPUTS, PROMPT_TOKENS, SHARED, Clients, Run, UnsoundError, rows


@asynccontextmanager
async def clients(**usage: int) -> AsyncIterator[Clients]:
    """Before a server that answers at once, and says that it took so many tokens."""

    async def answer(_: web.Request) -> web.Response:
        whole = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUTS} | usage
        return web.json_response({"choices": [{"text": "a"}], "usage": whole})

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        yield Clients(str(server.make_url("")).rstrip("/"), session)


async def test_answers_that_are_not_whole_are_not_timed() -> None:
    wrong: list[dict[str, Any]] = [{"completion_tokens": OUTPUTS - 1}, {"prompt_tokens": 1}]
    for usage in wrong:
        async with clients(**usage) as given:
            with pytest.raises(UnsoundError, match="quiet"):
                await given.check()
            with pytest.raises(UnsoundError):
                await given.run(0, seconds=0.01)


def test_the_bar_is_on_the_slowest_hundredth_where_a_tenant_is_bounded_beside_others() -> None:
    slow, fast = (Run([float(number) * scale for number in range(1, 101)], 200, 20.0) for scale in (1.2, 1.0))
    found = list(rows(SHARED, {"alone": fast, MODEST: fast, FLOOD: slow}))
    (judged,) = [one for one in found if "bar" in one]
    assert judged["row"].endswith(f"p99 of another's answer, {FLOOD} beside {MODEST}")
    assert (judged["ratio"], judged["kept"]) == (pytest.approx(1.2), False)
    assert not any("bar" in one for one in rows("shares", {"alone": fast, MODEST: fast, FLOOD: slow}))
