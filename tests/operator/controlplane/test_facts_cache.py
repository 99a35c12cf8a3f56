import asyncio

import pytest

from cachefleet_operator.controlplane.facts import Contract, Facts, HitRatio, Member, PoolFacts
from cachefleet_operator.controlplane.facts_cache import Lookout, Pace
from cachefleet_operator.reasons import Reason
from tests.operator.pools import pool

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
        self.lookout = Lookout(
            self.source, pace=Pace(keep=15, leisure=30), enqueue=self.told.append, clock=lambda: self.now
        )

    def news(self) -> list[str]:
        found, self.told[:] = list(self.told), []
        return found


@pytest.fixture
def scene() -> Scene:
    return Scene()


def facts(*, epoch: str = "e", ratio: float = 0.5, block_size: int = 16) -> Facts:
    contract = Contract(f"sha256:{block_size}", block_size=block_size)
    return Facts(PoolFacts(contract, HitRatio(ratio), members=(Member("demo-a", epoch=epoch),)))


async def test_is_asked_once_and_then_in_rounds(scene: Scene) -> None:
    scene.source.says[KEY] = facts()
    assert await scene.lookout.facts(KEY) == await scene.lookout.facts(KEY) == facts()
    assert scene.source.asked == [KEY]
    await scene.lookout.round()
    assert scene.source.asked == [KEY, KEY]
    assert scene.news() == []


async def test_a_life_that_changes_is_told_at_once_and_figures_at_leisure(scene: Scene) -> None:
    scene.source.says[KEY] = facts()
    await scene.lookout.facts(KEY)
    scene.source.says[KEY] = facts(ratio=0.6)
    scene.now = 29
    await scene.lookout.round()
    assert scene.news() == []
    scene.now = 30
    await scene.lookout.round()
    assert scene.news() == [KEY]
    scene.source.says[KEY] = facts(epoch="another", ratio=0.6)
    await scene.lookout.round()
    assert scene.news() == [KEY]
    await scene.lookout.round()
    assert scene.news() == []


async def test_one_silence_is_not_the_end_of_what_was_known(scene: Scene) -> None:
    scene.source.says[KEY] = facts()
    await scene.lookout.facts(KEY)
    del scene.source.says[KEY]
    scene.now = 14
    await scene.lookout.round()
    assert (await scene.lookout.facts(KEY)).known
    assert scene.news() == []
    scene.now = 15
    await scene.lookout.round()
    assert await scene.lookout.facts(KEY) == SILENT
    assert scene.news() == [KEY]
    scene.source.says[KEY] = facts()
    await scene.lookout.round()
    assert scene.news() == [KEY]


async def test_fresh_is_asked_for_anew(scene: Scene) -> None:
    scene.source.says[KEY] = facts()
    await scene.lookout.facts(KEY)
    scene.source.says[KEY] = facts(ratio=0.9)
    assert await scene.lookout.fresh(KEY) == facts(ratio=0.9)
    del scene.source.says[KEY]
    assert await scene.lookout.fresh(KEY) == facts(ratio=0.9)


async def test_a_pool_that_goes_is_asked_about_no_more(scene: Scene) -> None:
    scene.source.says[KEY] = facts()
    await scene.lookout.facts(KEY)
    scene.lookout.drop(KEY)
    await scene.lookout.round()
    assert scene.source.asked == [KEY]


async def test_pools_of_a_fleet_hear_of_each_other(scene: Scene) -> None:
    second = "serving/second"
    scene.lookout.note(pool())
    scene.lookout.note(pool(name="second"))
    assert scene.news() == [KEY]
    for key, size in ((KEY, 16), (second, 16)):
        scene.source.says[key] = facts(block_size=size)
        await scene.lookout.facts(key)
    assert scene.lookout.disagreement(KEY) == ""
    scene.source.says[second] = facts(block_size=32)
    await scene.lookout.round()
    assert set(scene.news()) == {KEY, second}
    assert "pool second serves model tiny too" in scene.lookout.disagreement(KEY)
    scene.lookout.drop(second)
    assert scene.news() == [KEY]
    assert scene.lookout.disagreement(KEY) == ""


async def test_one_silence_is_enough_for_all_that_are_new(scene: Scene) -> None:
    keys = ["serving/a", "serving/b", "serving/c"]
    assert [await scene.lookout.facts(key) for key in keys] == [SILENT] * 3
    assert scene.source.asked == keys[:1]
    scene.source.says = dict.fromkeys(keys, facts())
    await scene.lookout.round()
    assert [await scene.lookout.facts(key) for key in keys] == [facts()] * 3
    assert scene.news() == keys


async def test_a_round_asks_about_so_many_at_once_and_about_all(scene: Scene) -> None:
    keys = [f"serving/{number}" for number in range(30)]
    scene.source.says = dict.fromkeys(keys, facts())
    for key in keys:
        await scene.lookout.facts(key)
    scene.source.asked.clear()
    running, most = 0, 0

    async def ask(key: str, *, seconds: float) -> Facts:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await Script.ask(scene.source, key, seconds=seconds)

    scene.source.ask = ask  # type: ignore[method-assign]
    await scene.lookout.round()
    assert sorted(scene.source.asked) == sorted(keys)
    assert most == Pace().at_once


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

    lookout = Lookout(Broken(), pace=Pace(every=0.01), enqueue=lambda _key: None, clock=lambda: 0.0)
    await lookout.facts(KEY)
    task = asyncio.create_task(lookout.run())
    await asyncio.wait_for(asked.wait(), 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_names_all_that_it_knows_anything_of(scene: Scene) -> None:
    assert scene.lookout.pools() == set()
    scene.lookout.note(pool())
    assert scene.lookout.pools() == {KEY}
    scene.lookout.drop(KEY)
    assert scene.lookout.pools() == set()


async def test_a_replica_without_a_hit_ratio_does_not_take_away_what_another_has(scene: Scene) -> None:
    fresh = Facts(
        PoolFacts(Contract("sha256:16", block_size=16), HitRatio(None), members=(Member("demo-a", epoch="e"),))
    )
    scene.source.says[KEY] = facts()
    await scene.lookout.facts(KEY)
    for now in range(5, 60, 10):  # two replicas in turns
        scene.now = now
        scene.source.says[KEY] = fresh
        assert await scene.lookout.fresh(KEY) == facts()
        scene.now = now + 5
        scene.source.says[KEY] = facts()
        await scene.lookout.round()
    assert scene.news() == []
    scene.source.says[KEY] = fresh
    scene.now += 14
    await scene.lookout.round()
    assert await scene.lookout.facts(KEY) == facts()
    scene.now += 1
    await scene.lookout.round()
    assert await scene.lookout.facts(KEY) == fresh
    assert scene.news() == [KEY]
