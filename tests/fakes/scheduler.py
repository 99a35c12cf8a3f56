"""vLLM's scheduler for one full-attention model: continuous batching with chunked prefill, first come first served.

Pure: a caller alternates ``schedule`` and ``update``; between them lies the time a forward pass would take. What is
kept from the real one is what shows outside: admission order, prefix hits (never the whole prompt), caching at the
step that fills a block, preemption of the latest request when a running one needs a block, recomputation after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.block_pool import Block, BlockPool
from tests.fakes.chain import Chains, Link
from tests.fakes.counters import Counters
from tests.fakes.finish import Finish
from tests.fakes.gate import Gated
from tests.fakes.kv_events import Event


@dataclass(slots=True, eq=False)
class Sequence:
    """One generation in the engine: a request has one per prompt and per ``n``."""

    tokens: list[int]
    max_tokens: int
    choice: int = 0
    salt: str = ""
    ignore_eos: bool = False
    session_id: str | None = None
    report_all: bool = False
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    """Of its output, before which it says none that would end it."""
    script: tuple[int, ...] = ()
    """What it will say; empty where that is the sampler's choice."""
    on_output: Callable[[Sequence], None] = lambda _: None
    prompt_tokens: int = 0
    arrived: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    links: list[Link] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    computed: int = 0
    stored: int = 0
    cached_tokens: int | None = None
    created_tokens: int = 0
    preemptions: int = 0
    resumable: bool = False
    """Marked: the plugin may hand it back."""
    gated: Gated = field(default_factory=Gated)
    refused_for: tuple[int, float] | None = None
    """Tokens that were cached, and the threshold they were too few for."""
    finish: Finish | None = None
    stop_reason: str | int | None = None
    running: bool = False
    text_hash: Any = None

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_tokens :]


