"""Of tokens that no worker held: where and why their prompt leaves its nearest earlier relative of the same tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cachefleet_controlplane.gateway.account.decision_told import decision_told
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.prompt_causes.cause_ledger import CauseLedger, Place
from cachefleet_controlplane.prompt_causes.prompt_cause import (
    LEAST_TOKENS,
    NOT_MENDED,
    PARTS,
    ROLES,
    Examined,
    PromptLoss,
    Relation,
    prompt_losses,
)
from cachefleet_controlplane.prompt_causes.prompt_lint import BLOCK_SIZE, LintReport, PromptSize, lint
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes
from cachefleet_controlplane.routing.decision import Decision, Knowledge
from cachefleet_controlplane.routing.lost_tokens import Levels, LostCause
from cachefleet_controlplane.store.decision_records import PromptLossRecord
from cachefleet_controlplane.wire.headers import Header

Clock = Callable[[], float]


class PromptLosses:
    """Notes prompts as they come, and tells causes as they end, to the ledger too; ``wall`` is Unix time in seconds."""

    def __init__(
        self, shapes: PromptShapes | None = None, ledger: CauseLedger | None = None, *, wall: Clock = time.time
    ) -> None:
        self.shapes = PromptShapes() if shapes is None else shapes
        self.ledger = CauseLedger() if ledger is None else ledger
        self._wall = wall

    def note(self, request: Request) -> None:
        """Read the shape of a request's prompt, whose blocks are known, while its body is still there."""
        prompt, info = request.prompt, request.info
        if not self.shapes.on or prompt.knowledge is not Knowledge.EXACT or prompt.tokens < LEAST_TOKENS:
            return
        if info.bypass is None and info.prompts == 1:
            request.arrival.trace.shape = self.shapes.read.shape(info.ask, request.salt)

    def telling(self, request: Request) -> None:
        """Have the answer's headers tell of the decision."""
        request.arrival.trace.tells = self._told

    def _told(self, trace: DecisionTrace, decision: Decision) -> Header:
        """The header that tells of a decision, before its answer or after; the causes are of what is expected then."""
        losses, relation = self._expected(trace, decision)
        mended = [one for one in losses if one.cause not in NOT_MENDED] or list(losses)
        dearest = max(mended, key=lambda one: one.tokens, default=None)
        cause = None if dearest is None else _record(dearest, relation, trace.block_size)
        return decision_told(decision, cached=None if trace.usage is None else trace.usage.cached_tokens, cause=cause)

    def _expected(self, trace: DecisionTrace, decision: Decision) -> tuple[tuple[PromptLoss, ...], Relation | None]:
        """The causes of those tokens of a prompt that no worker is expected to hold; none where that is not known."""
        size, shape, tokens = trace.block_size, trace.shape, decision.prompt_tokens
        if not size or shape is None or not tokens:
            return (), None
        servable = (tokens - 1) // size * size
        held = max(decision.forecast_tokens, decision.elsewhere_blocks * size, decision.elsewhere_tokens)
        prompt = Examined(prompt_tokens=tokens, block_size=size, first_seen=max(0, servable - held), servable=servable)
        if not prompt.first_seen:
            return (), None
        relation = self.shapes.nearest(_line(decision.pool, trace.model, trace.tenant), shape, trace.keys)
        return prompt_losses(relation, prompt), relation

    def ended(
        self, trace: DecisionTrace, decision: Decision, levels: Levels, lost: Mapping[LostCause, int]
    ) -> tuple[PromptLossRecord, ...]:
        """The causes of an ended prompt's first-seen tokens, which add up to these; empty without any."""
        first_seen, shape = lost.get(LostCause.FIRST_SEEN, 0), trace.shape
        losses, found = tuple[PromptLossRecord, ...](), tuple[PromptLoss, ...]()
        if first_seen or shape is not None:
            prompt = Examined(
                prompt_tokens=levels.prompt_tokens,
                block_size=trace.block_size,
                first_seen=first_seen,
                servable=min(levels.servable_tokens, levels.prompt_tokens),
            )
            line = _line(decision.pool, trace.model, trace.tenant)
            found, relation = self.shapes.ended(line, shape, trace.keys, prompt)
            losses = tuple([_record(one, relation, trace.block_size) for one in found])
        told = [one for one in zip(found, losses, strict=True) if one[0].cause not in NOT_MENDED]
        places = [(Place(loss.cause, record.part, record.role), loss.tokens) for loss, record in told]
        self.ledger.add((decision.pool, trace.tenant), levels.prompt_tokens, places, now=self._wall())
        return losses

    def lint(self, request: Request, pool: str) -> LintReport:
        """What of a request's prompt will not be served, beside the tenant's earlier ones of a pool; keeps nothing."""
        prompt, ask = request.prompt, request.info.ask
        shape = self.shapes.read.shape(ask, request.salt)
        if prompt.knowledge is not Knowledge.EXACT or shape is None:
            return lint(ask, shape, PromptSize.estimated(shape, prompt.block_size or BLOCK_SIZE), None)
        size = PromptSize(tokens=prompt.tokens, block_size=prompt.block_size, exact=True)
        line = _line(pool, request.model.name, request.tenant.name)
        return lint(ask, shape, size, self.shapes.nearest(line, shape, prompt.keys))


def _line(pool: str, model: str, tenant: str) -> str:
    """Prompts that are compared with each other."""
    return f"{pool} {model} {tenant}"


def _record(loss: PromptLoss, relation: Relation | None, block_size: int) -> PromptLossRecord:
    if relation is None or loss.cause in NOT_MENDED:
        return PromptLossRecord(loss.cause.value, loss.tokens)
    role = ROLES[relation.role] if relation.part else ""
    position = relation.blocks * block_size
    return PromptLossRecord(loss.cause.value, loss.tokens, position, PARTS[relation.part], role, relation.index)
