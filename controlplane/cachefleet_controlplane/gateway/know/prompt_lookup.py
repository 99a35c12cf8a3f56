"""The layer of knowledge: completes requests with salt, body for workers, the prompt's length and block keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.parse import upstream_body
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.handles.handles import Handles, no_handles
from cachefleet_controlplane.gateway.handles.sending import Sending
from cachefleet_controlplane.gateway.handles.token_reference import about_tokens
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.know.render_ladder import MAX_WORKERS
from cachefleet_controlplane.gateway.know.renderer import Renderer, render_ask
from cachefleet_controlplane.gateway.know.rendering_result import Keying
from cachefleet_controlplane.gateway.know.text_keys import NO_TEXT, Text, Texts, TokenEstimates
from cachefleet_controlplane.gateway.request.hit_thresholds import HitThresholds
from cachefleet_controlplane.gateway.request.rendered_prompt import (
    NOT_RENDERED,
    Keyed,
    RenderFailure,
    Rendering,
    Rung,
)
from cachefleet_controlplane.gateway.request.replay_eligibility import replay_ask
from cachefleet_controlplane.gateway.request.request import Layer, Request
from cachefleet_controlplane.gateway.request.resume_eligibility import ResumeLimits, with_mark
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.routing.decision import Chunks, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.workers.render_profiles import RenderFacts
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.engine.answer_replay import ReplayAsk

_TEXTLESS: Final = frozenset({RenderFailure.REFUSED, RenderFailure.MULTIMODAL})
"""Reasons for no ids where the text tells nothing either."""


class PromptLookup:
    """Looks prompts up: by text where nobody renders them, else by a worker's or renderer's keys.

    ``knowledge`` is the most to be learnt of a prompt; without ``texts`` nothing is learnt of its text. With
    ``handles`` conversations may go by handle to workers that keep them. ``unseen`` says what of a text counts; every
    byte without it.
    """

    def __init__(
        self,
        fleet: Fleet,
        renderer: Renderer,
        *,
        salt_key: bytes,
        texts: Texts | None = None,
        knowledge: Knowledge = Knowledge.EXACT,
        handles: Handles | None = None,
        unseen: UnseenText | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handles = handles
        self._unseen = unseen
        self._texts = texts
        self._knowledge = knowledge
        self._fleet = fleet
        self._renderer = renderer
        self._salter = Salter(salt_key)
        self._clock = clock

    async def complete(self, request: Request) -> Request:
        """Return the request with its body for workers and its prompt. ApiError for a reference to unknown tokens."""
        facts = self._fleet.render_facts(request.model.name)
        request, plain = self._addressed(request, facts)
        began = self._clock()
        text = self._text(request)
        rendering = self._unasked(request.info)
        if rendering is None:
            rendering = await self._render(request, plain, text, facts)
        try:
            return await self._with_prompt(request, rendering, text, began)
        except BaseException:
            if rendering.held_answer is not None:
                rendering.held_answer.drop()
            raise

    async def _with_prompt(self, request: Request, rendering: Rendering, text: Text, began: float) -> Request:
        """The request with what was learnt of its prompt."""
        model, body, members = request.model, request.body, request.members
        if (continuing := request.continuing) is not None:
            continuing.rendered(rendering.prompt.tokens)
            if request.gate.split:
                body = await continuing.whole(body)
        facts = self._fleet.render_facts(model.name)  # workers may have joined or left meanwhile
        seconds, learn = self._clock() - began, self._learner(request, rendering, text)
        rendering, prompt = routing_prompt(request.info, rendering, text, facts, longest=model.max_model_len)
        return replace(
            request,
            body=body,
            members=members,
            rendering=rendering,
            prompt=self._counted(request, prompt),
            render_seconds=seconds,
            learn=learn,
        )

    def _addressed(self, request: Request, facts: RenderFacts) -> tuple[Request, bytes]:
        """The request with its body for workers, and that body without a mark, by which its keys are asked for."""
        info, model, tenant = request.info, request.model, request.tenant
        salt = self._salter.salt(model.declared, tenant.name, tenant.salt_version)
        gate = HitThresholds.of(info, model)
        plain, members = upstream_body(info, model=model.upstream, salt=salt, gated=gate.ours)
        continuing = self._continuing(request, plain, salt) if request.answered or about_tokens(info) else None
        limits = None
        if request.answered:
            limits = ResumeLimits.of(info, gate, model.declared, parsed=facts.parses_reasoning)
        found = replay_ask(info, gate, request.arrival.trace) if request.answered and limits is None else None
        body, members = with_mark(plain, members, info, limits)
        addressed = replace(
            request, salt=salt, gate=gate, limits=limits, body=body, members=members, continuing=continuing
        )
        if isinstance(found, ReplayAsk):
            addressed = replace(addressed, replay=found)
        elif found is not None:
            addressed = replace(addressed, unresumed=found)
        return addressed, plain

    def _continuing(self, request: Request, body: bytes, salt: str) -> Sending | None:
        """How the request is sent to workers that keep conversations. ApiError."""
        info, model = request.info, request.model
        if self._handles is None or self._blind or self._knowledge is not Knowledge.EXACT:
            if about_tokens(info):
                raise no_handles(model)
            return None
        return self._handles.begin(info, body, model=model, tenant=request.tenant.name, salt=salt)

    def _text(self, request: Request) -> Text:
        """What is known of a prompt by its text."""
        if self._texts is None or self._knowledge is Knowledge.LOAD or self._blind:
            return NO_TEXT
        info, model = render_ask(request.info), request.model
        seen = info if self._unseen is None else self._unseen.of(info, model)
        return self._texts.of(seen, model=_name(model), salt=request.salt)

    def _learner(self, request: Request, rendering: Rendering, text: Text) -> Callable[[int], None]:
        """The function to call with a prompt's number of tokens, where that is not known yet."""
        if self._texts is None or not text.size:
            return _ignore
        learn = partial(_learn, self._texts.estimates, _name(request.model), text.size)
        if rendering.prompt.tokens and rendering.rung is not Rung.CLIENT:  # token ids in JSON are not text
            learn(rendering.prompt.tokens)
            return _ignore
        return learn if request.info.single and rendering.rung is Rung.NONE else _ignore

    def _asked(self, request: Request, text: Text, facts: RenderFacts) -> list[WorkerEndpoint]:
        """Whom to ask for keys: first who will probably serve, which holds the request meanwhile."""
        name, continuing = request.model.name, request.continuing
        if continuing is not None and (continuing.only or continuing.first):
            workers = self._fleet.renderers(name, MAX_WORKERS, first=continuing.first)
            return [worker for worker in workers if worker.url == continuing.first] if continuing.only else workers
        if not text.size or not facts.held_at:
            return self._fleet.renderers(name, MAX_WORKERS)
        guess = Prompt(text.tokens, block_size=facts.block_size, knowledge=Knowledge.APPROXIMATE, chunks=text.chunks)
        return self._fleet.renderers(name, MAX_WORKERS, guess=guess)

    @property
    def _blind(self) -> bool:
        """The policy looks at nothing of the prompt."""
        return self._fleet.policy is RoutingPolicy.ROUND_ROBIN

    def _unasked(self, info: RequestInfo) -> Rendering | None:
        """The rendering of a prompt that nobody is asked to render; None where somebody is."""
        if self._blind:
            return NOT_RENDERED
        return None if self._knowledge is Knowledge.EXACT else self._renderer.switched_off(info)

    async def _render(self, request: Request, body: bytes, text: Text, facts: RenderFacts) -> Rendering:
        info, model, salt = request.info, request.model, request.salt
        first = render_ask(info)
        if first is not info:
            body, _ = upstream_body(first, model=model.upstream, salt=salt)
        keyer = partial(self._fleet.keyer, model.name, salt=salt)
        return await self._renderer.render(
            first,
            body,
            workers=self._asked(request, text, facts),
            keying=Keying(keyer, model.max_model_len, request.keep_ids),
            facts=facts,
            salt=salt,
            continuing=request.continuing,
            request=request if request.may_be_held else None,
        )

    def _counted(self, request: Request, prompt: Prompt) -> Prompt:
        """The prompt with its adapter, and of several sequences their number."""
        info, model = request.info, request.model
        if model.is_adapter:
            prompt = replace(prompt, adapter=model.upstream)
        if info.sequences > 1:
            most = self._fleet.most_blocks(model.name)
            prompt = replace(prompt, prompts=info.prompts, choices=info.choices, most_blocks=most)
        return prompt


