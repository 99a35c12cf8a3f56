"""A worker in virtual time: the fake engine's block pool and scheduler, and the real agent's way to tell of them.

What an engine step does to blocks leaves as vLLM's event bytes, is read and keyed by the agent's own ``Residents`` and
``Stream``, and becomes frames. Left out are sockets and the agent's scraping of a metrics page: its ``LoadMeter`` is
given the numbers of that page, and of the plugin those that vLLM's plugin tells (no waiting tokens).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from bench.replay_work import BLOCK
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_core.block_keys import NO_PARENT, BlockKey, BlockKeyer, Namespace
from cachefleet_core.digest import Digest
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.native import Code
from cachefleet_core.report_frames import Hello, Phase
from cachefleet_core.tenancy import fleet_index_key
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.engine_poll import LoadMetrics, RankStats
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.agent.load_meter import LoadMeter
from cachefleet_worker.agent.reports.stream import Stream, WorkerState
from tests.fakes.block_pool import BlockPool
from tests.fakes.chain import Link
from tests.fakes.kv_events import Cleared, Encoding, Event, Stored
from tests.fakes.scheduler import Scheduler, Sequence, Step

INDEX_KEY: Final = b"k" * 32
FLEET_INDEX_KEY: Final = fleet_index_key(INDEX_KEY, "default", "replay")
CONTRACT: Final = IndexContract(weights="replay", tokenizer="sha256:aa", block_size=BLOCK)
POOL: Final = "default/replay"
EPOCH: Final = "replay-1"
NO_EOS: Final = -1


@dataclass(slots=True)
class _Sums:
    """Of an engine's metrics page: prompt tokens computed and the time that took, and the same of later tokens."""

    prefill_tokens: float = 0.0
    prefill_seconds: float = 0.0
    inter_token_sum: float = 0.0
    inter_token_count: float = 0.0


