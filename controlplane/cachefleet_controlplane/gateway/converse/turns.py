"""Turns of conversations: looked up before the prompt is rendered, planned after that, committed at the end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import GENERATING, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.converse.checkpoint import (
    Fresh,
    Lineage,
    Owner,
    Receipt,
    Status,
    WorkerEpoch,
    checkpoint,
)
from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.gateway.converse.records import FinishedTurn as TurnRecord
from cachefleet_controlplane.gateway.converse.rehydration import continued, finished, previous_id
from cachefleet_controlplane.gateway.converse.response_histories import Histories
from cachefleet_controlplane.gateway.converse.retention import Allowance, allowance
from cachefleet_controlplane.gateway.converse.sessions import (
    SESSION_HEADER,
    ConversationState,
    Event,
    Head,
    after,
    name_digest,
    session_event,
    session_name,
)
from cachefleet_controlplane.gateway.converse.turn import Ending, NamedTurn, PlainTurn, Thread, Turn
from cachefleet_controlplane.gateway.converse.turn_plan import TurnOutcome, TurnPlan, plan
from cachefleet_controlplane.gateway.handles.fingerprints import fingerprints
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.pools.cache_salts import isolation
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.store.content.store_thread import StoreThread
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.policy import Isolation

logger = logging.getLogger(__name__)

SESSION: Final = "session"
RESPONSE: Final = "response"
MAX_KEYS: Final = 16_384
"""Block keys of one checkpoint."""

Planned = Callable[[NamedTurn, TurnPlan, Request], None]


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Dependencies of all turns; ``max_keys`` bounds the block keys of one checkpoint."""

    fleet: Fleet
    store_thread: StoreThread[SqlContinuations]
    histories: Histories
    metrics: ContinuationMetrics
    key: bytes
    unseen: UnseenText
    max_keys: int = MAX_KEYS
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: secrets.token_hex(12)


class Turns:
    """Begins turns, and counts their outcomes; ``on_plan`` is called with each plan."""

    def __init__(self, parts: TurnContext, *, on_plan: Planned = lambda _turn, _plan, _request: None) -> None:
        self._parts = parts
        self._on_plan = on_plan
        self.histories = parts.histories

    async def whole(
        self,
        info: RequestInfo,
        tenant: TenantRecord,
        model: ServedModel,
        before: tuple[Raw, ...] | None = None,
    ) -> RequestInfo:
        """Return the request with the conversation that it continues, if any: ``before``, or the stored one.

        ApiError 400, 404, 413, 503.
        """
        previous = previous_id(info) if info.endpoint is Endpoint.RESPONSES else ""
        if not previous:
            return info
        if before is not None:
            return continued(info, before)
        return await self._parts.histories.continued(info, previous, tenant=tenant.name, model=model)

    async def begin(
        self,
        info: RequestInfo,
        headers: Iterable[Header],
        *,
        tenant: TenantRecord,
        model: ServedModel,
        before: tuple[Raw, ...] | None = None,
    ) -> Turn:
        """Look up the conversation of a request. ApiError 400 for an invalid name or state, and as ``whole``.

        ``before`` are the items up to the previous response, where the caller has them.
        """
        given, allowed = list(headers), allowance(model.declared)
        previous = previous_id(info) if info.endpoint is Endpoint.RESPONSES else ""
        whole = await self.whole(info, tenant, model, before)
        stores = self._parts.histories.stores(whole, allowed)
        if not allowed.enabled:
            named = any(name == SESSION_HEADER for name, _ in given)
            return PlainTurn(whole, TurnOutcome.OFF if named else None)
        session = session_name(given) if info.endpoint in GENERATING else b""
        if not (session or stores or (previous and allowed.history)):
            return PlainTurn(whole)
        owner = Owner(tenant.name, f"{model.namespace}/{model.upstream}")
        settling = _Settling(self._parts, owner, tenant, model, allowed, session_event(given), self._on_plan)
        try:
            thread = await self._thread(owner, session, previous)
        except StoreError:
            return PlainTurn(whole, TurnOutcome.STORE_FAILED)
        # A first response begins with nothing to compare, and most are never continued.
        keeps_ids = bool(session or previous)
        turn = NamedTurn(whole, thread, settling, previous=previous, stores=stores, keeps_ids=keeps_ids)
        turn.leaves = bool(session) or stores
        return turn

    def over(self, turn: Turn) -> None:
        """Count the outcome of a turn whose request has ended, however."""
        if turn.outcome is not None:
            self._parts.metrics.turn(turn.outcome)

    async def _thread(self, owner: Owner, session: bytes, previous: str) -> Thread:
        parts, began = self._parts, self._parts.clock()
        if session:
            name = name_digest(parts.key, SESSION, session)
            head = await parts.store_thread.ask("lookup", lambda store: store.head(owner, name))
            thread = _following(name, head, parts.wall_clock())
        elif previous:
            found = await parts.store_thread.ask("lookup", lambda store: store.branch(owner, previous))
            at_head = found is not None and found[0].checkpoint == found[1]
            if found is None or not at_head:
                branch = None if found is None else found[1]
                thread = Thread(parent=None if branch is None else branch.id, checkpoint=branch)
            else:
                thread = _following(found[0].name, found[0], parts.wall_clock())
        else:
            return Thread()
        parts.metrics.looked_up(parts.clock() - began)
        return thread