class KnowLayer:
    """Has requests answered whose prompts are looked up; ``note`` is called with each."""

    def __init__(
        self, lookup: PromptLookup, note: Callable[[Request], None], answer: Layer, *, clock: Callable[[], float]
    ) -> None:
        self._lookup = lookup
        self._note = note
        self._answer = answer
        self._clock = clock

    async def __call__(self, request: Request) -> None:
        """Answer a request whose input is whole. ApiError for a reference to token ids that nobody keeps."""
        trace = request.arrival.trace
        request = await self._lookup.complete(request)
        continuing, held = request.continuing, request.rendering.held_answer
        try:
            request.describe(trace)
            if trace.span is not None:
                trace.span.phase("render", (now := self._clock()) - request.render_seconds, now)
            self._note(request)
            answer = self._answer(request)
            del request  # the next layer decides how much of it is kept, and how long
            await answer
        finally:
            if held is not None:
                held.drop()
            if continuing is not None:
                trace.handle = continuing.ended(trace.decision.url if trace.decision else "")


def routing_prompt(
    info: RequestInfo, rendering: Rendering, text: Text, facts: RenderFacts, *, longest: int | None
) -> tuple[Rendering, Prompt]:
    """Return what decisions rest on: blocks, else the text where it may be used, else load. Pure.

    ``longest`` is the most tokens of prompt and answer that any worker takes.
    """
    keyed = rendering.prompt
    chunks = text.measured(keyed.tokens)
    guessed = text.size and (not keyed.block_size or not facts.indexed) and rendering.reason not in _TEXTLESS
    refused = keyed.tokens and longest is not None and keyed.tokens > longest  # by the engine
    if not guessed or refused:
        prompt = _prompt(info, keyed, chunks, longest=longest)
        return rendering, prompt if facts.indexed else replace(prompt, keys=b"", knowledge=Knowledge.LOAD)
    tokens = keyed.tokens or (text.tokens if longest is None else min(text.tokens, longest))
    guess = _prompt(info, Keyed(tokens), chunks, longest=longest)
    guess = replace(guess, block_size=facts.block_size, knowledge=Knowledge.APPROXIMATE)
    return replace(rendering, rung=Rung.TEXT) if rendering.rung is Rung.NONE else rendering, guess


def _prompt(info: RequestInfo, keyed: Keyed, chunks: Chunks, *, longest: int | None) -> Prompt:
    """With the answer bounded so that it and the prompt are ``longest`` tokens, the most that any worker takes."""
    most = info.max_tokens if longest is None else max(0, longest - keyed.tokens)
    return Prompt(
        tokens=keyed.tokens,
        keys=keyed.keys,
        block_size=keyed.block_size,
        max_tokens=min(info.max_tokens, most),
        knowledge=Knowledge.EXACT if keyed.block_size else Knowledge.LOAD,
        chunks=chunks,
    )


def _name(model: ServedModel) -> str:
    return f"{model.namespace}/{model.upstream}"


def _learn(estimates: TokenEstimates, model: str, size: int, tokens: int) -> None:
    estimates.learn(model, size=size, tokens=tokens)


def _ignore(_: int) -> None:
    """Ignore the number of tokens."""
