"""vLLM 0.32's answers of a speech model's endpoints; their words are made of the recording's hash, one a second."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from aiohttp import web
from python_multipart import parse_form

from tests.fakes.answers import Json, new_id
from tests.fakes.failures import bad_request, missing, unknown_model
from tests.fakes.options import EngineOptions

WORDS: Final = ("bell", "rain", "door", "bird", "step", "wind", "song", "wave")
BYTES_A_SECOND: Final = 32_000
"""Of 16-bit samples at 16 kHz."""
FORMATS: Final = {"json", "text", "verbose_json"}


class Hearing:
    """The handlers of one engine."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options

    def table(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/audio/transcriptions", self.transcribe),
            web.post("/v1/audio/translations", self.translate),
        ]

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "transcription")

    async def translate(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "translation")

    async def _answer(self, request: web.Request, kind: str) -> web.StreamResponse:
        form, files = _form(request.headers["content-type"], await request.read())
        if "file" not in files:
            raise missing(["file"], len(form))
        sound, model, answer = files["file"], form.get("model"), form.get("response_format", "json")
        if model not in {None, self._options.model}:
            raise unknown_model(str(model), self._options.model)
        if not sound.startswith(b"RIFF"):
            raise bad_request("Invalid or unsupported audio file.")
        if answer not in FORMATS:
            raise bad_request("Currently only support response_format: `text`, `json` or `verbose_json`")
        words, streams = _words(sound), form.get("stream") == "true"
        if streams:
            return await self._stream(request, kind, words, usage=form.get("stream_include_usage") == "true")
        return web.Response(body=msgspec.json.encode(_whole(kind, words, str(answer))), content_type="application/json")

    async def _stream(self, request: web.Request, kind: str, words: list[str], *, usage: bool) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        head: Json = {"id": f"{kind[:-3]}e-{new_id()}", "object": f"{kind}.chunk", "created": int(time.time())}
        for choices in _choices(words):
            await out.write(_event({**head, "model": self._options.model, "choices": choices}))
        if usage:
            counts = {"prompt_tokens": 4, "completion_tokens": len(words), "total_tokens": 4 + len(words)}
            await out.write(_event({**head, "model": self._options.model, "choices": [], "usage": counts}))
        await out.write(b"data: [DONE]\n\n")
        return out


def _form(content_type: str, body: bytes) -> tuple[dict[str, str], dict[str, bytes]]:
    """Fields and files of a form, by the parser that vLLM's framework has."""
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}

    def on_field(field: Any) -> None:
        fields[field.field_name.decode()] = (field.value or b"").decode()

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        files[file.field_name.decode()] = file.file_object.read()

    headers: Any = {"Content-Type": content_type.encode(), "Content-Length": str(len(body)).encode()}
    parse_form(headers, io.BytesIO(body), on_field, on_file)
    return fields, files


def _choices(words: list[str]) -> Iterator[list[Json]]:
    for word in words[:-1]:
        yield [{"delta": {"content": f" {word}"}}]
    yield [{"delta": {"content": f" {words[-1]}"}, "finish_reason": "stop", "stop_reason": None}]


def _whole(kind: str, words: list[str], answer: str) -> Json:
    text: Json = {"text": " ".join(words)}
    if answer == "verbose_json":
        return {"duration": float(len(words)), "language": "en", **text, "segments": [], "words": None}
    usage: Any = {"type": "duration", "seconds": len(words)}
    return text | ({"usage": usage} if kind == "transcription" else {})


def _words(sound: bytes) -> list[str]:
    seconds = max(1, -(-len(sound) // BYTES_A_SECOND))
    return [WORDS[byte % len(WORDS)] for byte in hashlib.sha256(sound).digest()[:seconds]]


def _event(chunk: Json) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
