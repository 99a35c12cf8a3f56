"""The soak's judgement: what counts as whole, what is borne, what is flat; and a short run of it (slow)."""

import json
import random
from typing import Any

import pytest

from bench import soak_asks
from bench.parts import Engine
from bench.soak import Soak, soak
from bench.soak_asks import KINDS, Kind
from bench.soak_fleet import SoakWorker
from bench.soak_load import BORNE, Heard, Load
from bench.soak_watch import Sample, grown, growth
from tests.fakes.engine import FakeEngine

STREAM = next(kind for kind in KINDS if kind.name == "chat, stream")
TWO = next(kind for kind in KINDS if kind.name == "chat of two, stream")


def chunk(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': text}}]})}\n\n"


def a_worker(tmp_path: Any, *deaths: float) -> SoakWorker:
    engine = Engine(url="", events="", replay="", model="", block_size=16, max_model_len=1, resource="")
    return SoakWorker("soak-0", tmp_path, engine, {}, "k", deaths=list(deaths))


# Answers.


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_a_whole_answer_of_each_kind_is_whole(kind: Kind) -> None:
    """As the fake engine gives it, without a gateway."""
    import aiohttp  # noqa: PLC0415 - one test

    if kind.path == "/v1/route":
        pytest.skip("the gateway's own")
    async with FakeEngine(model="bench", natural_tokens=1024) as engine, aiohttp.ClientSession() as http:
        asked = kind.make(soak_asks.prompt(random.Random(1))[-100:], 8)
        async with http.post(engine.url + kind.path, json=asked) as answer:
            body = await answer.text()
            assert answer.status == 200, body
    assert kind.fault(body, 8) == ""
    if kind.choices:
        assert kind.fault(body, 9) == f"{8 * kind.choices} characters, not {9 * kind.choices}"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (chunk("abcd") + "data: [DONE]\n\n", ""),
        (chunk("abc") + "data: [DONE]\n\n", "3 characters, not 4"),
        (chunk("abcd") + chunk("d") + "data: [DONE]\n\n", "5 characters, not 4"),
        (chunk("abcd"), "no end"),
        (chunk("ab") + 'data: {"error": {"message": "m"}}\n\ndata: [DONE]\n\n', "error event"),
        ("data: {\n\n", "not JSON"),
    ],
)
def test_a_stream_that_is_not_whole_is_found_out(body: str, fault: str) -> None:
    assert STREAM.fault(body, 4) == fault


# Failures.


@pytest.mark.parametrize(
    ("kind", "deaths", "name"),
    [
        (TWO, [10.5], BORNE),
        (TWO, [9.0], BORNE),
        (TWO, [], "chat of two, stream: no end"),
        (TWO, [99.0], "chat of two, stream: no end"),
        (STREAM, [10.5], "chat, stream: no end"),
    ],
)
def test_only_what_nobody_could_go_on_with_is_borne(tmp_path: Any, kind: Kind, deaths: list[float], name: str) -> None:
    load = Load("", {"soak-0": a_worker(tmp_path, *deaths)}, seed=1)
    heard = Heard(200, "soak-0", bytearray(chunk("ab").encode()))
    assert load._failure(kind, heard, 4, began=10.0, ended=11.0) == name


@pytest.mark.parametrize(
    ("heard", "name"),
    [(Heard(502, "soak-0"), "status 502"), (Heard(200, "soak-0", broken="cut"), "cut"), (Heard(0), "status 0")],
)
def test_what_no_stream_had_begun_is_never_borne(tmp_path: Any, heard: Heard, name: str) -> None:
    load = Load("", {"soak-0": a_worker(tmp_path, 10.5)}, seed=1)
    assert load._failure(TWO, heard, 4, began=10.0, ended=11.0) == name


# What is flat.


def samples(seconds: int, *, memory: float = 0.0, tasks: float = 0.0) -> list[Sample]:
    """A minute's growth of each."""
    return [Sample(at, 100 + at * memory / 60, 50, 9, int(40 + at * tasks / 60), 3) for at in range(seconds)]


def test_what_grows_is_found_out() -> None:
    assert growth(samples(600, memory=3), "memory") == pytest.approx(3)
    assert grown(samples(600)) == []
    assert grown(samples(600, memory=0.5)) == []
    assert [words.partition(" ")[0] for words in grown(samples(600, memory=1.5, tasks=6))] == ["memory", "tasks"]


def test_growth_in_the_first_third_is_none() -> None:
    early = [Sample(one.at, 100 + min(one.at, 190), 50, 9, 40, 3) for one in samples(600)]
    assert grown(early) == []


def test_problems_are_named() -> None:
    run = Soak(600, 1, left=2, samples=samples(600, memory=2))
    run.tally.failures.update({BORNE: 5, "status 503": 1})
    assert len(run.problems) == 3
    assert not Soak(600, 1, samples=samples(600)).problems


# In short.


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_die_and_return_and_no_request_fails() -> None:
    run = soak(20.0)
    assert run.problems == [], run.tally.examples
    assert run.deaths
    assert len(run.tally.kinds) == len(KINDS)