@dataclass(slots=True)
class Step:
    """What one forward pass computes: new tokens per sequence."""

    work: list[tuple[Sequence, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    decoding: int = 0

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.work)


class Scheduler:
    """``sample`` gives the next token of a sequence whose tokens are all computed; ``eos`` ends one."""

    def __init__(
        self,
        pool: BlockPool,
        sample: Callable[[Sequence], int],
        *,
        eos: int,
        max_num_seqs: int,
        max_batched_tokens: int,
        max_model_len: int,
        lookahead: int = 0,
    ) -> None:
        self.pool = pool
        self.counters = Counters()
        self.hand_backs: deque[int] = deque()
        """After how many tokens the next marked sequences are handed back, though nothing preempted them."""
        self.threshold = 0.0
        """The policy's, for those who bring none."""
        self.running: list[Sequence] = []
        self._refused: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._sample = sample
        self._eos = eos
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._max_model_len = max_model_len
        self._chains = Chains(pool.block_size, lookahead)

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        self._chains.extend(sequence.links, sequence.tokens, sequence.salt)
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Free a sequence at once; nothing happens if it has finished."""
        if sequence.finish is not None:
            return
        if sequence.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._finish(sequence, Finish.ABORT)

    def preempt_all(self) -> None:
        """Have every running sequence computed again."""
        while self.running:
            self._preempt(self.running.pop())

    def schedule(self) -> Step:
        step = Step()
        before = self.counters.preemptions
        budget = self._schedule_running(step)
        if self.counters.preemptions == before:
            self._schedule_waiting(step, budget)
        for sequence, count in step.work:
            _count(step, sequence, count)
            sequence.computed += count
        return step

    def update(self, step: Step) -> tuple[list[Sequence], list[Event]]:
        """The sequences that got a token in this step or were refused, and the cache's events."""
        refused, self._refused = self._refused, []
        advanced = [s for s, _ in step.work if s.finish is None and s.computed == len(s.tokens)]
        for sequence in advanced:
            self._advance(sequence)
        return refused + advanced, self.pool.take_events()

    def _schedule_running(self, step: Step) -> int:
        budget = self._max_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            count = min(len(sequence.tokens) - sequence.computed, budget)
            if not self._make_room(sequence, count):
                break
            step.work.append((sequence, count))
            budget -= count
            index += 1
        return budget

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Blocks for ``count`` more tokens, preempting from the back; False if that took the sequence itself."""
        while not self._grow(sequence, count):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, count: int) -> bool:
        target = sequence.computed + count
        missing = self._blocks_for(target) - len(sequence.blocks)
        if missing > self.pool.free:
            return False
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        self._store(sequence, target)
        return True

    def _store(self, sequence: Sequence, tokens: int) -> None:
        full = min(min(tokens, len(sequence.tokens)) // self.pool.block_size, len(sequence.links))
        if full <= sequence.stored:
            return
        span = slice(sequence.stored, full)
        self.pool.store(sequence.blocks[span], sequence.links[span], sequence.session_id)
        sequence.stored = full

    def _preempt(self, victim: Sequence) -> None:
        self._release(victim)
        victim.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(victim)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.stored = 0
        sequence.running = False

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            if self._refuses(sequence):
                self._refused.append(self.waiting.popleft())
                continue
            count = self._admit(sequence, budget)
            if count == 0:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.running = True
            step.work.append((sequence, count))
            budget -= count

    def _refuses(self, sequence: Sequence) -> bool:
        """The gate: of a fresh request too little is cached, or given by a connector."""
        if sequence.preemptions or not self.pool.caching or not sequence.gated.asks(self.threshold):
            return False
        total = len(sequence.tokens)
        computed = self._computed(sequence, len(self.pool.lookup(sequence.links, (total - 1) // self.pool.block_size)))
        sequence.refused_for = sequence.gated.refusal(computed, total, default=self.threshold)
        if sequence.refused_for:
            sequence.finish = sequence.stop_reason = Finish.HANDED_BACK
        return sequence.refused_for is not None

    def _computed(self, sequence: Sequence, hits: int) -> int:
        """Tokens that need no computing: never the last one."""
        return len(sequence.tokens) - 1 if sequence.gated.filled else hits * self.pool.block_size

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Tokens to compute now for a waiting sequence, or 0 where the whole of it does not fit."""
        total = len(sequence.tokens)
        hits = self.pool.lookup(sequence.links, (total - 1) // self.pool.block_size)
        if sequence.report_all:
            self.pool.report(sequence.links[: len(hits)], sequence.session_id)
        cached = len(hits) * self.pool.block_size
        computed = self._computed(sequence, len(hits))
        if sequence.preemptions == 0:
            sequence.cached_tokens = computed
        idle_hits = sum(block.references == 0 for block in hits)
        if self._blocks_for(total) - len(hits) + idle_hits > self.pool.free:
            return 0
        self._record_lookup(sequence, total, cached)
        self.pool.touch(hits)
        sequence.blocks = hits
        sequence.stored = len(hits)
        sequence.computed = computed
        count = min(total - computed, budget)
        self._grow(sequence, count)
        return count

    def _record_lookup(self, sequence: Sequence, total: int, cached: int) -> None:
        if self.pool.caching and sequence.preemptions == 0:
            self.counters.queries += total
            self.counters.hits += cached

    def _advance(self, sequence: Sequence) -> None:
        if len(sequence.tokens) == sequence.prompt_tokens:
            created = min(sequence.stored * self.pool.block_size, sequence.prompt_tokens)
            sequence.created_tokens = max(0, created - (sequence.cached_tokens or 0)) if self.pool.caching else 0
        token = self._sample(sequence)
        sequence.tokens.append(token)
        self._chains.extend(sequence.links, sequence.tokens, sequence.salt)
        reason = self._finish_reason(sequence, token)
        if reason is not None:
            self.running.remove(sequence)
            self._finish(sequence, reason)

    def _finish_reason(self, sequence: Sequence, token: int) -> Finish | None:
        if token == self._eos and not sequence.ignore_eos:
            return Finish.STOP
        if token in sequence.stop_ids:
            sequence.stop_reason = token
            return Finish.STOP
        produced = len(sequence.tokens) - sequence.prompt_tokens
        if sequence.resumable and self.hand_backs and produced >= self.hand_backs[0]:
            self.hand_backs.popleft()
            sequence.stop_reason = Finish.HANDED_BACK
            return Finish.HANDED_BACK
        if produced >= sequence.max_tokens or len(sequence.tokens) >= self._max_model_len:
            return Finish.LENGTH
        return None

    def _finish(self, sequence: Sequence, reason: Finish) -> None:
        self._release(sequence)
        sequence.finish = reason

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.block_size)


def _count(step: Step, sequence: Sequence, count: int) -> None:
    if count == 1 and sequence.computed >= sequence.prompt_tokens:
        step.decoding += 1
    else:
        step.prefill_tokens += count
