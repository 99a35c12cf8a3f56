"""Decisions in native code: match and cost of all candidates in one call, with the results of ``scoring.decide``.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.native_index import NativeIndex
from cachefleet_controlplane.index.protocol import IndexDefectError
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
from cachefleet_controlplane.routing.scoring import (
    could,
    fits,
    needed_blocks,
    score,
    unplaced,
    usable_blocks,
    usable_tokens,
)
from cachefleet_controlplane.routing.told_reason import told_reason
from cachefleet_controlplane.selection.candidate_table import CandidateTable, NotScorableError
from cachefleet_controlplane.selection.selection import Duty, Selector, on_duty
from cachefleet_controlplane.workers.registry import Registry

_NO_FIT: Final = "no_fit"
"""Native code's reason where no worker has room."""


class NativeSelector(Selector):
    """Keeps a table of candidates for each fleet; rare cases are decided in Python.

    These are: another policy, excluded workers, refuted blocks, loads that native code does not accept, and workers
    whose room native code may judge wrongly.
    """

    def __init__(self, index: NativeIndex, registry: Registry) -> None:
        super().__init__(index, registry)
        self._native = index.native
        self._tables: dict[tuple[str, str, Duty], CandidateTable] = {}
        self._version = registry.version

    def _decide(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str], duty: Duty
    ) -> Decision:
        usual = policy is RoutingPolicy.CACHE_AWARE and not exclude and not self._distrusted(prompt)
        table = self._table(model, prompt.adapter, duty, now) if usual else None
        decision = self._ask(table, prompt, now) if table is not None and table.candidates else None
        return decision or super()._decide(model, prompt, policy=policy, now=now, exclude=exclude, duty=duty)

    def _distrusted(self, prompt: Prompt) -> bool:
        """Whether matches of the prompt may not be used as they are."""
        return _disowned(prompt) or bool(self._registry.refuted_blocks.bounds(prompt.keys))

    def _table(self, model: str, adapter: str, duty: Duty, now: float) -> CandidateTable | None:
        """The up-to-date table; None where native code cannot score its workers."""
        if self._version != self._registry.version:
            self._tables.clear()
            self._version = self._registry.version
        try:
            table = self._tables.pop((model, adapter, duty), None)
            if table is None or not table.follow(now):
                table = CandidateTable(on_duty(self._registry.fleet(model), duty), now, adapter)
        except NotScorableError:
            return None
        if table.candidates:
            self._tables[model, adapter, duty] = table
        return table

    def _ask(self, table: CandidateTable, prompt: Prompt, now: float) -> Decision | None:
        """None where native code may be wrong about room."""
        sent = table.sent(prompt.keys, now) if prompt.keys else []
        choice = self._match(table, prompt, sent)
        seen = _Seen(table, prompt, (choice.depths, choice.loadable), dict(sent), now)
        if any(map(seen.misjudged, table.strained(needed_blocks(prompt)))):
            return None
        known = bool(prompt.keys) and (table.any_fresh or bool(sent))
        knowledge = prompt.knowledge if known else Knowledge.LOAD
        leading = LaterScores(min(LEADING, len(seen)), partial(seen.leading, choice.first, choice.second))
        scores = LaterScores(len(seen), seen.all)
        if choice.reason == _NO_FIT:
            if not seen.possible():
                return None
            policy, reason = RoutingPolicy.CACHE_AWARE, Reason.NO_ROOM
            return unplaced(prompt, reason, policy=policy, knowledge=knowledge, leading=leading, scores=scores, at=now)
        view = table.rows[choice.first].view
        _, expected, *_ = choice.first_score
        predicted, loaded = seen.predicted(choice.first)
        return Decision(
            verdict=Verdict.ROUTE,
            reason=told_reason(Reason(choice.reason), prompt),
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
            uncached_tokens=prompt.tokens - expected,
            prefix_tokens=choice.longest if knowledge is Knowledge.EXACT else 0,
            excess_seconds=choice.excess if knowledge is Knowledge.EXACT else 0.0,
            paid_seconds=prompt.paid_seconds,
            leading=leading,
            scores=scores,
            at=now,
        )

    def _match(self, table: CandidateTable, prompt: Prompt, sent: list[tuple[int, int]]) -> cachefleet_native.Choice:
        try:
            choice = self._native.match_and_score(
                prompt.keys,
                table.names,
                table.loads,
                tokens=prompt.tokens,
                block_size=prompt.block_size,
                needed_blocks=needed_blocks(prompt),
                sent=sent,
                paid=prompt.paid_seconds,
                paid_tokens=prompt.paid_tokens,
            )
        except cachefleet_native.InternalError as error:
            raise IndexDefectError(str(error)) from error
        if choice is None:
            raise RuntimeError("candidates without a choice")
        return choice


def _disowned(prompt: Prompt) -> bool:
    """Whether the prompt has keys that must not be used."""
    return bool(prompt.keys) and prompt.knowledge is Knowledge.LOAD


class _Seen:
    """The candidates for one prompt at the time of its decision; scores are computed when asked for."""

    def __init__(
        self,
        table: CandidateTable,
        prompt: Prompt,
        depths: tuple[bytes, bytes],
        sent: Mapping[int, int],
        now: float,
    ) -> None:
        """``depths`` are the matched blocks, and the loadable ones that follow them; b"" where nobody has any."""
        self._rows, self._throughputs = table.rows, table.throughputs
        self._prompt = prompt
        packed, below = depths
        self._matched = struct.unpack(f"<{len(table.rows)}I", packed)
        self._loadable = struct.unpack(f"<{len(table.rows)}I", below) if below else ()
        self._sent = sent
        self._now = now

    def __len__(self) -> int:
        return len(self._rows)

    def score(self, place: int) -> CandidateScore:
        matched, loadable = self._matched[place], self._loadable[place] if self._loadable else 0
        view = self._rows[place].seen(matched=matched, loadable=loadable, sent=self._sent.get(place, 0), now=self._now)
        return score(self._prompt, view, self._throughputs[place])

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
        row, needed = self._rows[place], needed_blocks(self._prompt)
        view = row.view
        known = row.reported_at is not None and not view.stale
        held = usable_blocks(counted(self._matched[place], view.trust), self._prompt) if known else 0
        plain = view.stale or not view.requests or view.blocks_free is None or needed <= view.blocks_free
        return plain != fits(view, needed=needed, held=held)

    def possible(self) -> bool:
        """Whether any worker could ever have room."""
        return any(could(row.view, needed=needed_blocks(self._prompt)) for row in self._rows)

    def all(self) -> list[CandidateScore]:
        return [self.score(place) for place in range(len(self))]

    def leading(self, first: int, second: int | None) -> list[CandidateScore]:
        known = [
            (0 if row.reported_at is None else matched, row.view.requests)
            for row, matched in zip(self._rows, self._matched, strict=True)
        ]
        return [self.score(place) for place in leading_places(known, first, second)]
