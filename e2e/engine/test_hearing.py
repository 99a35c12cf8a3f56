"""Speech to text on real vLLM: what the gateway and the fake engine take for granted of it.

vLLM reads recordings by soundfile, which is no package of ours: an environment beside has it.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import openai
import pytest

from e2e.engine.hearing_model import make_model
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.apis.test_audio import TRANSCRIPTIONS, TRANSLATIONS, TYPE, form, sound
from tests.controlplane.gateway.clients.environments import python_of
from tests.controlplane.gateway.harness import Front, front

pytestmark = pytest.mark.slow
MODEL: Final = "ears"


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    beside = python_of("hearing").parents[1]
    packages = sysconfig.get_path("purelib", vars={"base": str(beside)})
    folder = tmp_path_factory.mktemp("hearing")
    options = VllmOptions(
        model=MODEL,
        max_model_len=448,
        num_blocks=1024,
        max_batched_tokens=2048,
        forked=False,
        environment=(("PYTHONPATH", packages),),
        extra=("--load-format=dummy",),
    )
    with running_vllm(options, make_model(folder / "model"), folder / "vllm.log") as server:
        yield server


@pytest.fixture
async def gate(hearing: VllmServer) -> AsyncIterator[Front]:
    async with front([hearing], model=MODEL, key=hearing.options.api_key) as made:
        yield made


async def test_the_official_client_has_a_recording_written_down(gate: Front) -> None:
    made = clients(gate.url, model=MODEL)
    async with made.openai as client, made.anthropic:
        whole = await client.audio.transcriptions.create(model=MODEL, file=("a.wav", sound()), language="en")
        assert isinstance(whole.text, str)
        stream: Any = await client.audio.transcriptions.create(
            model=MODEL, file=("a.wav", sound()), language="en", stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0]["finish_reason"] in {"stop", "length"}
        with pytest.raises(openai.BadRequestError, match="audio"):
            await client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"no sound"), language="en")


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
async def test_a_stream_is_accounted_for_and_its_usage_kept_from_who_did_not_ask(gate: Front, path: str) -> None:
    body = form(("stream", "true"), ("language", "en"), ("file", sound()), ("model", MODEL))
    status, _, answer = await gate.settled(path, body, content_type=TYPE)
    assert (status, answer.rstrip().endswith(b"data: [DONE]"), b'"usage"' in answer) == (200, True, False), answer
    assert f'"model":"{MODEL}"'.encode() in answer
    (record,) = gate.records
    assert record.completion_tokens


async def test_a_whole_answer_tells_seconds(gate: Front) -> None:
    body = form(("language", "en"), ("file", sound(3)))
    status, _, answer = await gate.settled(TRANSCRIPTIONS, body, content_type=TYPE)
    assert (status, json.loads(answer)["usage"]) == (200, {"type": "duration", "seconds": 3})


async def test_the_engine_tells_that_it_hears(hearing: VllmServer, gate: Front) -> None:
    headers = hearing.headers
    async with gate.http.get(f"{hearing.url}/openapi.json", headers=headers) as answer:
        assert {TRANSCRIPTIONS, TRANSLATIONS} <= (await answer.json())["paths"].keys()
