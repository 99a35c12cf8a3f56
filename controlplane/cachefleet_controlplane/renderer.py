"""A prompt's token ids, as keys, from the workers' own renderer; a ladder with a memory of which rung holds where.

Rungs: ``render`` (vLLM's ``.../render`` routes: exact for every body), ``tokenize`` (vLLM's ``/tokenize``: exact where
it takes everything the body has that shapes the prompt), none: routed by load alone, visibly, counted by reason. A
rung that a worker lacks, or that failed there, is left out for a while and then tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct
from prometheus_client import Counter

from cachefleet_controlplane.gateway.credentials import Credentials
from cachefleet_controlplane.gateway.legs import Outcome
from cachefleet_controlplane.gateway.request import (
    READ_ERRORS,
    Ask,
    Endpoint,
    Fields,
    first_prompt,
    given_ids,
    is_null,
)
from cachefleet_controlplane.gateway.upstream import Answer, Opened, Upstream
from cachefleet_controlplane.keying import NOTHING, Keyed, Keying
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools import WorkerEndpoint
from cachefleet_core.bodies import BodyError

MAX_WORKERS: Final = 2
"""Workers asked for one prompt."""
ABSENT_SECONDS: Final = 60.0
"""How long a rung that a worker does not have is left out there."""
FAILED_SECONDS: Final = 5.0
"""How long a rung that failed on a worker is left out there."""
MAX_REMEMBERED: Final = 4096


class Rung(StrEnum):
    """Where ids came from."""

    CLIENT = "client"
    RENDER = "render"
    TOKENIZE = "tokenize"
    NONE = "none"


class Reason(StrEnum):
    """Why there are no ids."""

    NO_WORKER = "no_worker"
    ABSENT = "absent"
    """The worker lacks the route."""
    REFUSED = "refused"
    """The worker finds fault with the request, and will say so when asked to answer it."""
    UNAUTHORIZED = "unauthorized"
    FAILED = "failed"
    TIMEOUT = "timeout"
    MULTIMODAL = "multimodal"
    """Blocks depend on more than ids."""
    UNREADABLE = "unreadable"
    INEXACT = "inexact"
    """/tokenize would leave out something that shapes the prompt."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the ids of a prompt gave, or why there are none."""

    prompt: Keyed = NOTHING
    rung: Rung = Rung.NONE
    reason: Reason | None = None


class _Rendered(Struct, frozen=True):
    token_ids: Raw
    features: Raw = Raw(b"null")


class _Tokenized(Struct, frozen=True):
    tokens: Raw


class _ErrorType(Struct, frozen=True):
    type: str = ""


class _Error(Struct, frozen=True):
    error: _ErrorType


_chat = msgspec.json.Decoder(_Rendered)
_completions = msgspec.json.Decoder(list[_Rendered])
_tokenized = msgspec.json.Decoder(_Tokenized)
_error = msgspec.json.Decoder(_Error)
_encode = msgspec.json.Encoder().encode

_TOKENIZE_FIELDS: Final = {
    Endpoint.CHAT: (
        *("model", "messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs"),
        *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    ),
    Endpoint.COMPLETIONS: ("model", "prompt", "add_special_tokens"),
}
_SHAPING_FIELDS: Final = ("documents", "reasoning_effort", "truncate_prompt_tokens", "prompt_embeds")
"""What shapes a prompt and /tokenize does not take."""
_MEDIA: Final = (b"_url", b"_audio", b"_embeds", b"image_pil", b'"image', b'"video')


class RungMemory:
    """Which rungs not to try on which worker, and until when; bounded."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._until: dict[tuple[str, Rung], float] = {}

    def leave_out(self, url: str, rung: Rung, *, until: float) -> None:
        self._until.pop((url, rung), None)
        self._until[url, rung] = until
        if len(self._until) > self._limit:
            del self._until[next(iter(self._until))]

    def open(self, url: str, rung: Rung, *, now: float) -> bool:
        return self._until.get((url, rung), now) <= now


@dataclass(frozen=True, slots=True)
class Try:
    """One worker asked on one rung."""

    worker: WorkerEndpoint
    rung: Rung


def ladder(workers: Sequence[WorkerEndpoint], memory: RungMemory, *, tokenizable: bool, now: float) -> list[Try]:
    """What to try, in order: every worker's renderer, best worker first, then their tokenizers."""
    rungs = (Rung.RENDER, Rung.TOKENIZE) if tokenizable else (Rung.RENDER,)
    return [
        Try(worker, rung)
        for rung in rungs
        for worker in workers[:MAX_WORKERS]
        if memory.open(worker.url, rung, now=now)
    ]


def tokenizable(ask: Ask) -> bool:
    """Whether /tokenize sees all of the body that shapes the prompt."""
    if any(not is_null(ask.fields, name) for name in _SHAPING_FIELDS):
        return False
    # A word in the text may look like media; that costs this prompt a rung, nothing more.
    messages = bytes(ask.fields.get("messages", b""))
    return not any(sign in messages for sign in _MEDIA)


def tokenize_body(ask: Ask) -> bytes:
    fields: Fields = first_prompt(ask)
    return _encode({name: fields[name] for name in _TOKENIZE_FIELDS[ask.endpoint] if name in fields})