class SimWorker:
    """One engine with its agent. Its caller alternates ``begin`` and ``end``, the returned seconds apart."""

    def __init__(self, name: str, setup: Setup, code: Code, chance: random.Random) -> None:
        self.name = name
        self._setup = setup
        self.pool = BlockPool(setup.blocks + 1, BLOCK)
        self.pool.bound(setup.budget_blocks)
        self.scheduler = Scheduler(
            self.pool,
            lambda _: chance.getrandbits(16),
            eos=NO_EOS,
            max_num_seqs=setup.running,
            max_batched_tokens=setup.batched_tokens,
            max_model_len=setup.model_len,
        )
        self.residents = Residents(FLEET_INDEX_KEY, CONTRACT.fingerprint(), block_size=BLOCK, code=code)
        self.stream = Stream(self._hello(), self.residents)
        self.stepping = False
        self._meter = LoadMeter(self.pool.num_blocks)
        self._sums = _Sums()
        self._idle: int | None = None
        """Idle cached blocks, which take a walk over all to count; None while nobody asked since the last change."""
        self._step_ends = 0.0
        self._told: Counter[bytes] = Counter()

    @property
    def busy(self) -> bool:
        """Whether it has anything to do."""
        return self.scheduler.busy

    def opening(self) -> list[bytes]:
        """The first frames of its connection."""
        return self.stream.opening()

    def add(self, sequence: Sequence) -> None:
        sequence.ignore_eos = True
        self.scheduler.add(sequence)

    def begin(self, now: float) -> tuple[Step, float]:
        """The next step, and how long it takes."""
        self.stepping = True
        self._idle = None
        step = self.scheduler.schedule()
        for sequence, _ in step.work:
            sequence.scheduled = sequence.scheduled or now
        seconds = step.prefill_tokens / self._setup.prefill_tokens_per_second
        seconds += self._setup.inter_token_seconds if step.decoding else 0.0
        self._step_ends = now + seconds
        return step, seconds

    def end(self, step: Step, now: float) -> tuple[list[Sequence], list[bytes]]:
        """A step is over: the sequences that got a token, and the frames that tell of its blocks."""
        self.stepping = False
        self._idle = None
        advanced, events = self.scheduler.update(step)
        self._follow(events)
        self._check(step)
        for sequence in advanced:
            self._measure(sequence, now)
        if events:
            batch = decode_batch(Encoding().batch(now, events))
            if batch.malformed or batch.unknown:
                raise SimulationError(f"{self.name}: the agent cannot read the engine's events")
            self.residents.apply(batch.events)
        return advanced, self.stream.deltas()

    def state(self) -> bytes:
        """The report of this moment, as a frame."""
        scheduler = self.scheduler
        sums = self._sums
        vitals = LoadMetrics(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            usage=self.pool.usage,
            preemptions=scheduler.counters.preemptions,
            prefix_queries=scheduler.counters.queries,
            prefix_hits=scheduler.counters.hits,
            prefill_tokens=sums.prefill_tokens,
            prefill_seconds=sums.prefill_seconds,
            inter_token_sum=sums.inter_token_sum,
            inter_token_count=sums.inter_token_count,
        )
        if self._idle is None:
            self._idle = self.pool.idle
        stats = RankStats(boot=EPOCH, blocks_free=self.pool.free, blocks_idle=self._idle)
        return self.stream.state(WorkerState(Phase.READY, self._meter.add(vitals, stats)))

    def backlog(self, now: float) -> float:
        """Seconds until what it has would be prefilled: tokens that wait and are not cached, over the prefill rate."""
        tokens = sum(max(0, one.prompt_tokens - one.computed) for one in self.scheduler.running)
        for one in self.scheduler.waiting:
            total = len(one.tokens)
            tokens += total - BLOCK * len(self.pool.lookup(one.links, (total - 1) // BLOCK))
        rest = max(0.0, self._step_ends - now) if self.stepping else 0.0
        return tokens / self._setup.prefill_tokens_per_second + rest

    def digest(self) -> int:
        """Of the blocks in its pool, reckoned from their tokens alone; an index that is right has the same."""
        keyer = BlockKeyer(FLEET_INDEX_KEY, Namespace(CONTRACT.fingerprint()), BLOCK)
        known: dict[Link, BlockKey] = {}
        digest = Digest()
        digest.add([_key(link, keyer, known) for link in self.pool.held()])
        return digest.value

    def _hello(self) -> Hello:
        return Hello(
            worker=self.name,
            pool=POOL,
            epoch=EPOCH,
            endpoint=f"http://{self.name}",
            contract=CONTRACT,
            blocks_total=self._setup.blocks + 1,
            max_model_len=self._setup.model_len,
            max_batched_tokens=self._setup.batched_tokens,
        )

    def _follow(self, events: list[Event]) -> None:
        """Count the copies of each block that the engine has told of."""
        for event in events:
            if isinstance(event, Stored):
                self._told.update(link.digest for link in event.links)
            elif isinstance(event, Cleared):
                self._told.clear()
            else:
                self._told[event.link.digest] -= 1

    def _check(self, step: Step) -> None:
        """What was served from cache to a sequence that began in this step was stored and not removed."""
        for sequence, count in step.work:
            cached = sequence.cached_tokens or 0
            if sequence.preemptions or sequence.computed - count != cached:
                continue
            if not all(self._told[link.digest] > 0 for link in sequence.links[: cached // BLOCK]):
                raise SimulationError(f"{self.name}: served from a block that is not there")

    def _measure(self, sequence: Sequence, now: float) -> None:
        sums = self._sums
        if sequence.first_token:
            sums.inter_token_sum += now - sequence.last_token
            sums.inter_token_count += 1
        else:
            sequence.first_token = now
            sums.prefill_tokens += sequence.prompt_tokens - (sequence.cached_tokens or 0)
            sums.prefill_seconds += now - sequence.scheduled
        sequence.last_token = now


def _key(link: Link, keyer: BlockKeyer, known: dict[Link, BlockKey]) -> BlockKey:
    unknown: list[Link] = []
    above: Link | None = link
    while above is not None and above not in known:
        unknown.append(above)
        above = above.parent
    for one in reversed(unknown):
        parent = known[one.parent] if one.parent else NO_PARENT
        known[one] = keyer.keys(one.tokens, parent, one.depth)[0]
    return known[link]
