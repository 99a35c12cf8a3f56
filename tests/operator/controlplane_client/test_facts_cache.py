import asyncio

import msgspec
import pytest

from cachefleet_core.fleet_status.pool_facts import ContractFacts, HitRatio, PoolDetail
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.model_names import NameConflict
from cachefleet_operator.controlplane_client.facts_cache import FactsCache, PollTimes
from cachefleet_operator.controlplane_client.pool_facts import Facts
from cachefleet_operator.reasons import Reason
from cachefleet_runtime.tasks import restarting
from tests.operator.pools import document, pool

KEY = "serving/demo"
SILENT = Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, "no answer")


class Script:
    """A source of facts that says what a test puts there."""

    def __init__(self) -> None:
        self.says: dict[str, Facts] = {}
        self.asked: list[str] = []

    async def ask(self, key: str, *, seconds: float) -> Facts:
        assert seconds > 0
        self.asked.append(key)
        return self.says.get(key, SILENT)


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.source = Script()
        self.told: list[str] = []
        self.facts_cache = FactsCache(
            self.source, times=PollTimes(keep=15, figures_every=30), enqueue=self.told.append, clock=lambda: self.now
        )

    def news(self) -> list[str]:
        found, self.told[:] = list(self.told), []
        return found


@pytest.fixture
def observations() -> Scene:
    return Scene()


def facts(*, epoch: str = "e", ratio: float = 0.5, block_size: int = 16) -> Facts:
    contract = ContractFacts(f"sha256:{block_size}", block_size=block_size)
    return Facts(
        PoolDetail(
            key="p/q", contract=contract, hit_ratio=HitRatio(ratio), members=(WorkerFacts(name="demo-a", epoch=epoch),)
        )
    )


async def test_is_asked_once_and_then_in_rounds(observations: Scene) -> None:
    observations.source.says[KEY] = facts()
    assert await observations.facts_cache.facts(KEY) == await observations.facts_cache.facts(KEY) == facts()
    assert observations.source.asked == [KEY]
    await observations.facts_cache.round()
    assert observations.source.asked == [KEY, KEY]
    assert observations.news() == []


async def test_a_life_that_changes_is_told_at_once_and_figures_at_leisure(observations: Scene) -> None:
    observations.source.says[KEY] = facts()
    await observations.facts_cache.facts(KEY)
    observations.source.says[KEY] = facts(ratio=0.6)
    observations.now = 29
    await observations.facts_cache.round()
    assert observations.news() == []
    observations.now = 30
    await observations.facts_cache.round()
    assert observations.news() == [KEY]
    observations.source.says[KEY] = facts(epoch="another", ratio=0.6)
    await observations.facts_cache.round()
    assert observations.news() == [KEY]
    await observations.facts_cache.round()
    assert observations.news() == []


async def test_what_no_status_shows_is_not_told(observations: Scene) -> None:
    """A report's age, or a request under way, are other figures at every poll."""
    observations.source.says[KEY] = facts()
    await observations.facts_cache.facts(KEY)
    (member,) = facts().members
    moved = msgspec.structs.replace(member, report_age_seconds=0.7, sequence=9, inflight_requests=3)
    known = msgspec.structs.replace(facts().pool or PoolDetail(key="p/q"), members=(moved,))
    observations.source.says[KEY] = Facts(known)
    for _ in range(9):
        observations.now += 30
        await observations.facts_cache.round()
    assert observations.news() == []


async def test_one_silence_is_not_the_end_of_what_was_known(observations: Scene) -> None:
    observations.source.says[KEY] = facts()
    await observations.facts_cache.facts(KEY)
    del observations.source.says[KEY]
    observations.now = 14
    await observations.facts_cache.round()
    assert (await observations.facts_cache.facts(KEY)).pool
    assert observations.news() == []
    observations.now = 15
    await observations.facts_cache.round()
    assert await observations.facts_cache.facts(KEY) == SILENT
    assert observations.news() == [KEY]
    observations.source.says[KEY] = facts()
    await observations.facts_cache.round()
    assert observations.news() == [KEY]


async def test_fresh_is_asked_for_anew(observations: Scene) -> None:
    observations.source.says[KEY] = facts()
    await observations.facts_cache.facts(KEY)
    observations.source.says[KEY] = facts(ratio=0.9)
    assert await observations.facts_cache.fresh(KEY) == facts(ratio=0.9)
    del observations.source.says[KEY]
    assert await observations.facts_cache.fresh(KEY) == facts(ratio=0.9)


async def test_a_pool_that_goes_is_asked_about_no_more(observations: Scene) -> None:
    observations.source.says[KEY] = facts()
    await observations.facts_cache.facts(KEY)
    observations.facts_cache.drop(KEY)
    await observations.facts_cache.round()
    assert observations.source.asked == [KEY]


