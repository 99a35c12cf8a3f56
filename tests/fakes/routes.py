"""The HTTP face of the fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from tests.fakes import answers, replaying
from tests.fakes.adapters import Adapters
from tests.fakes.answers import Json
from tests.fakes.asks import Ask, Body, Reader
from tests.fakes.audio_api import Hearing
from tests.fakes.failures import Refusal, as_anthropic, not_json
from tests.fakes.finish import Finish
from tests.fakes.gate import HOOK, details, new_engine_id, transfer_params
from tests.fakes.messages_api import MessageChunks, counted, message
from tests.fakes.pooling_api import embeddings, ranks, scores, states
from tests.fakes.responses_api import ResponseChunks, response
from tests.fakes.scheduler import Sequence as Generation
from tests.fakes.streams import ChatChunks, Chunks, CompletionChunks, GenerateChunks
from tests.fakes.telling import Telling
from tests.fakes.worker import Worker

Piece = tuple[int, list[int], str]
ChunksFactory = Callable[..., Chunks]

_COMPLETION_DEFAULT: Final = 16


class Routes:
    """The handlers of one engine; ``worker`` is replaced when the engine restarts."""

    def __init__(self, worker: Worker, endpoint: str, replay_endpoint: str) -> None:
        self.worker = worker
        self.cut_after: int | None = None
        self._options = worker.options
        self.adapters = Adapters(worker.options)
        self._endpoints = (endpoint, replay_endpoint)
        self._read = Reader(worker.options, worker.tokenizer)
        self._engine_id = new_engine_id()

    def table(self) -> list[web.RouteDef]:
        routes = [
            web.get("/health", self.health, allow_head=False),
            web.get("/ping", self.health, allow_head=False),
            web.get("/version", self.version, allow_head=False),
            web.get("/load", self.load, allow_head=False),
            web.get("/metrics", self.metrics, allow_head=False),
            web.get("/kv_event_sources", self.event_sources, allow_head=False),
            web.get("/openapi.json", self.document, allow_head=False),
            web.get("/v1/models", self.models, allow_head=False),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completion),
            web.post("/v1/responses", self.responses),
            web.post("/v1/messages", self.messages),
            web.post("/v1/messages/count_tokens", self.count_tokens),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.post("/reset_prefix_cache", self.reset_prefix_cache),
            web.get("/is_paused", self.is_paused, allow_head=False),
            web.get("/held_blocks", self.held_blocks, allow_head=False),
        ]
        pooled = {"/v1/embeddings": self.embeddings, "/pooling": self.states}
        pooled |= {"/v1/score": self.scores, "/v1/rerank": self.ranks}
        pooling = [web.post(path, handler) for path, handler in pooled.items()] if self._options.pooling else []
        speech = Hearing(self._options).table() if self._options.speech else []
        return (
            routes + pooling + speech + self.adapters.table() + (self._scale_out() if self._options.scale_out else [])
        )

    def _scale_out(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions/render", self.render_chat),
            web.post("/v1/completions/render", self.render_completion),
            web.post("/v1/responses/render", self.render_responses),
            web.post("/v1/messages/render", self.render_messages),
            web.post("/inference/v1/generate", self.generate),
        ]

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        return reply({"version": self._options.version})

    async def load(self, _: web.Request) -> web.Response:
        return reply({"server_load": 0})

    async def models(self, _: web.Request) -> web.Response:
        listed = answers.models(self._options)
        return reply(listed | {"data": [*listed["data"], *self.adapters.cards(listed["data"][0])]})

    async def event_sources(self, _: web.Request) -> web.Response:
        return reply(answers.event_sources(self._options, *self._endpoints) if self._options.events else {})

    async def metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        return web.Response(body=self.worker.metrics.page() + self.adapters.page(), headers=headers)

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        return reply({"success": self.worker.pool.clear()})

    async def document(self, _: web.Request) -> web.Response:
        return reply({"paths": {route.path: {route.method.lower(): {}} for route in self.table()}})

    async def is_paused(self, _: web.Request) -> web.Response:
        return reply({"is_paused": bool(self.worker.suspended)})

    async def held_blocks(self, _: web.Request) -> web.Response:
        """No route of vLLM's: how many different blocks are cached here, for tests of whoever counts them elsewhere."""
        scheduler = self.worker.scheduler
        at_rest = not scheduler.running and not scheduler.waiting
        return reply({"held": len(self.worker.pool.held()), "at_rest": at_rest})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        ids = self._read.tokenize(body)
        pieces = self.worker.tokenizer.pieces(ids) if body.get("return_token_strs") else None
        return reply({"count": len(ids), "max_model_len": self._options.context, "tokens": ids, "token_strs": pieces})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        self._read.check_model(body)
        return reply({"prompt": self.worker.tokenizer.decode(body["tokens"])})

    async def render_chat(self, request: web.Request) -> web.Response:
        ask = self._read.chat(await self._body(request))
        identity = f"chatcmpl-{_base_id(request)}"
        return reply(answers.rendered(identity, ask, index=0, default_tokens=None))

    async def render_completion(self, request: web.Request) -> web.Response:
        ask = self._read.completion(await self._body(request))
        identity = f"cmpl-{_base_id(request)}"
        several = len(ask.prompts) > 1
        names = [f"{identity}-{i}" if several else identity for i in range(len(ask.prompts))]
        default = _COMPLETION_DEFAULT
        return reply([answers.rendered(name, ask, index=i, default_tokens=default) for i, name in enumerate(names)])

    async def chat(self, request: web.Request) -> web.StreamResponse:
        ask = self._hooked(self._read.chat(await self._body(request)), request)
        return await self._answer(request, f"chatcmpl-{_base_id(request)}", ask, ChatChunks, answers.chat)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        ask = self._hooked(self._read.completion(await self._body(request)), request)
        return await self._answer(request, f"cmpl-{_base_id(request)}", ask, CompletionChunks, answers.completion)

    async def render_responses(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        ask = self._read.responses(body)
        identity = f"resp_{answers.new_id()}"
        return reply(answers.rendered(identity, ask, index=0, default_tokens=None, client=body))

    async def render_messages(self, request: web.Request) -> web.Response:
        ask = self._read.messages(await self._body(request))
        identity = f"chatcmpl-{_base_id(request)}"
        return reply(answers.rendered(identity, ask, index=0, default_tokens=None))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        ask = self._read.responses(body)
        identity = str(body.get("request_id") or f"resp_{answers.new_id()}")
        return await self._answer(request, identity, ask, ResponseChunks, response)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        with as_anthropic():
            ask = self._read.messages(body)
        return await self._answer(request, f"chatcmpl-{_base_id(request)}", ask, MessageChunks, message)

    async def count_tokens(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        with as_anthropic():
            return reply(counted(self._read.count_tokens(body)))

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        inputs = self._read.inputs(body, "input")
        return reply(embeddings(self._options, inputs, body.get("encoding_format") or "float"))

    async def states(self, request: web.Request) -> web.Response:
        return reply(states(self._options, self._read.inputs(await self._body(request), "input")))

    async def scores(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        names = ("text_1", "text_2") if "text_1" in body else ("queries", "documents")
        return reply(scores(self._options, *(self._read.inputs(body, name) for name in names)))

    async def ranks(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        [query] = self._read.inputs(body, "query")
        return reply(ranks(self._options, query, self._read.inputs(body, "documents"), body))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        ask = self._read.generate(await self._body(request))
        identity = f"generate-tokens-{ask.body.get('request_id') or _base_id(request)}"
        return await self._answer(request, identity, ask, GenerateChunks, answers.generate)

    async def _body(self, request: web.Request) -> Body:
        if request.content_type != "application/json":
            raise not_json()
        return self._read.body(await request.read())

    async def _answer(
        self, request: web.Request, identity: str, ask: Ask, chunks: ChunksFactory, whole: Callable[..., Json]
    ) -> web.StreamResponse:
        generations = ask.generations()
        try:
            if ask.stream:
                return await self._stream(request, chunks(self._options, identity, ask, generations), ask, generations)
            texts = [""] * len(generations)
            async for index, _, text in self._pieces(ask, generations):
                texts[index] += text
            texts = [self._echo(ask, i) + text for i, text in enumerate(texts)]
            answer = whole(self._options, identity, ask, list(zip(generations, texts, strict=True)))
            return reply(answer | self._transfer(identity, ask, generations))
        finally:
            for generation in generations:
                self.worker.abort(generation)

    def _hooked(self, ask: Ask, request: web.Request) -> Ask:
        forced = self._options.threshold_hook and request.headers.get(HOOK) == "true"
        return replace(ask, gated=replace(ask.gated, forced=True)) if forced else ask

    def _transfer(self, identity: str, ask: Ask, generations: Sequence[Generation]) -> Json:
        """Of a whole answer: what a refusal is founded on, or where a Decode worker finds the prompt's blocks."""
        refused = next((one for one in generations if one.refused_for), None)
        if refused is not None and refused.refused_for is not None:
            computed, threshold = refused.refused_for
            return {"kv_transfer_params": details(computed, refused.prompt_tokens, threshold)}
        if not ask.gated.fills_others or self._options.connector != "nixl":
            return {}
        tokens = len(ask.prompts[0])
        blocks = -(-tokens // self._options.block_size)
        return {"kv_transfer_params": transfer_params(self._engine_id, identity, blocks=blocks, tokens=tokens)}

    async def _stream(
        self, request: web.Request, chunks: Chunks, ask: Ask, generations: Sequence[Generation]
    ) -> web.StreamResponse:
        cut, self.cut_after = self.cut_after, None
        abort = partial(_abort, request)
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await out.prepare(request)
        begun = chunks.eager
        for chunk in chunks.begin() if begun else ():
            await out.write(chunks.encode(chunk))
        abort(cut)
        async for index, ids, text in self._pieces(ask, generations):
            replaying.note(generations[index], ids)
            for chunk in () if begun else chunks.begin():
                await out.write(replaying.take() + chunks.encode(chunk))
            begun = True
            for chunk in chunks.piece(index, ids, text):
                await out.write(replaying.take() + chunks.encode(chunk))
            cut = None if cut is None else cut - 1
            abort(cut)
        for chunk in chunks.end():
            await out.write(replaying.take() + chunks.encode(chunk))
        await out.write(replaying.take() + chunks.done)
        return out

    async def _pieces(self, ask: Ask, generations: Sequence[Generation]) -> AsyncIterator[Piece]:
        """What comes out of the engine, as it comes; outputs that nobody fetched yet are given as one."""
        ready: asyncio.Queue[int] = asyncio.Queue()
        tellings = [self._telling(ask, generation) for generation in generations]
        for part in replaying.begin(ask, generations[0]):
            replaying.extend(generations[0], part)
            yield 0, *tellings[0].take()
        for index, generation in enumerate(generations):
            if generation.finish is not None:
                return
            self.worker.add(generation, lambda _, index=index: ready.put_nowait(index))  # type: ignore[misc]
        open_ones = len(generations)
        while open_ones:
            index = await ready.get()
            generation, telling = generations[index], tellings[index]
            ids, text = telling.take()
            if ids and telling.matched is not None:
                self.worker.stop_at(generation, telling.matched, telling.length)
            if ids or generation.refused_for or generation.finish in {Finish.ABORT, Finish.HANDED_BACK}:
                open_ones -= generation.finish is not None
                yield index, ids, text

    def _telling(self, ask: Ask, generation: Generation) -> Telling:
        sampling = ask.body.get("sampling_params") or ask.body
        include = bool(sampling.get("include_stop_str_in_output"))
        return Telling(generation, self.worker.tokenizer.decoder(), answers.stops(sampling), include_stop=include)

    def _echo(self, ask: Ask, index: int) -> str:
        wanted = ask.body.get("echo") and "prompt" in ask.body
        return self.worker.tokenizer.decode(ask.prompts[index // ask.n]) if wanted else ""


def reply(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def refuse(refusal: Refusal) -> web.Response:
    return web.Response(body=refusal.body, status=refusal.status, content_type="application/json")


def _abort(request: web.Request, cut: int | None) -> None:
    """Reset the connection of a stream that is to be cut now."""
    if cut == 0 and request.transport is not None:
        request.transport.abort()


def _base_id(request: web.Request) -> str:
    return request.headers.get("X-Request-Id") or answers.new_id()
