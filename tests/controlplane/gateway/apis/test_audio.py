"""Speech to text by the gateway: forms in, placed and accounted for as other requests; what is broken is refused."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.apis.audio_form import MAX_FIELD_BYTES, MAX_PARTS, read_form
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.pool.spec import read_pool
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.harness import MODEL, WORKER_KEY, Front, engine, front, pool
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
BOUNDARY: Final = "----sound"
TYPE: Final = f"multipart/form-data; boundary={BOUNDARY}"


def sound(seconds: int = 2, seed: int = 0) -> bytes:
    """A recording: a WAV file of 16-bit samples at 16 kHz."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes((seed + at) % 251 for at in range(32_000 * seconds - 44)))
    return out.getvalue()


def form(*parts: tuple[str, bytes | str], end: bool = True) -> bytes:
    """A form's bytes; ``file`` has a file name, other parts have none."""
    pieces = []
    for name, value in parts:
        named = '; filename="a.wav"\r\ncontent-type: audio/wav' if name == "file" else ""
        content = value.encode() if isinstance(value, str) else value
        pieces.append(
            f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + content
        )
    return b"\r\n".join(pieces) + (f"\r\n--{BOUNDARY}--\r\n".encode() if end else b"")


@dataclass
class Hearing:
    """A gateway before two workers that hear, and its usage records."""

    gate: Front
    workers: list[FakeEngine]
    used: list[UsageRecord]

    async def ask(self, body: bytes, path: str = TRANSCRIPTIONS, **headers: str) -> tuple[int, Any]:
        status, _, answer = await self.gate.post(path, body, **({"content_type": TYPE} | headers))
        return status, json.loads(answer)


@pytest.fixture
async def hearing() -> AsyncIterator[Hearing]:
    used: list[UsageRecord] = []
    async with engine(speech=True) as one, engine(speech=True) as two, front([one, two], used=used.append) as gate:
        yield Hearing(gate, [one, two], used)


def heard(hearing: Hearing) -> Any:
    """The last form that any worker was sent."""
    last = max((one for worker in hearing.workers for one in worker.requests), key=lambda seen: seen.at)
    return read_form(last.body, last.headers["Content-Type"].encode())


@pytest.mark.parametrize("first", ["model", "file"])
async def test_a_form_names_its_model_before_its_file_or_after(hearing: Hearing, first: str) -> None:
    parts: list[tuple[str, bytes | str]] = [
        ("model", MODEL),
        ("file", sound()),
        ("language", "en"),
        ("timestamp_granularities[]", "word"),
    ]
    parts.sort(key=lambda part: part[0] != first)
    status, told = await hearing.ask(form(*parts))
    assert (status, told["usage"]) == (200, {"type": "duration", "seconds": 2})
    sent = heard(hearing)
    assert [part.name for part in sent.parts] == [name for name, _ in parts]
    assert [bytes(part.content) for part in sent.parts if part.is_file] == [sound()]
    (record,) = hearing.gate.records
    assert (record.endpoint, record.status, record.knowledge) == (TRANSCRIPTIONS, 200, "load")


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's, of what it does with translations
async def test_the_official_client_has_speech_written_and_translated(hearing: Hearing) -> None:
    made = clients(hearing.gate.url, model=MODEL)
    async with made.openai as client, made.anthropic:
        whole = await client.audio.transcriptions.create(model=MODEL, file=("a.wav", sound(3)), language="en")
        assert len(whole.text.split()) == 3
        translated = await client.audio.translations.create(model=MODEL, file=("a.wav", sound(3)))
        assert translated.text == whole.text
        stream: Any = await client.audio.transcriptions.create(model=MODEL, file=("a.wav", sound(3)), stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(one.choices[0]["delta"]["content"] for one in chunks).split() == whole.text.split()
        with pytest.raises(openai.NotFoundError, match="does not exist") as refused:
            await client.audio.transcriptions.create(model="nobody", file=("a.wav", sound()))
        assert refused.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="Invalid or unsupported audio file"):
            await client.audio.transcriptions.create(model=MODEL, file=("a.wav", b"no sound"))


