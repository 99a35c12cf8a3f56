"""Builds the routing input of a request: model, salt, token count, block keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.parse import upstream_body, upstream_fields
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.handles.handles import Handles, no_handles
from cachefleet_controlplane.gateway.handles.sending import Sending
from cachefleet_controlplane.gateway.handles.token_reference import about_tokens
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.placement.hit_thresholds import NO_THRESHOLDS, HitThresholds
from cachefleet_controlplane.gateway.placement.key_affinity import KeyAffinity
from cachefleet_controlplane.gateway.placement.prompt_knowledge import known_prompt
from cachefleet_controlplane.gateway.placement.refusals import no_such_model
from cachefleet_controlplane.gateway.rendering.key_cache import KeyCache
from cachefleet_controlplane.gateway.rendering.keying import Keying
from cachefleet_controlplane.gateway.rendering.outgoing import Outgoing
from cachefleet_controlplane.gateway.rendering.render_ladder import Rung
from cachefleet_controlplane.gateway.rendering.renderer import Renderer, render_ask
from cachefleet_controlplane.gateway.rendering.rendering_result import Rendering
from cachefleet_controlplane.gateway.rendering.text_keys import NO_TEXT, Text, Texts, TokenEstimates
from cachefleet_controlplane.pools.cache_salts import Salter
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.routing.affinity import leaning
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import Fields, encode
from cachefleet_controlplane.workers.views import ServedModel

NO_PROMPT: Final = Prompt()
NOT_RENDERED: Final = Rendering()


class RoutingInput(Struct, frozen=True):
    """One request with all that a decision needs; may be decided on repeatedly."""

    fleet: Fleet
    info: RequestInfo
    model: ServedModel
    body: bytes
    """The body that a worker is sent."""
    sent: int
    """Members of ``body``."""
    prompt: Prompt
    rendering: Rendering
    render_seconds: float
    tenant: TenantRecord
    salt: str = ""
    learn: Callable[[int], None] = lambda _: None
    """To be called with the number of tokens that the prompt turned out to have."""
    preferred: str = ""
    """Full name of the worker that is chosen among equals; "" for none."""
    sent_to: Callable[[str], None] = lambda _: None
    """To be called with the full name of the worker that it is sent to."""
    gate: HitThresholds = NO_THRESHOLDS
    duty: Duty = Duty.ANSWER
    """Whether workers are chosen to answer or to prefill."""
    continuing: Sending | None = None
    """What workers keep of the conversation; None where requests are always sent whole."""

    @property
    def line(self) -> tuple[str, str]:
        """Its line in the queue; prefill has a line of its own, since other workers need room for it."""
        name = self.model.base
        return self.model.namespace, name if self.duty is Duty.ANSWER else f"{name} {self.duty}"

    @property
    def sequences(self) -> int:
        """Answers that a worker computes for it."""
        return self.prompt.prompts * self.prompt.choices

    @property
    def who(self) -> str:
        """Role of the workers asked, for error messages; "" where all workers are alike."""
        if self.duty is Duty.PREFILL:
            return "prefill"
        return "decode" if self.gate.split else ""

    def decide(self, *, exclude: frozenset[str] = frozenset(), every: bool = False) -> Decision:
        """Decide now, without the workers in ``exclude`` (full names); ``preferred`` wins among equals.

        With ``every`` score of the candidates.
        """
        leans = bool(self.preferred) and self.preferred not in exclude
        name, every = self.model.name, every or leans
        decision = self.fleet.route(name, self.prompt, exclude=exclude, duty=self.duty, every=every)
        if not leans:
            return decision
        again = partial(self._without, exclude)
        return leaning(decision, self.preferred, again)

    def _without(self, exclude: frozenset[str], others: frozenset[str]) -> Decision:
        return self.fleet.route(self.model.name, self.prompt, exclude=exclude | others, duty=self.duty)


@dataclass(frozen=True, slots=True)
class Answering:
    """How a request will be answered: with the client's headers, and a body that ``marked`` makes of its own.

    ``beside``: the native request of the client that the answer is for.
    """

    headers: Sequence[Header] = field(repr=False)
    marked: Callable[[RoutingInput], bytes]
    beside: Any = field(default=None, repr=False)

    def outgoing(self, before: RoutingInput) -> Outgoing | None:
        """Return what a worker will be sent, save for late members; None for several prompts."""
        info = before.info
        if info.prompts != 1:
            return None
        return Outgoing(info.endpoint, self.marked(before), self.headers, before.model.upstream, self.beside)


class RoutingInputBuilder:
    """Builds routing inputs: finds the model, salts, renders and keys the prompt."""

    def __init__(
        self,
        fleet: Fleet,
        renderer: Renderer,
        *,
        salt_key: bytes,
        cache: KeyCache | None = None,
        texts: Texts | None = None,
        knowledge: Knowledge = Knowledge.EXACT,
        handles: Handles | None = None,
        unseen: UnseenText | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``knowledge`` is the most to be learnt of a prompt; without ``texts`` nothing is learnt of its text.

        With ``handles`` conversations may go by handle to workers that keep them. ``unseen`` says what of a text
        counts; every byte without it.
        """
        self._handles = handles
        self._unseen = unseen
        self._texts = texts
        self._knowledge = knowledge
        self._fleet = fleet
        self._renderer = renderer
        self._salter = Salter(salt_key)
        self._cache = cache
        self._clock = clock
        self._affinity = KeyAffinity()

    def find(self, model: str) -> ServedModel:
        """Return the model that a client names; the only one where it names none. ApiError 400 or 404."""
        if not model:
            models = self._fleet.models()
            if len(models) != 1:
                raise no_such_model(model, self._fleet.models(adapters=True))
            return models[0]
        served = self._fleet.serving(model)
        if served is None:
            raise no_such_model(model, self._fleet.models(adapters=True))
        return served

    async def place(
        self,
        info: RequestInfo,
        tenant: TenantRecord,
        *,
        model: ServedModel | None = None,
        keep_ids: bool = False,
        answering: Answering | None = None,
    ) -> RoutingInput:
        """Build the routing input of a tenant's request. ApiError where the model is not served.

        ``model`` is what ``find`` found, if it was asked. ``keep_ids``: with the prompt's token ids, where they can be
        had. ``answering``: it will be sent to a worker.
        """
        model = model or self.find(info.model)
        salt = self._salter.salt(model.declared, tenant.name, tenant.salt_version)
        gate = HitThresholds.of(info, model)
        fields = upstream_fields(info, model=model.upstream, salt=salt, gated=gate.ours)
        continuing = self._continuing(info, fields, model, tenant, salt) if answering or about_tokens(info) else None
        body = encode(fields)
        began = self._clock()
        text = self._text(info, model, salt=salt)
        preferred, sent_to = self._affinity.of(tenant.name, _name(model), info.cache_key)
        made = RoutingInput(
            *(self._fleet, info, model, body, len(fields), NO_PROMPT, NOT_RENDERED, 0.0, tenant, salt),
            preferred=preferred,
            sent_to=sent_to,
            gate=gate,
            continuing=continuing,
        )
        rendering = self._unasked(info)
        if rendering is None:
            workers = self._asked(model, text, continuing)
            rendering = await self._render(made, workers, answering, keep_ids=keep_ids)
        if continuing is not None:
            continuing.rendered(rendering.prompt.tokens)
            body = await continuing.whole(body) if gate.split else body
        seconds, learn = self._clock() - began, self._learner(info, model, rendering, text)
        facts = self._fleet.render_facts(model.name)
        rendering, prompt = known_prompt(info, rendering, text, facts, longest=model.max_model_len)
        if model.is_adapter:
            prompt = replace(prompt, adapter=model.upstream)
        if info.sequences > 1:
            most = self._fleet.most_blocks(model.name)
            prompt = replace(prompt, prompts=info.prompts, choices=info.choices, most_blocks=most)
        return replace(made, body=body, rendering=rendering, prompt=prompt, render_seconds=seconds, learn=learn)

    def _continuing(
        self, info: RequestInfo, fields: Fields, model: ServedModel, tenant: TenantRecord, salt: str
    ) -> Sending | None:
        """How the request is sent to workers that keep conversations. ApiError."""
        if self._handles is None or self._blind or self._knowledge is not Knowledge.EXACT:
            if about_tokens(info):
                raise no_handles(model)
            return None
        return self._handles.begin(info, fields, model=model, tenant=tenant.name, salt=salt)

    def _text(self, info: RequestInfo, model: ServedModel, *, salt: str) -> Text:
        """What is known of a prompt by its text."""
        if self._texts is None or self._knowledge is Knowledge.LOAD or self._blind:
            return NO_TEXT
        seen = render_ask(info) if self._unseen is None else self._unseen.of(render_ask(info), model)
        return self._texts.of(seen, model=_name(model), salt=salt)

    def _learner(
        self, info: RequestInfo, model: ServedModel, rendering: Rendering, text: Text
    ) -> Callable[[int], None]:
        """The function to call with a prompt's number of tokens, where that is not known yet."""
        if self._texts is None or not text.size:
            return _nobody
        learn = partial(_learn, self._texts.estimates, _name(model), text.size)
        if rendering.prompt.tokens and rendering.rung is not Rung.CLIENT:  # token ids in JSON are not text
            learn(rendering.prompt.tokens)
            return _nobody
        return learn if info.single and rendering.rung is Rung.NONE else _nobody

    def _asked(self, model: ServedModel, text: Text, continuing: Sending | None) -> list[WorkerEndpoint]:
        """Whom to ask for keys: first who will probably serve, which holds the request meanwhile."""
        facts = self._fleet.render_facts(model.name)
        if continuing is not None and continuing.only:
            return [one for one in self._fleet.renderers(model.name) if one.url == continuing.first]
        if continuing is not None and continuing.first:
            return sorted(self._fleet.renderers(model.name), key=lambda one: one.url != continuing.first)
        if not text.size or not facts.held_at:
            return self._fleet.renderers(model.name)
        guess = Prompt(text.tokens, block_size=facts.block_size, knowledge=Knowledge.APPROXIMATE, chunks=text.chunks)
        return self._fleet.renderers(model.name, guess)

    @property
    def _blind(self) -> bool:
        """The policy looks at nothing of the prompt."""
        return self._fleet.policy is RoutingPolicy.ROUND_ROBIN

    def _unasked(self, info: RequestInfo) -> Rendering | None:
        """The rendering of a prompt that nobody is asked to render; None where somebody is."""
        if self._blind:
            return NOT_RENDERED
        return None if self._knowledge is Knowledge.EXACT else self._renderer.switched_off(info)

    async def _render(
        self, before: RoutingInput, workers: Sequence[WorkerEndpoint], answering: Answering | None, *, keep_ids: bool
    ) -> Rendering:
        info, model, salt, body = before.info, before.model, before.salt, before.body
        first = render_ask(info)
        if first is not info:
            body, _ = upstream_body(first, model=model.upstream, salt=salt)
        keyer = partial(self._fleet.keyer, model.name, salt=salt)
        return await self._renderer.render(
            first,
            body,
            workers=workers,
            keying=Keying(keyer, model.max_model_len, self._cache, keep_ids),
            facts=self._fleet.render_facts(model.name),
            salt=salt,
            continuing=before.continuing,
            outgoing=None if answering is None else answering.outgoing(before),
        )


def _name(model: ServedModel) -> str:
    return f"{model.namespace}/{model.upstream}"


def _nobody(_: int) -> None:
    """Ignore the number of tokens."""


def _learn(estimates: TokenEstimates, model: str, size: int, tokens: int) -> None:
    estimates.learn(model, size=size, tokens=tokens)
