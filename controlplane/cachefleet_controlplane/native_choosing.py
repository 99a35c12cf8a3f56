"""Decisions in native code: match and cost of all candidates in one call, the same ones as ``routing.decide`` makes.

Importing this module needs ``cachefleet_native``.
"""

from __future__ import annotations

import struct
from functools import partial

import cachefleet_native

from cachefleet_controlplane.boards import Board, Row, UnreckonableError
from cachefleet_controlplane.choosing import NO_ONE, Chooser
from cachefleet_controlplane.decisions import (
    CandidateScore,
    Decision,
    Knowledge,
    LaterScores,
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
)
from cachefleet_controlplane.native_index import NativeIndex
from cachefleet_controlplane.roster import Roster
from cachefleet_controlplane.routing import explain, needed_blocks, usable_tokens


class NativeChooser(Chooser):
    """Keeps a board for each fleet asked for. What is rare is decided as the plain one does.

    That is: another policy, workers excluded because they just failed, and loads too strange for native numbers.
    """

    def __init__(self, index: NativeIndex, roster: Roster) -> None:
        super().__init__(index, roster)
        self._native = index.native
        self._boards: dict[str, Board] = {}
        self._version = roster.version

    def choose(
        self, model: str, prompt: Prompt, *, policy: RoutingPolicy, now: float, exclude: frozenset[str] = NO_ONE
    ) -> Decision:
        usual = policy is RoutingPolicy.CACHE_AWARE and not exclude and not _disowned(prompt)
        board = self._board(model, now) if usual else None
        if board is None or not board.candidates:
            return super().choose(model, prompt, policy=policy, now=now, exclude=exclude)
        return self._ask(board, prompt, now)

    def _board(self, model: str, now: float) -> Board | None:
        """None where there is none to be had."""
        if self._version != self._roster.version:
            self._boards.clear()
            self._version = self._roster.version
        try:
            board = self._boards.get(model)
            if board is not None and board.follow(now):
                return board
            board = Board(self._roster.fleet(model), now)
        except UnreckonableError:
            self._boards.pop(model, None)
            return None
        if board.candidates:
            self._boards[model] = board
        return board

    def _ask(self, board: Board, prompt: Prompt, now: float) -> Decision:
        sent = board.sent(prompt.keys, now) if prompt.keys else []
        choice = self._native.match_and_score(
            prompt.keys,
            board.names,
            board.loads,
            tokens=prompt.tokens,
            block_size=prompt.block_size,
            needed_blocks=needed_blocks(prompt),
            sent=sent,
        )
        if choice is None:
            raise RuntimeError("candidates without a choice")
        depths = self._native.match_packed(prompt.keys, board.names)
        known = bool(prompt.keys) and (board.any_fresh or bool(sent))
        view = board.rows[choice.first].view
        score = _score(board, choice, prompt, now)
        return Decision(
            verdict=Verdict.ROUTE,
            reason=Reason(choice.reason),
            policy=RoutingPolicy.CACHE_AWARE,
            knowledge=prompt.knowledge if known else Knowledge.LOAD,
            worker=view.worker,
            id=view.id,
            pool=view.pool,
            url=view.url,
            rank=view.rank,
            prompt_tokens=prompt.tokens,
            predicted_tokens=score.predicted_tokens,
            score=score,
            scores=LaterScores(partial(_explain, board.rows, prompt, depths, dict(sent), now)),
            at=now,
        )


def _disowned(prompt: Prompt) -> bool:
    """It has keys that are not to be gone by."""
    return bool(prompt.keys) and prompt.knowledge is Knowledge.LOAD


def _score(board: Board, choice: cachefleet_native.Choice, prompt: Prompt, now: float) -> CandidateScore:
    """The chosen candidate's, out of the native one."""
    row, pace = board.rows[choice.first], board.paces[choice.first]
    view = row.view
    matched, expected, evicted, seconds, fits = choice.first_score
    known = row.reported_at is not None
    return CandidateScore(
        worker=view.worker,
        id=view.id,
        pool=view.pool,
        matched_blocks=matched if known else 0,
        predicted_tokens=0 if view.stale else usable_tokens(matched, prompt),
        expected_tokens=expected,
        queued_tokens=view.queued_tokens,
        inflight_tokens=view.inflight_tokens,
        uncached_tokens=prompt.tokens - expected,
        evicted_tokens=evicted,
        tokens_per_second=pace.tokens_per_second,
        inter_token_seconds=pace.inter_token_seconds,
        batched_tokens=pace.batched_tokens,
        requests=view.requests,
        seconds=seconds,
        report_age=None if row.reported_at is None else now - row.reported_at,
        fits=fits,
    )


def _explain(
    rows: tuple[Row, ...], prompt: Prompt, depths: bytes, sent: dict[int, int], now: float
) -> tuple[CandidateScore, ...]:
    """What ``routing`` says of all candidates, as they were."""
    matched = struct.unpack(f"<{len(rows)}I", depths)
    views = [row.seen(matched=matched[place], sent=sent.get(place, 0), now=now) for place, row in enumerate(rows)]
    return explain(prompt, views)
