"""What routing is for: interleaved conversations on workers whose caches hold half of them are recomputed less."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from random import Random

import pytest
from cachefleet_native import InFlightRequest

from cachefleet_controlplane.routing.decision import Knowledge, Prompt, RoutingPolicy, Verdict
from cachefleet_core.block_keys import BlockKey, pack_keys
from cachefleet_core.report_frames import Operation
from tests.controlplane.chains import chain, removed, stored
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, wid
from tests.controlplane.frames import delta, state

CONVERSATIONS, TURNS, SYSTEM_BLOCKS, TURN_BLOCKS = 8, 6, 20, 8


@dataclass
class Engine:
    """A cache of blocks with least-recently-used eviction, the tail of a prompt before its head."""

    capacity: int
    lru: OrderedDict[BlockKey, None] = field(default_factory=OrderedDict)

    def serve(self, keys: list[BlockKey]) -> tuple[int, list[Operation]]:
        """Blocks found, and what changed."""
        hit = next((i for i, key in enumerate(keys) if key not in self.lru), len(keys))
        before = set(self.lru)
        for key in reversed(keys):
            self.lru[key] = None
            self.lru.move_to_end(key)
        while len(self.lru) > self.capacity:
            self.lru.popitem(last=False)
        gone, new = before - self.lru.keys(), [key for key in keys if key in self.lru and key not in before]
        return hit, [*([removed(gone)] if gone else []), *([stored(new)] if new else [])]


class Cluster:
    """A fleet with modelled engines behind it, at most ``at_once`` requests under way: as many as it has room for."""

    def __init__(self, policy: RoutingPolicy, capacity: int, at_once: int) -> None:
        self.fleet: LiveFleet = fleet_of("demo-0", "demo-1", policy=policy)
        self.engines = {name: Engine(capacity) for name in ("demo-0", "demo-1")}
        self.links = {name: self.fleet.report(name, (), **self._blocks(name)) for name in self.engines}
        self.sequences = dict.fromkeys(self.engines, 0)
        self.under_way: deque[tuple[str, list[BlockKey], InFlightRequest]] = deque()
        self.at_once = at_once
        self.recomputed = 0

    def send(self, keys: list[BlockKey]) -> None:
        tokens = len(keys) * 16 + 1
        prompt = Prompt(tokens=tokens, keys=pack_keys(keys), block_size=16, max_tokens=16, knowledge=Knowledge.EXACT)
        while (decision := self.fleet.route(MODEL, prompt)).verdict is Verdict.QUEUE:
            self.answer()
        self.under_way.append((decision.worker, keys, self.fleet.begin(decision, prompt)))
        while len(self.under_way) >= self.at_once:
            self.answer()

    def answer(self) -> None:
        name, keys, inflight = self.under_way.popleft()
        hit, operations = self.engines[name].serve(keys)
        self.recomputed += len(keys) - hit
        inflight.first_token()
        inflight.finish(cached_tokens=hit * 16)
        self.fleet.now += 0.3
        self.sequences[name] += 1
        self.fleet.receive(self.links[name].connection, delta(self.sequences[name], *operations))
        for worker, link in self.links.items():
            report = state(self.sequences[worker], digest=self.fleet.index.digest(wid(worker)), **self._blocks(worker))
            self.fleet.receive(link.connection, report)

    def _blocks(self, name: str) -> dict[str, int]:
        engine = self.engines[name]
        return {"held": len(engine.lru), "blocks_total": engine.capacity, "blocks_free": engine.capacity}


def recomputed(policy: RoutingPolicy, at_once: int, seed: int) -> int:
    """Blocks computed for a workload whose conversations share a system prompt and sometimes take a turn back."""
    random = Random(seed)
    working_set = SYSTEM_BLOCKS + CONVERSATIONS * TURNS * TURN_BLOCKS
    cluster = Cluster(policy, working_set // 2, at_once)
    histories = [chain(0, SYSTEM_BLOCKS) for _ in range(CONVERSATIONS)]
    for _ in range(TURNS):
        for talk in random.sample(range(CONVERSATIONS), CONVERSATIONS):
            history = histories[talk]
            if random.random() < 0.15 and len(history) > SYSTEM_BLOCKS + TURN_BLOCKS:
                history = history[:-TURN_BLOCKS]
            histories[talk] = history + chain(random.getrandbits(30), TURN_BLOCKS)
            cluster.send(histories[talk])
    while cluster.under_way:
        cluster.answer()
    return cluster.recomputed


@pytest.mark.parametrize(("at_once", "at_most"), [(1, 0.75), (4, 0.65), (5, 0.65)])
def test_cache_aware_recomputes_much_less_than_round_robin(at_once: int, at_most: float) -> None:
    totals = {
        policy: sum(recomputed(policy, at_once, seed) for seed in range(4))
        for policy in (RoutingPolicy.CACHE_AWARE, RoutingPolicy.ROUND_ROBIN)
    }
    assert totals[RoutingPolicy.CACHE_AWARE] <= at_most * totals[RoutingPolicy.ROUND_ROBIN]