async def test_pools_of_a_fleet_hear_of_each_other(observations: Scene) -> None:
    second = "serving/second"
    observations.facts_cache.note(pool())
    observations.facts_cache.note(pool(name="second"))
    assert observations.news() == [KEY]
    for key, size in ((KEY, 16), (second, 16)):
        observations.source.says[key] = facts(block_size=size)
        await observations.facts_cache.facts(key)
    assert observations.facts_cache.disagreement(KEY) == ""
    observations.source.says[second] = facts(block_size=32)
    await observations.facts_cache.round()
    assert set(observations.news()) == {KEY, second}
    assert "pool second serves model tiny too" in observations.facts_cache.disagreement(KEY)
    observations.facts_cache.drop(second)
    assert observations.news() == [KEY]
    assert observations.facts_cache.disagreement(KEY) == ""


async def test_pools_that_declare_one_name_hear_of_each_other(observations: Scene) -> None:
    observations.facts_cache.note(pool())
    observations.facts_cache.note(pool(namespace="earlier"))
    assert observations.news() == [KEY]
    assert observations.facts_cache.name_conflict(KEY) == NameConflict("earlier/demo")
    observations.facts_cache.drop("earlier/demo")
    assert observations.news() == [KEY]
    assert observations.facts_cache.name_conflict(KEY) is None


async def test_one_silence_is_enough_for_all_that_are_new(observations: Scene) -> None:
    keys = ["serving/a", "serving/b", "serving/c"]
    assert [await observations.facts_cache.facts(key) for key in keys] == [SILENT] * 3
    assert observations.source.asked == keys[:1]
    observations.source.says = dict.fromkeys(keys, facts())
    await observations.facts_cache.round()
    assert [await observations.facts_cache.facts(key) for key in keys] == [facts()] * 3
    assert observations.news() == keys


async def test_a_round_asks_about_so_many_at_once_and_about_all(observations: Scene) -> None:
    keys = [f"serving/{number}" for number in range(30)]
    observations.source.says = dict.fromkeys(keys, facts())
    for key in keys:
        await observations.facts_cache.facts(key)
    observations.source.asked.clear()
    running, most = 0, 0

    async def ask(key: str, *, seconds: float) -> Facts:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await Script.ask(observations.source, key, seconds=seconds)

    observations.source.ask = ask  # type: ignore[method-assign]
    await observations.facts_cache.round()
    assert sorted(observations.source.asked) == sorted(keys)
    assert most == PollTimes().at_once


async def test_a_round_that_fails_is_not_the_last() -> None:
    asked = asyncio.Event()

    class Broken(Script):
        async def ask(self, key: str, *, seconds: float) -> Facts:
            await super().ask(key, seconds=seconds)
            if len(self.asked) == 2:
                raise RecursionError
            if len(self.asked) > 2:
                asked.set()
            return facts()

    facts_cache = FactsCache(Broken(), times=PollTimes(every=0.01), enqueue=lambda _key: None, clock=lambda: 0.0)
    await facts_cache.facts(KEY)
    failed: list[str] = []
    task = asyncio.create_task(restarting("facts", facts_cache.run, pause_seconds=0, failed=failed.append))
    await asyncio.wait_for(asked.wait(), 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert failed == ["facts"]


def test_names_all_that_it_knows_anything_of(observations: Scene) -> None:
    assert observations.facts_cache.pools() == set()
    observations.facts_cache.note(pool())
    assert observations.facts_cache.pools() == {KEY}
    observations.facts_cache.drop(KEY)
    assert observations.facts_cache.pools() == set()


@pytest.mark.parametrize("ratio", [HitRatio(None), HitRatio(0.0, 600, queried_tokens=5, sampled=False)])
async def test_a_replica_without_a_hit_ratio_does_not_take_away_what_another_has(
    observations: Scene, ratio: HitRatio
) -> None:
    fresh = Facts(
        PoolDetail(
            key="p/q",
            contract=ContractFacts("sha256:16", block_size=16),
            hit_ratio=ratio,
            members=(WorkerFacts(name="demo-a", epoch="e"),),
        )
    )
    observations.source.says[KEY] = facts()
    await observations.facts_cache.facts(KEY)
    for now in range(5, 60, 10):  # two replicas in turns
        observations.now = now
        observations.source.says[KEY] = fresh
        assert await observations.facts_cache.fresh(KEY) == facts()
        observations.now = now + 5
        observations.source.says[KEY] = facts()
        await observations.facts_cache.round()
    assert observations.news() == []
    observations.source.says[KEY] = fresh
    observations.now += 14
    await observations.facts_cache.round()
    assert await observations.facts_cache.facts(KEY) == facts()
    observations.now += 1
    await observations.facts_cache.round()
    assert await observations.facts_cache.facts(KEY) == fresh
    assert observations.news() == [KEY]


def test_a_pool_that_cannot_be_read_keeps_its_claim_until_it_is_gone(observations: Scene) -> None:
    mine, other = pool(), pool(namespace="zoo")
    observations.facts_cache.note(mine)
    observations.facts_cache.note(other)
    before = observations.facts_cache.name_conflict(other.key)
    observations.news()
    observations.facts_cache.unread(KEY, document())
    assert observations.news() == []
    assert observations.facts_cache.name_conflict(other.key) == before == NameConflict(KEY)
    assert observations.facts_cache.pools() == {KEY, other.key}
    observations.facts_cache.drop(KEY)
    assert observations.news() == [other.key]
    assert observations.facts_cache.name_conflict(other.key) is None
