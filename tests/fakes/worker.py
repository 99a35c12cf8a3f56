"""One life of an engine: its scheduler driven in simulated time, its events and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from tests.fakes.block_pool import BlockPool
from tests.fakes.events import Publisher
from tests.fakes.finish import Finish
from tests.fakes.kv_events import Encoding
from tests.fakes.loop_clock import clock
from tests.fakes.metrics import EngineMetrics
from tests.fakes.named_requests import note
from tests.fakes.options import EngineOptions
from tests.fakes.sampler import Sampler
from tests.fakes.scheduler import Scheduler, Sequence, Step
from tests.fakes.tokenizer import Tokenizer

_MAX_CATCH_UP: Final = 0.05
"""Seconds of simulated time that may be made up after a late wake-up."""


class Worker:
    """Runs steps while there is work. A step's events and tokens come out when its time has passed."""

    def __init__(self, options: EngineOptions, tokenizer: Tokenizer) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.pool = BlockPool(options.num_blocks, options.block_size, caching=options.prefix_caching)
        sampler = Sampler(
            tokenizer.alphabet,
            eos=tokenizer.eos,
            natural_tokens=options.natural_tokens,
            follow=tokenizer.follow,
        )
        self.scheduler = Scheduler(
            self.pool,
            sampler,
            eos=tokenizer.eos,
            max_num_seqs=options.max_num_seqs,
            max_batched_tokens=options.max_batched_tokens,
            max_model_len=options.context,
            lookahead=options.lookahead,
        )
        self.publisher = Publisher(
            Encoding(as_map=options.event_maps, as_int=options.event_int_hashes),
            topic=options.topic,
            rank=options.rank,
            buffer_steps=options.buffer_steps,
        )
        self.started = time.time()
        self.metrics = EngineMetrics(options, self.scheduler, self.started)
        self.going = asyncio.Event()
        self.going.set()
        self.suspended = ""
        """Why it makes no step, as the plugin says it: "asleep" or "paused"."""
        self._stepping = asyncio.Event()
        self._stepping.set()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop stepping at once. Whatever ended the loop before is raised here."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.publisher.close()

    def add(self, sequence: Sequence, on_output: Callable[[Sequence], None]) -> None:
        sequence.on_output = on_output
        note(sequence)
        sequence.arrived = clock()
        self.scheduler.add(sequence)
        self._work.set()

    def stop_at(self, sequence: Sequence, stop: str, length: int) -> None:
        """End a generation whose text has met a stop string with its ``length``-th token."""
        ended = sequence.finish is not None
        if not ended:
            self.scheduler.abort(sequence)
        del sequence.tokens[length:]
        sequence.finish, sequence.stop_reason = Finish.STOP, stop
        if not ended:
            self.metrics.finished(sequence, clock())

    def abort(self, sequence: Sequence) -> None:
        if sequence.finish is None:
            self.scheduler.abort(sequence)
            self.metrics.finished(sequence, clock())

    def suspend(self, why: str, *, mode: str = "abort", clear: bool = True) -> None:
        """Make no step from now on, as vLLM's ``/sleep`` and ``/pause``; ``mode`` is abort or keep."""
        self.suspended = why
        self._stepping.clear()
        for sequence in [*self.scheduler.running, *self.scheduler.waiting] if mode == "abort" else ():
            self.scheduler.abort(sequence)
            self.metrics.finished(sequence, clock())
            sequence.on_output(sequence)
        if clear:
            self.scheduler.preempt_all()
            self.pool.clear()
        self.publish_cleared()

    def hand_back_all(self) -> int:
        """Hand back all that is marked, as the plugin of a worker that goes does; returns how many."""
        marked = [each for each in (*self.scheduler.running, *self.scheduler.waiting) if each.resumable]
        for sequence in marked:
            self.scheduler.abort(sequence)
            sequence.finish = sequence.stop_reason = Finish.HANDED_BACK
            self.metrics.finished(sequence, clock())
            sequence.on_output(sequence)
        return len(marked)

    def publish_cleared(self) -> None:
        """Publish what an idle engine would not: the plugin does."""
        if self.options.plugin and self.options.events and (events := self.pool.take_events()):
            self.publisher.publish(events)

    def serve(self) -> None:
        """Make steps again, as after ``/wake_up`` and ``/resume``."""
        self.suspended = ""
        self._stepping.set()

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            await self.going.wait()
            await self._stepping.wait()
            if not self.scheduler.busy:
                self._work.clear()
                continue
            await self._step()

    async def _step(self) -> None:
        step = self.scheduler.schedule()
        now = clock()
        for sequence, _ in step.work:
            sequence.scheduled = sequence.scheduled or now
        await self._spend(self._cost(step), now)
        await self.going.wait()
        advanced, events = self.scheduler.update(step)
        if events and self.options.events:
            self.publisher.publish(events)
        self._deliver(step, advanced)

    def _deliver(self, step: Step, advanced: list[Sequence]) -> None:
        now = clock()
        self.metrics.step(step, sum(bool(sequence.output) for sequence in advanced))
        for sequence in advanced:
            if sequence.output:
                self.metrics.token(sequence, now)
            sequence.first_token = sequence.first_token or now
            sequence.last_token = now
            if sequence.finish is not None:
                self.metrics.finished(sequence, now)
            sequence.on_output(sequence)

    def _cost(self, step: Step) -> float:
        rate = self.options.prefill_tokens_per_second
        prefill = step.prefill_tokens / rate if rate > 0 else 0.0
        return prefill + (self.options.inter_token_seconds if step.decoding else 0.0)

    async def _spend(self, seconds: float, now: float) -> None:
        self._due = max(self._due, now - _MAX_CATCH_UP) + seconds
        await asyncio.sleep(max(0.0, self._due - now) if seconds > 0 else 0)
