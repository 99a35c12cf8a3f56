"""Learns a prompt's length and keys by the render ladder; remembers which rung works on which worker.

Rungs: ``cache`` (the render cache), ``keys`` (the worker plugin's ``/v1/fleet/keys``, where a worker announced it),
``render`` (vLLM's ``.../render`` routes: exact for every body), ``tokenize`` (vLLM's ``/tokenize``: exact where it
takes everything the body has that shapes the prompt). Where none gives ids the prompt is keyed by its text or routed
by load alone, counted by reason. Dedicated renderers are asked before workers. A rung that one of them lacks, or that
failed there, is left out for a while and then tried again. Prompts whose blocks depend on more than ids are not
rendered, and counted apart; those with media only where no worker's keys take these into account.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from cachefleet_native import upstream_headers
from msgspec.structs import replace
from prometheus_client import Counter

from cachefleet_controlplane.exposition import remembering
from cachefleet_controlplane.gateway.apis.parse import first_prompt, given_ids
from cachefleet_controlplane.gateway.apis.request_info import Bypass, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.handles.sending import Sending
from cachefleet_controlplane.gateway.know.render_cache import RenderCache, digest
from cachefleet_controlplane.gateway.know.render_ladder import (
    Renderers,
    RungMemory,
    Try,
    keys_media,
    knows_bodies_of,
    ladder,
    tokenizable,
    tokenize_body,
)
from cachefleet_controlplane.gateway.know.rendering_result import (
    ABSENT_SECONDS,
    Keying,
    left_out_for,
    read,
)
from cachefleet_controlplane.gateway.request.rendered_prompt import (
    HeldRequest,
    Keyed,
    RenderFailure,
    Rendering,
    Rung,
)
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.source import WorkerEndpoint
from cachefleet_controlplane.workers.render_profiles import NO_FACTS, RenderFacts
from cachefleet_core.engine.answer_replay import HEADER as REPLAY_HEADER
from cachefleet_core.engine.held_requests import HOLD_HEADER, NOT_HELD, Hold
from cachefleet_core.prompt_keys import TOKEN_HEADER
from cachefleet_core.request_bodies import BodyError

WITH_IDS: Final = "&ids=1"
SWITCHED_OFF: Final = Rendering(reason=RenderFailure.SWITCHED_OFF)


class Renderer:
    """Asks for keys within ``timeout_seconds`` in all: first ``dedicated`` renderers, then workers.

    With a ``cache`` a prompt that was rendered before is not rendered again.
    """

    def __init__(
        self,
        upstream: Upstream,
        credentials: Credentials,
        *,
        metrics: Metrics,
        timeout_seconds: float,
        cache: RenderCache | None = None,
        dedicated: Renderers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._credentials = credentials
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._known = cache
        self._dedicated = dedicated or Renderers(())
        self._clock = clock
        self._memory = RungMemory()
        self._failures = Counter(
            "cachefleet_render_failures", "Attempts to learn ids that gave none", ["reason"], registry=metrics.registry
        )
        bypasses = "cachefleet_render_bypasses", "Requests whose ids nobody is asked for", ["reason"]
        self._bypasses = remembering(Counter(*bypasses, registry=metrics.registry))

    async def render(
        self,
        info: RequestInfo,
        body: bytes,
        *,
        workers: Sequence[WorkerEndpoint],
        keying: Keying,
        facts: RenderFacts = NO_FACTS,
        salt: str = "",
        continuing: Sending | None = None,
        request: Request | None = None,
    ) -> Rendering:
        """Render the first prompt of ``info``; ``body`` is what a worker is sent for it (see ``render_ask``).

        With ``request`` a worker that can hold it is sent that instead, and one that keeps its conversation is asked
        by handle.
        """
        if info.bypass is not None and not keys_media(info, facts):
            return self._bypassed(info.bypass)
        if given := _given(info, keying):
            return Rendering(given, Rung.CLIENT)
        began = self._clock()
        # What a medium's address names may change, and what an adapter's name means.
        cached = self._known is not None and info.bypass is None and not facts.adapter
        name = digest(info.endpoint, info.fields, renderer=f"{salt}\n{facts.renderer}") if cached else b""
        # Cached prompts have no ids.
        rendering = None if keying.keep_ids else self._recall(name)
        if rendering is None:
            rendering = await self._climb(
                *(info, body, continuing, request), workers=workers, keying=keying, facts=facts
            )
            self._remember(name, rendering.prompt)
        self._metrics.render(rung=rendering.rung, seconds=self._clock() - began)
        return rendering

    def switched_off(self, info: RequestInfo) -> Rendering:
        """Return the result for a prompt that is not to be rendered, and count why."""
        if info.bypass is not None:
            return self._bypassed(info.bypass)
        self._bypasses.labels(RenderFailure.SWITCHED_OFF).inc()
        return SWITCHED_OFF

    def _bypassed(self, bypass: Bypass) -> Rendering:
        self._bypasses.labels(bypass).inc()
        return Rendering(reason=bypass)

    def _recall(self, name: bytes) -> Rendering | None:
        known = None if self._known is None or not name else self._known.get(name)
        return None if known is None else Rendering(known, Rung.CACHE)

    def _remember(self, name: bytes, prompt: Keyed) -> None:
        if self._known is not None and name and prompt.tokens and prompt.block_size:
            self._known.put(name, replace(prompt, ids=None))

    async def _climb(
        self,
        info: RequestInfo,
        body: bytes,
        continuing: Sending | None,
        request: Request | None,
        *,
        workers: Sequence[WorkerEndpoint],
        keying: Keying,
        facts: RenderFacts,
    ) -> Rendering:
        began = self._clock()
        only = continuing is not None and continuing.only
        dedicated = [] if facts.adapter or info.bypass is not None else self._dedicated.next(began)
        last: Rendering | None = None
        for attempt in ladder(workers, info=info, facts=facts, dedicated=dedicated):
            left = began + self._timeout_seconds - self._clock()
            if left <= 0 or not self._open(attempt) or (only and (attempt.rung is not Rung.KEYS or attempt.dedicated)):
                continue
            by_handle = continuing if attempt.by_plugin and request is not None else None
            seconds = self._share(attempt, left)
            opened = await self._hold(*(attempt, request, by_handle), seconds=seconds, facts=facts, ids=keying.keep_ids)
            if opened is None:
                if attempt.rung is Rung.KEYS:
                    attempt = replace(attempt, query=attempt.query + WITH_IDS * keying.keep_ids)  # noqa: PLW2901
                opened = await self._ask(*(attempt, info, body, by_handle), seconds=seconds, facts=facts)
            keyed = read(opened, attempt.rung, info.endpoint, keying=keying)
            last = _with_request(keyed, opened, attempt, facts)
            self._note(attempt, opened, last)
            if last.prompt.tokens or _final(attempt, last.reason):
                break
        if last is None:
            last = Rendering(reason=_unasked(info, [*dedicated, *workers]))
        if last.reason is not None:
            self._failures.labels(last.reason).inc()
        return last

    def _open(self, attempt: Try) -> bool:
        now = self._clock()
        if attempt.dedicated and not self._dedicated.healthy(attempt.worker.url, now):
            return False
        return self._memory.open(*attempt.slot, now=now)

    def _share(self, attempt: Try, left: float) -> float:
        """Seconds for one try: half of the timeout at most, so that one that hangs leaves some for another."""
        parts = 4 if attempt.dedicated else 2  # both dedicated ones may hang
        return min(left, self._timeout_seconds / parts)

    async def _ask(
        self,
        attempt: Try,
        info: RequestInfo,
        body: bytes,
        continuing: Sending | None,
        *,
        seconds: float,
        facts: RenderFacts,
    ) -> AttemptResult:
        url = attempt.worker.url
        question = tokenize_body(info) if attempt.rung is Rung.TOKENIZE else body
        key = self._credentials.of_pool(facts.pool) if attempt.dedicated else self._credentials.of(url)
        headers = [("content-type", "application/json"), ("authorization", f"Bearer {key}")]
        if attempt.rung is Rung.KEYS:
            headers.append((TOKEN_HEADER, key))
        if continuing is not None:
            headers += continuing.headers(url)

        async def send(body: bytes) -> AttemptResult:
            return await self._upstream.ask(url, attempt.path + attempt.query, body, headers=headers, seconds=seconds)

        return await (send(question) if continuing is None else continuing.send(url, question, send))

    async def _hold(
        self,
        attempt: Try,
        request: Request | None,
        continuing: Sending | None,
        *,
        seconds: float,
        facts: RenderFacts,
        ids: bool,
    ) -> AttemptResult | None:
        """Send a worker the request itself, to render and hold it; None where it is to be asked for keys alone."""
        url = attempt.worker.url
        if request is None or not attempt.by_plugin or url not in facts.held_at:
            return None
        if not self._memory.open(url, HOLD_HEADER, now=self._clock()):
            return None
        key = self._credentials.of(url)
        kept_headers = [] if continuing is None else continuing.headers(url)

        async def send(body: bytes) -> AttemptResult:
            headers = [*_hold_headers(request, body, facts, key=key, ids=ids), *kept_headers]
            return await self._upstream.hold(
                url, request.info.endpoint, body, headers=headers, seconds=seconds, beside=request.client
            )

        opened = await (send(request.body) if continuing is None else continuing.send(url, request.body, send))
        if _is_not_held(opened):  # what it has announced holds until its engine is started anew
            self._memory.leave_out(url, HOLD_HEADER, until=self._clock() + ABSENT_SECONDS)
            return None
        return opened

    def _note(self, attempt: Try, opened: AttemptResult, rendering: Rendering) -> None:
        now, url = self._clock(), attempt.worker.url
        if attempt.dedicated and rendering.reason in {RenderFailure.FAILED, RenderFailure.TIMEOUT}:
            self._dedicated.failed(url, now)
        elif attempt.dedicated:
            self._dedicated.answered(url)
        # Not every dedicated renderer knows every model.
        stranger = attempt.dedicated and opened.answer is not None and opened.answer.status == 404
        if pause := ABSENT_SECONDS if stranger else left_out_for(rendering.reason):
            self._memory.leave_out(*attempt.slot, until=now + pause)


def _with_request(rendering: Rendering, opened: AttemptResult, attempt: Try, facts: RenderFacts) -> Rendering:
    """A rendering with the request itself, where its worker holds it."""
    url = attempt.worker.url
    if opened.held is not None:
        if rendering.prompt.tokens:
            return replace(rendering, held=HeldRequest(url, opened.held, url in facts.late_members_at))
        opened.held.drop()
    return rendering


def _hold_headers(request: Request, body: bytes, facts: RenderFacts, *, key: str, ids: bool) -> list[tuple[str, str]]:
    """Headers of a request that is to be held; ``body`` is what is sent of it, ``ids``: ids are wanted."""
    hold = Hold(
        length=len(body),
        contract=facts.contract,
        block_size=facts.block_size,
        lookahead=facts.lookahead,
        model=request.model.upstream,
        ids=ids,
    )
    headers = [*upstream_headers(request.headers, key=key), (HOLD_HEADER, hold.header())]
    return headers if request.replay is None else [*headers, (REPLAY_HEADER, request.replay.header)]


def _is_not_held(opened: AttemptResult) -> bool:
    """Whether a worker says that it holds requests no more."""
    answer = opened.answer
    return answer is not None and answer.status == 501 and NOT_HELD.encode() in answer.body


def _final(attempt: Try, reason: object) -> bool:
    """Whether to ask no other, who would say the same; that a request is invalid only a worker can tell."""
    return reason is RenderFailure.MULTIMODAL or (reason is RenderFailure.REFUSED and not attempt.dedicated)


def _unasked(info: RequestInfo, asked: Sequence[WorkerEndpoint]) -> RenderFailure:
    """The reason for no ids where nobody could be asked."""
    if not asked:
        return RenderFailure.NO_WORKER
    inexact = knows_bodies_of(info.endpoint) and not tokenizable(info)
    return RenderFailure.INEXACT if inexact else RenderFailure.ABSENT


def _given(info: RequestInfo, keying: Keying) -> Keyed | None:
    """Key the client's own ids; None where it sent none."""
    ids = given_ids(info)
    try:
        keyed = None if ids is None else keying.read(ids)
    except BodyError:
        return None
    return keyed if keyed and keyed.tokens else None


def render_ask(info: RequestInfo) -> RequestInfo:
    """Return the request with its first prompt alone."""
    if info.endpoint is not Endpoint.COMPLETIONS:
        return info
    fields = first_prompt(info)
    return info if fields is info.fields else info.with_fields(fields)