@pytest.mark.parametrize("asked", ["", "false", "true"])
async def test_a_stream_is_accounted_for_and_tells_usage_to_who_asked(hearing: Hearing, asked: str) -> None:
    own = [("stream_include_usage", asked)] if asked else []
    body = form(("model", MODEL), ("stream", "true"), *own, ("file", sound(3)))
    status, headers, answer = await hearing.gate.settled(TRANSCRIPTIONS, body, content_type=TYPE)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert answer.rstrip().endswith(b"data: [DONE]")
    assert (b'"usage"' in answer) == (asked == "true")
    (record,) = hearing.gate.records
    assert record.completion_tokens == 3
    await until(lambda: bool(hearing.used))
    assert [(one.requests, one.prompt_tokens, one.completion_tokens) for one in hearing.used] == [(1, 4, 3)]


async def test_an_alias_goes_to_the_worker_by_its_own_name_and_stays_in_events(hearing: Hearing) -> None:
    declared = pool().model_dump(mode="json", by_alias=True, exclude_none=True)
    declared["spec"]["model"]["aliases"] = ["whisper-*"]
    hearing.gate.fleet.update_pools([PoolView(read_pool(declared), hearing.gate.endpoints())])
    body = form(("file", sound()), ("model", "whisper-1"), ("stream", "true"))
    status, _, answer = await hearing.gate.settled(TRANSCRIPTIONS, body, content_type=TYPE)
    assert (status, answer.count(b'"model":"whisper-1"'), MODEL.encode() in answer) == (200, 2, False)
    assert [bytes(part.content) for part in heard(hearing).parts if part.name == "model"] == [MODEL.encode()]


async def test_a_failed_worker_s_form_goes_to_another_whole(hearing: Hearing) -> None:
    hearing.workers[0].fail_next(500)
    while not any(len(record.attempts) == 2 for record in hearing.gate.records):
        status, told = await hearing.ask(form(("file", sound()), ("model", MODEL)))
        assert (status, len(told["text"].split())) == (200, 2)


async def test_what_only_the_fleet_may_say_is_taken_out(hearing: Hearing) -> None:
    private = [("cache_salt", "x"), ("priority", "1"), ("kv_transfer_params", "{}")]
    xargs = json.dumps({"kv_cache_report_mode": "full", "mine": 1})
    status, _ = await hearing.ask(form(*private, ("vllm_xargs", xargs), ("model", MODEL), ("file", sound())))
    fields = {part.name: bytes(part.content) for part in heard(hearing).parts if not part.is_file}
    assert (status, fields) == (200, {"vllm_xargs": b'{"mine":1}', "model": MODEL.encode()})


async def test_no_model_is_the_only_one(hearing: Hearing) -> None:
    assert (await hearing.ask(form(("file", sound()))))[0] == 200