def read(opened: Opened, rung: Rung, endpoint: Endpoint, *, keying: Keying) -> Rendering:
    """What a worker's answer to a rung's question says."""
    if opened.answer is None:
        return Rendering(reason=Reason.TIMEOUT if opened.outcome is Outcome.SILENT else Reason.FAILED)
    if opened.answer.status != 200:
        return Rendering(reason=_refusal(opened.answer))
    try:
        return _rendering(opened.answer.body, rung, endpoint, keying=keying)
    except (*READ_ERRORS, BodyError):
        return Rendering(reason=Reason.UNREADABLE)


def left_out_for(reason: Reason | None) -> float:
    """How long not to try a rung again on a worker that gave this reason; 0 where the worker is not at fault."""
    if reason in {Reason.ABSENT, Reason.UNAUTHORIZED, Reason.UNREADABLE}:
        return ABSENT_SECONDS
    return FAILED_SECONDS if reason in {Reason.FAILED, Reason.TIMEOUT} else 0.0


def _rendering(body: bytes, rung: Rung, endpoint: Endpoint, *, keying: Keying) -> Rendering:
    if rung is Rung.TOKENIZE:
        return Rendering(keying.read(_tokenized.decode(body).tokens), rung)
    rendered = _chat.decode(body) if endpoint is Endpoint.CHAT else next(iter(_completions.decode(body)), None)
    if rendered is None:
        return Rendering(reason=Reason.UNREADABLE)
    if bytes(rendered.features) != b"null":
        return Rendering(reason=Reason.MULTIMODAL)
    return Rendering(keying.read(rendered.token_ids), rung)


def _refusal(answer: Answer) -> Reason:
    if answer.status in {401, 403}:
        return Reason.UNAUTHORIZED
    if answer.status in {404, 405, 501}:
        # An unknown model is a 404 too, with vLLM's own type.
        return Reason.REFUSED if _error_type(answer.body) == "NotFoundError" else Reason.ABSENT
    return Reason.REFUSED if answer.status < 500 else Reason.FAILED


def _error_type(body: bytes) -> str:
    try:
        return _error.decode(body).error.type
    except READ_ERRORS:
        return ""


class Renderer:
    """Asks workers for ids within ``timeout_seconds`` in all."""

    def __init__(
        self,
        upstream: Upstream,
        credentials: Credentials,
        *,
        metrics: Metrics,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._credentials = credentials
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._memory = RungMemory()
        self._failures = Counter(
            "cachefleet_render_failures", "Attempts to learn ids that gave none", ["reason"], registry=metrics.registry
        )

    async def render(self, ask: Ask, body: bytes, *, workers: Sequence[WorkerEndpoint], keying: Keying) -> Rendering:
        """The first prompt of ``ask``; ``body`` is what a worker is sent for it (see first_prompt)."""
        if given := _given(ask, keying):
            return Rendering(given, Rung.CLIENT)
        began = self._clock()
        rendering = await self._climb(ask, body, workers=workers, keying=keying, began=began)
        self._metrics.render(rung=rendering.rung, seconds=self._clock() - began)
        return rendering

    async def _climb(
        self, ask: Ask, body: bytes, *, workers: Sequence[WorkerEndpoint], keying: Keying, began: float
    ) -> Rendering:
        fits = tokenizable(ask)
        last = Rendering(reason=Reason.NO_WORKER if not workers else Reason.ABSENT if fits else Reason.INEXACT)
        for attempt in ladder(workers, self._memory, tokenizable=fits, now=began):
            left = began + self._timeout_seconds - self._clock()
            if left <= 0 or not self._memory.open(attempt.worker.url, attempt.rung, now=self._clock()):
                continue
            # The first may take half of the time, so that one that hangs leaves some for another.
            opened = await self._ask(attempt, ask, body, seconds=min(left, self._timeout_seconds / 2))
            last = read(opened, attempt.rung, ask.endpoint, keying=keying)
            self._note(attempt, last)
            if last.prompt.tokens or last.reason in {Reason.REFUSED, Reason.MULTIMODAL}:
                break
        if last.reason is not None:
            self._failures.labels(last.reason).inc()
        return last

    async def _ask(self, attempt: Try, ask: Ask, body: bytes, *, seconds: float) -> Opened:
        url, tokenize = attempt.worker.url, attempt.rung is Rung.TOKENIZE
        path = "/tokenize" if tokenize else f"{ask.endpoint}/render"
        question = tokenize_body(ask) if tokenize else body
        headers = [("content-type", "application/json"), ("authorization", f"Bearer {self._credentials.of(url)}")]
        return await self._upstream.ask(url, path, question, headers=headers, seconds=seconds)

    def _note(self, attempt: Try, rendering: Rendering) -> None:
        if pause := left_out_for(rendering.reason):
            self._memory.leave_out(attempt.worker.url, attempt.rung, until=self._clock() + pause)


def _given(ask: Ask, keying: Keying) -> Keyed | None:
    """What the client's own ids give; None where it sent none."""
    ids = given_ids(ask)
    try:
        keyed = None if ids is None else keying.read(ids)
    except BodyError:
        return None
    return keyed if keyed and keyed.tokens else None


def render_ask(ask: Ask) -> Ask:
    """The request with its first prompt alone."""
    fields = first_prompt(ask)
    return ask if fields is ask.fields else replace(ask, fields=fields)
