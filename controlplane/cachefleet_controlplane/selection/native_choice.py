"""Asks native code for the best of a table's candidates, and makes a decision of what it says.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.block_index import IndexDefectError
from cachefleet_controlplane.routing.decision import (
    CandidateScore,
    Decision,
    Knowledge,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
)
from cachefleet_controlplane.routing.hit_trust import counted
from cachefleet_controlplane.routing.later_scores import LEADING, LaterScores, leading_places
from cachefleet_controlplane.routing.prompt_blocks import usable_blocks, usable_tokens, wanted_blocks
from cachefleet_controlplane.routing.scoring import could, fits, score, unplaced
from cachefleet_controlplane.routing.told_reason import told_reason
from cachefleet_controlplane.selection.candidate_table import CandidateTable

_NO_FIT: Final = "no_fit"
"""Native code's reason where no worker has room."""
_REASONS: Final = {reason.value: reason for reason in Reason}


def chosen(
    index: cachefleet_native.Index,
    table: CandidateTable,
    prompt: Prompt,
    keys: bytes,
    *,
    sent: list[tuple[int, int]],
    matched: Sequence[int] | None = None,
    now: float,
) -> Decision | None:
    """Return the decision for a prompt whose ``keys`` the index may have; None where native code may be wrong of room.

    ``sent`` are the rows that were just sent some of its blocks, and how many. ``matched`` are the blocks that each row
    counts as holding, where it is not the index that knows. IndexDefectError.
    """
    needed = wanted_blocks(prompt)
    choice = _match(index, table, prompt, keys, needed=needed, sent=sent)
    if matched is None:
        matched = table.unpack(choice.depths)
    loadable = table.unpack(below) if (below := choice.loadable) else ()
    seen = _Seen(table, prompt, matched=matched, loadable=loadable, sent=dict(sent), now=now)
    if any(map(seen.misjudged, table.strained(needed))):
        return None
    knowledge = prompt.knowledge if keys and (table.any_fresh or sent) else Knowledge.LOAD
    first = choice.first
    leading, scores = seen.later(first, choice.second)
    if (reason := choice.reason) == _NO_FIT:
        if not seen.possible():
            return None
        policy, why = RoutingPolicy.CACHE_AWARE, Reason.NO_ROOM
        return unplaced(prompt, why, policy=policy, knowledge=knowledge, leading=leading, scores=scores, at=now)
    view, exact = table.rows[first].view, knowledge is Knowledge.EXACT
    predicted, loaded = seen.predicted(first)
    return Decision(
        verdict=Verdict.ROUTE,
        reason=told_reason(_REASONS[reason], prompt, predicted=predicted),
        policy=RoutingPolicy.CACHE_AWARE,
        knowledge=knowledge,
        worker=view.worker,
        id=view.id,
        pool=view.pool,
        url=view.url,
        rank=view.rank,
        prompt_tokens=prompt.tokens,
        predicted_tokens=predicted,
        loaded_tokens=loaded,
        uncached_tokens=prompt.tokens - choice.first_score[1],
        prefix_tokens=choice.longest if exact else 0,
        excess_seconds=choice.excess if exact else 0.0,
        paid_seconds=prompt.paid_seconds,
        queue_seconds=(view.queued_tokens + view.inflight_tokens) / table.throughputs[first].tokens_per_second,
        leading=leading,
        scores=scores,
        at=now,
    )


def _match(
    index: cachefleet_native.Index,
    table: CandidateTable,
    prompt: Prompt,
    keys: bytes,
    *,
    needed: int,
    sent: list[tuple[int, int]],
) -> cachefleet_native.Choice:
    try:
        choice = index.match_and_score(
            keys,
            table.names,
            table.loads,
            tokens=prompt.tokens,
            block_size=prompt.block_size,
            needed_blocks=needed,
            sent=sent,
            paid=prompt.paid_seconds,
            paid_tokens=prompt.paid_tokens,
        )
    except cachefleet_native.InternalError as error:
        raise IndexDefectError(str(error)) from error
    if choice is None:
        raise RuntimeError("candidates without a choice")
    return choice


class _Seen:
    """The candidates for one prompt at the time of its decision; scores are computed when asked for."""

    __slots__ = ("_loadable", "_matched", "_now", "_prompt", "_rows", "_sent", "_throughputs")

    def __init__(
        self,
        table: CandidateTable,
        prompt: Prompt,
        *,
        matched: Sequence[int],
        loadable: Sequence[int],
        sent: Mapping[int, int],
        now: float,
    ) -> None:
        """``loadable`` blocks follow the ``matched`` ones; () where nobody has any."""
        self._rows, self._throughputs = table.rows, table.throughputs
        self._prompt = prompt
        self._matched = matched
        self._loadable = loadable
        self._sent = sent
        self._now = now

    def score(self, place: int) -> CandidateScore:
        row, loadable = self._rows[place], self._loadable[place] if self._loadable else 0
        sent = self._sent.get(place, 0)
        cached = row.cached(matched=self._matched[place], loadable=loadable, sent=sent, now=self._now)
        return score(self._prompt, row.view, self._throughputs[place], cached)

    def predicted(self, place: int) -> tuple[int, int]:
        """Tokens predicted from a row's cache, and those of them that are to be loaded."""
        if self._loadable and self._loadable[place]:
            found = self.score(place)
            return found.predicted_tokens, found.loaded_tokens
        view = self._rows[place].view
        blocks = 0 if view.stale else counted(self._matched[place], view.trust)
        return usable_tokens(blocks, self._prompt), 0

    def misjudged(self, place: int) -> bool:
        """Whether native code, which knows neither shared nor missing blocks, judges this row's room differently."""
        row, needed = self._rows[place], wanted_blocks(self._prompt)
        view = row.view
        known = row.reported_at is not None and not view.stale
        held = usable_blocks(counted(self._matched[place], view.trust), self._prompt) if known else 0
        plain = view.stale or not view.requests or view.blocks_free is None or needed <= view.blocks_free
        return plain != fits(view, needed=needed, held=held)

    def possible(self) -> bool:
        """Whether any worker could ever have room."""
        return any(could(row.view, needed=wanted_blocks(self._prompt)) for row in self._rows)

    def later(self, first: int, second: int | None) -> tuple[LaterScores, LaterScores]:
        """The leading scores, and all, each when they are asked for."""
        count = len(self._rows)
        return LaterScores(min(LEADING, count), partial(self.leading, first, second)), LaterScores(count, self.all)

    def all(self) -> list[CandidateScore]:
        return [self.score(place) for place in range(len(self._rows))]

    def leading(self, first: int, second: int | None) -> list[CandidateScore]:
        known = [
            (0 if row.reported_at is None else matched, row.view.requests)
            for row, matched in zip(self._rows, self._matched, strict=True)
        ]
        return [self.score(place) for place in leading_places(known, first, second)]
