"""The scheduler of an engine as vLLM's is: continuous batches with chunked prefill, first come first served. Pure.

A caller alternates ``schedule`` and ``update``; between them lies the time of a forward pass. Kept of the real one is
what shows outside: order of admission, prefix hits (never the whole prompt), caching at the step that fills a block,
preemption of the latest request when a running one needs a block, and recomputation after it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cachefleet_controlplane.simulation.simulated_blocks import Block, SimulatedBlocks
from cachefleet_core.block_keys import NO_PARENT


@dataclass(slots=True, eq=False)
class Generation:
    """One request in the engine; ``keys`` are those of all full blocks of its prompt and answer."""

    keys: list[int]
    prompt_tokens: int
    outputs: int
    tokens: int = 0
    """Prompt and what was said."""
    blocks: list[Block] = field(default_factory=list)
    computed: int = 0
    stored: int = 0
    cached_tokens: int = 0
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.prompt_tokens

    @property
    def said(self) -> int:
        """Tokens of the answer so far."""
        return self.tokens - self.prompt_tokens

    @property
    def over(self) -> bool:
        """Whether it has said everything."""
        return self.said >= self.outputs


@dataclass(slots=True)
class Step:
    """What one forward pass computes: new tokens of each request."""

    work: list[tuple[Generation, int]] = field(default_factory=list)
    prefill_tokens: int = 0
    decoding: int = 0


@dataclass(slots=True)
class SchedulerCounters:
    """Since the engine's start."""

    preemptions: int = 0
    queries: int = 0
    hits: int = 0


class SimulatedScheduler:
    """``running`` requests at once, ``batched_tokens`` in a step."""

    def __init__(self, pool: SimulatedBlocks, *, block_size: int, running: int, batched_tokens: int) -> None:
        self.pool = pool
        self.counters = SchedulerCounters()
        self.running: list[Generation] = []
        self.waiting: deque[Generation] = deque()
        self._block_size = block_size
        self._most = running
        self._batched_tokens = batched_tokens

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    def hits(self, generation: Generation) -> list[Block]:
        """What is cached of it now: never its last token."""
        return self.pool.lookup(generation.keys, (generation.tokens - 1) // self._block_size)

    def uncomputed_tokens(self) -> int:
        """Tokens to compute before every request says something, as far as nothing is evicted."""
        running = sum(max(0, one.prompt_tokens - one.computed) for one in self.running)
        return running + sum(one.tokens - self._block_size * len(self.hits(one)) for one in self.waiting)

    def schedule(self) -> Step:
        """The next step."""
        step, before = Step(), self.counters.preemptions
        budget = self._schedule_running(step)
        if self.counters.preemptions == before:
            self._schedule_waiting(step, budget)
        for generation, count in step.work:
            if count == 1 and generation.computed >= generation.prompt_tokens:
                step.decoding += 1
            else:
                step.prefill_tokens += count
            generation.computed += count
        return step

    def update(self, step: Step) -> list[Generation]:
        """The requests that got a token in this step."""
        advanced = [generation for generation, _ in step.work if generation.computed == generation.tokens]
        for generation in advanced:
            generation.tokens += 1
            if generation.over:
                self.running.remove(generation)
                self._release(generation)
        return advanced

    def _schedule_running(self, step: Step) -> int:
        budget, index = self._batched_tokens, 0
        while index < len(self.running) and budget > 0:
            generation = self.running[index]
            count = min(generation.tokens - generation.computed, budget)
            if not self._make_room(generation, count):
                break
            step.work.append((generation, count))
            budget -= count
            index += 1
        return budget

    def _make_room(self, generation: Generation, count: int) -> bool:
        """Blocks for ``count`` more tokens, preempting from the back; False if that took the request itself."""
        while not self._grow(generation, count):
            victim = self.running.pop()
            self._release(victim)
            victim.preemptions += 1
            self.counters.preemptions += 1
            self.waiting.appendleft(victim)
            if victim is generation:
                return False
        return True

    def _grow(self, generation: Generation, count: int) -> bool:
        target = generation.computed + count
        missing = -(-target // self._block_size) - len(generation.blocks)
        if missing > 0:
            if missing > self.pool.free:
                return False
            generation.blocks += self.pool.allocate(missing)
        full = target // self._block_size
        if full > generation.stored:
            span = slice(generation.stored, full)
            parent = generation.keys[generation.stored - 1] if generation.stored else NO_PARENT
            self.pool.store(generation.blocks[span], generation.keys[span], parent)
            generation.stored = full
        return True

    def _release(self, generation: Generation) -> None:
        self.pool.release(generation.blocks)
        generation.blocks = []
        generation.computed = generation.stored = 0

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self._most:
            generation = self.waiting[0]
            count = self._admit(generation, budget)
            if count == 0:
                break
            self.waiting.popleft()
            self.running.append(generation)
            step.work.append((generation, count))
            budget -= count

    def _admit(self, generation: Generation, budget: int) -> int:
        """Tokens to compute now for a waiting request, or 0 where the whole of it does not fit."""
        hits, size = self.hits(generation), self._block_size
        computed = len(hits) * size
        idle = sum(block.references == 0 for block in hits)
        if -(-generation.tokens // size) - len(hits) + idle > self.pool.free:
            return 0
        if generation.preemptions == 0:
            generation.cached_tokens = computed
            self.counters.queries += generation.tokens
            self.counters.hits += computed
        self.pool.touch(hits)
        generation.blocks, generation.stored, generation.computed = hits, len(hits), computed
        count = min(generation.tokens - computed, budget)
        self._grow(generation, count)
        return count