def _following(name: str, head: Head | None, now: float) -> Thread:
    """The next turn of a conversation; the first of a new one where it has expired."""
    if head is None:
        return Thread(name=name)
    if head.at(now) is ConversationState.EXPIRED or head.checkpoint is None:
        return Thread(name=name, checkpoint=head.checkpoint)
    return Thread(
        name=name,
        conversation=head.id,
        expected=head.checkpoint.id,
        seq=head.seq,
        parent=head.checkpoint.id if head.checkpoint.status is Status.ACCEPTED else head.checkpoint.parent,
        checkpoint=head.checkpoint,
        preferred=head.preferred(now),
    )


@dataclass(frozen=True, slots=True)
class _Settling:
    """Plans and commits one turn for its tenant and its model."""

    parts: TurnContext
    owner: Owner
    tenant: TenantRecord
    model: ServedModel
    allowed: Allowance
    event: Event
    on_plan: Planned

    def planned(self, turn: NamedTurn, request: Request) -> TurnOutcome:
        parts, began = self.parts, self.parts.clock()
        turn.fresh = self._fresh(turn.info, request)
        made = plan(turn.thread.checkpoint, turn.fresh, now=parts.wall_clock())
        parts.metrics.planned(made, seconds=parts.clock() - began)
        self.on_plan(turn, made, request)
        return made.outcome

    async def commit(self, turn: NamedTurn, ending: Ending) -> TurnOutcome:
        parts, began = self.parts, self.parts.clock()
        before = turn.outcome or TurnOutcome.NO_CHECKPOINT
        try:
            record = self._record(turn, ending)
            kept = await parts.store_thread.ask("commit", lambda store: store.commit(record()))
            outcome = before if kept else TurnOutcome.CONFLICT
        except StoreError:
            outcome = TurnOutcome.STORE_FAILED
        parts.metrics.committed(parts.clock() - began)
        return outcome

    def _record(self, turn: NamedTurn, ending: Ending) -> Callable[[], TurnRecord]:
        """Return what builds the record; it runs in the store's thread, since encryption takes time."""
        parts, thread, now = self.parts, turn.thread, self.parts.wall_clock()
        response = finished(ending.body) if ending.body else None
        number, expires = parts.new_id(), now + self.allowed.ttl_seconds
        name = thread.name or name_digest(parts.key, RESPONSE, response.id.encode() if response else number.encode())
        lineage = Lineage(
            id=number,
            conversation=thread.conversation or number,
            seq=thread.seq + 1,
            parent=thread.parent,
            response=response.id if response and turn.stores else None,
            status=Status.EPHEMERAL if ending.calls_tool else Status.ACCEPTED,
            created=now,
            expires=expires,
        )
        fresh, place = turn.fresh, self._place(turn.served())
        made = None if fresh is None else checkpoint(lineage, fresh, place, max_keys=parts.max_keys)
        state = after(ConversationState.ACTIVE, self.event)

        def record() -> TurnRecord:
            kept = None
            if response is not None and turn.stores:
                kept = parts.histories.sealed(turn.info, response, ending.body, self.owner, now=now, expires=expires)
            return TurnRecord(
                owner=self.owner, name=name, expected=thread.expected, state=state, checkpoint=made, response=kept
            )

        return record

    def _fresh(self, info: RequestInfo, request: Request) -> Fresh:
        keyed, facts = request.rendering.prompt, self.parts.fleet.render_facts(self.model.name)
        shared = isolation(self.model.declared) is Isolation.SHARED
        return Fresh(
            tokens=keyed.tokens,
            keys=keyed.keys,
            boundaries=keyed.boundaries,
            receipt=Receipt(
                facts.contract, keyed.block_size or facts.block_size, None if shared else self.tenant.salt_version
            ),
            fingerprints=fingerprints(
                self.owner.model, facts.rendered_by, self.parts.unseen.of(info, self.model), key=self.parts.key
            ),
            ids=keyed.ids,
            lookahead=facts.lookahead,
        )

    def _place(self, decision: Decision | None) -> WorkerEpoch:
        if decision is None:
            return WorkerEpoch()
        hellos = self.parts.fleet.announced(self.model.name)
        epoch = next((h.epoch for h in hellos if (h.pool, h.worker) == (decision.pool, decision.worker)), "")
        return WorkerEpoch(decision.full_name, epoch)