GOOD = form(("model", MODEL), ("file", sound(1)))
BROKEN: dict[str, tuple[bytes, str, str]] = {
    "two models": (form(("model", MODEL), ("file", b"RIFF"), ("model", "b")), TYPE, "`model` more than once"),
    "no file": (form(("model", MODEL)), TYPE, "no `file`"),
    "a file that is text": (form(("model", MODEL)) + b"", TYPE, "no `file`"),
    "another boundary": (GOOD, "multipart/form-data; boundary=other", "does not begin with the `boundary`"),
    "no boundary": (GOOD, "multipart/form-data", "with a `boundary` of 1 to 70"),
    "an endless boundary": (GOOD, f"multipart/form-data; boundary={'b' * 71}", "with a `boundary` of 1 to 70"),
    "json": (b"{}", "application/json", "must be `multipart/form-data`"),
    "nothing": (b"", TYPE, "cut off"),
    "no end": (form(("model", MODEL), ("file", sound(1)), end=False), TYPE, "cut off"),
    "a part without a name": (
        f"--{BOUNDARY}\r\ncontent-disposition: form-data\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
        TYPE,
        "with a `name`",
    ),
    "a part without headers": (f"--{BOUNDARY}\r\nx\r\n--{BOUNDARY}--\r\n".encode(), TYPE, "is broken"),
    "too many parts": (form(*((f"p{at}", "x") for at in range(MAX_PARTS + 1))), TYPE, f"more than {MAX_PARTS} parts"),
    "a long field": (form(("prompt", "x" * (MAX_FIELD_BYTES + 1)), ("file", b"RIFF")), TYPE, "`prompt` may have"),
    "no UTF-8": (form(("model", b"\xff"), ("file", b"RIFF")), TYPE, "`model` is no UTF-8"),
    "arguments that are no object": (form(("vllm_xargs", "[1"), ("file", b"RIFF")), TYPE, "must be a JSON object"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_form_is_refused_in_words(hearing: Hearing, name: str) -> None:
    body, content_type, words = BROKEN[name]
    status, told = await hearing.ask(body, content_type=content_type)
    assert (status, words in told["error"]["message"]) == (400, True), told
    assert not [one for worker in hearing.workers for one in worker.requests if one.path == TRANSCRIPTIONS]


async def test_a_form_that_is_too_large_is_a_413() -> None:
    bounds = GatewayBounds(body_bytes=40_000, body_seconds=30, requests=100)
    async with engine(speech=True) as worker, front([worker], bounds=bounds) as gate:
        status, _, answer = await gate.post(
            TRANSCRIPTIONS, form(("model", MODEL), ("file", sound())), content_type=TYPE
        )
        assert (status, "larger than 40000 bytes" in json.loads(answer)["error"]["message"]) == (413, True)


@pytest.mark.parametrize("said", [("/v1/chat/completions",), None])
async def test_a_model_that_does_not_hear_is_a_404_that_says_so(said: tuple[str, ...] | None) -> None:
    """By what its workers announce, before the form goes anywhere; else by the worker's own 404."""
    async with engine() as worker, front([worker]) as gate:
        gate.report(0, said={"endpoints": said})
        status, _, answer = await gate.post(TRANSLATIONS, form(("file", sound())), content_type=TYPE)
        message = json.loads(answer)["error"]["message"]
        assert (status, "Whisper" in message, TRANSLATIONS in message) == (404, True, True), message
        assert len([one for one in worker.requests if one.path == TRANSLATIONS]) == (said is None)


async def test_models_that_hear_are_named_and_listed() -> None:
    async with engine() as one, engine(model="ears", api_key=WORKER_KEY) as two, front([one, two]) as gate:
        views = [PoolView(pool(), gate.endpoints()[:1])]
        ears = pool(model="ears").model_dump(mode="json", by_alias=True, exclude_none=True)
        ears["metadata"]["name"] = "ears"
        views.append(PoolView(read_pool(ears), gate.endpoints()[1:]))
        gate.fleet.update_pools(views)
        gate.report(0, said={"endpoints": ("/v1/chat/completions",)})
        gate.report(1, said={"endpoints": (TRANSCRIPTIONS, TRANSLATIONS), "pool": "default/ears"})
        status, _, answer = await gate.post(
            TRANSCRIPTIONS, form(("model", MODEL), ("file", sound())), content_type=TYPE
        )
        assert (status, "Ask `ears`." in json.loads(answer)["error"]["message"]) == (404, True), answer
        async with gate.http.get(f"{gate.url}/v1/models/ears") as listed:
            assert (await listed.json())["capabilities"]["endpoints"] == [TRANSCRIPTIONS, TRANSLATIONS]


@given(st.binary(max_size=400), st.binary(max_size=80))
def test_any_bytes_are_a_form_or_refused(body: bytes, content_type: bytes) -> None:
    for given_type in (content_type, TYPE.encode()):
        for tried in (body, form(("model", MODEL))[:-30] + body):
            with suppress(ApiError):
                assert read_form(tried, given_type).parts


@given(st.dictionaries(st.sampled_from(["prompt", "language", "model"]), st.text(max_size=20)), st.binary(max_size=300))
def test_a_form_that_is_written_anew_reads_as_it_was(fields: dict[str, str], content: bytes) -> None:
    if f"--{BOUNDARY}".encode() in content:
        return
    read = read_form(form(*fields.items(), ("file", content)), TYPE.encode())
    members = b"{" + b",".join(b"%b:%b" % (json.dumps(n).encode(), bytes(v)) for n, v in read.fields().items()) + b"}"
    again = read_form(read.with_fields(members), read.content_type)
    assert [(part.name, bytes(part.content)) for part in again.parts] == [
        *((name, text.encode()) for name, text in fields.items()),
        ("file", content),
    ]
