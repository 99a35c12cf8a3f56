"""Agents and their connections: who is welcome, what they are told, and what their silence means."""

import msgspec
import pytest

from cachefleet_controlplane.fleet.agent_connections import MAX_RANKS, RefusedError, UndeclaredRankError
from cachefleet_controlplane.fleet.view_builders import contract_facts
from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.pools.block_bounds import most_blocks
from cachefleet_controlplane.report_streams import stream_state_machine
from cachefleet_controlplane.report_streams.report_stream import StreamEvent
from cachefleet_controlplane.workers import registry
from cachefleet_controlplane.workers.unindexed_hits import MIN_REPORTS
from cachefleet_core.block_keys import Tier
from cachefleet_core.report_frames import Capability, Delta, Drain, FrameError, Policy, Snapshot, encode
from tests.controlplane.chains import chain, removed, stored
from tests.controlplane.fleets import MODEL, FakeLink, LiveFleet, fleet_of, pool, ranked, view, wid
from tests.controlplane.frames import CONTRACT, delta, hello, snapshot, state

KEYS = chain(1, 10)


class TestWelcome:
    def test_a_hello_is_answered_with_the_pools_policy(self) -> None:
        link = fleet_of("demo-0").report()
        assert [type(frame) for frame in link.sent] == [Policy]

    def test_a_hello_never_creates_a_pool(self) -> None:
        fleet = fleet_of("demo-0")
        with pytest.raises(RefusedError) as refused:
            fleet.hello(fleet.connect(FakeLink()), hello(pool="default/none"))
        assert refused.value.code == "unknown_pool"
        assert len(fleet.view().pools) == 1

    def test_a_worker_the_source_does_not_list_is_indexed_and_not_routed_to(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report("demo-1", KEYS)
        assert (fleet.worker("demo-1").held_blocks, fleet.worker("demo-1").listed) == (10, False)
        assert [endpoint.name for endpoint in fleet.renderers(MODEL)] == ["demo-0"]

        fleet.update_pools([view(pool(), ["demo-0", "demo-1"])])
        assert {endpoint.name for endpoint in fleet.renderers(MODEL)} == {"demo-0", "demo-1"}
        assert fleet.worker("demo-1").held_blocks == 10

    def test_unlisted_workers_are_bounded_and_forgotten_once_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "MAX_UNLISTED", 2)
        fleet = fleet_of("demo-0")
        fleet.report("x-0", KEYS)
        fleet.report("x-1", KEYS)
        with pytest.raises(RefusedError, match="too many"):
            fleet.report("x-2")
        fleet.now += 16
        fleet.expire()
        assert [worker.name for worker in fleet.view().workers] == ["demo-0"]
        fleet.report("x-2")

    def test_each_rank_of_an_unlisted_worker_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "MAX_UNLISTED", 2)
        fleet = LiveFleet()
        fleet.update_pools([view(ranked(4), ["demo-0"])])
        for name, most in (("x-0", 2), ("demo-0", 4)):
            connection = fleet.connect(FakeLink())
            for rank in range(most):
                fleet.hello(connection, hello(name, rank=rank))
        with pytest.raises(RefusedError, match="too many"):
            fleet.hello(fleet.connect(FakeLink()), hello("x-0", rank=2))

    def test_a_connection_speaks_for_one_worker(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        connection = fleet.connect(FakeLink())
        fleet.hello(connection, hello("demo-0"))
        with pytest.raises(RefusedError) as refused:
            fleet.hello(connection, hello("demo-1"))
        assert refused.value.code == "foreign"
        assert fleet.worker("demo-1").stream == "unknown"

    def test_only_ranks_that_said_hello_are_heard(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.connect(FakeLink())
        fleet.hello(connection, hello("demo-0"))
        for frame in (snapshot(0, KEYS, rank=1), delta(1, rank=1), state(rank=1)):
            with pytest.raises(RefusedError, match="rank 1"):
                fleet.receive(connection, frame)

    def test_ranks_of_a_connection_are_bounded(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.update_pools([view(ranked(MAX_RANKS + 1), ["demo-0"])])
        connection = fleet.connect(FakeLink())
        for rank in range(MAX_RANKS):
            fleet.hello(connection, hello(rank=rank))
        with pytest.raises(RefusedError, match="ranks"):
            fleet.hello(connection, hello(rank=MAX_RANKS))

    def test_so_are_they_by_what_the_pool_declares(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report().connection
        with pytest.raises(UndeclaredRankError, match="declares 1 "):
            fleet.hello(connection, hello(rank=1))
        fleet.update_pools([view(ranked(2), ["demo-0"])])
        fleet.hello(connection, hello(rank=1))

    def test_or_has_declared_while_the_worker_runs(self) -> None:
        """While a roll to fewer ranks is under way, or paused, the workers of before report as they did."""
        fleet = fleet_of("demo-0")
        fleet.update_pools([view(ranked(2), ["demo-0"])])
        connection = fleet.connect(FakeLink())
        fleet.hello(connection, hello(rank=1))
        fleet.update_pools([view(ranked(1), ["demo-0"])])
        fleet.disconnect(connection)
        fleet.hello(fleet.connect(FakeLink()), hello(rank=1))

    def test_a_connection_speaks_for_one_worker_also_where_its_first_rank_is_undeclared(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        connection = fleet.connect(FakeLink())
        with pytest.raises(UndeclaredRankError):
            fleet.hello(connection, hello("demo-0", rank=1))
        with pytest.raises(RefusedError) as refused:
            fleet.hello(connection, hello("demo-1"))
        assert refused.value.code == "foreign"

    def test_unfinished_snapshots_of_all_ranks_share_one_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each rank alone stays below it."""
        part = snapshot(0, KEYS, last=False)
        monkeypatch.setattr(stream_state_machine, "MAX_SNAPSHOT_BYTES", 2 * len(encode(part)))
        fleet = fleet_of("demo-0")
        fleet.update_pools([view(ranked(3), ["demo-0"])])
        connection = fleet.connect(FakeLink())
        for rank in range(3):
            fleet.hello(connection, hello(rank=rank))
        events = [fleet.receive(connection, snapshot(0, KEYS, last=False, rank=rank)) for rank in range(3)]
        assert events == [[], [], [StreamEvent.TOO_LARGE]]
        fleet.receive(connection, snapshot(0, KEYS))  # the agent starts over and is done
        assert fleet.receive(connection, snapshot(0, KEYS, last=False, rank=2)) == []


class TestContracts:
    def test_only_a_listed_worker_sets_one(self) -> None:
        """Its name comes from the pool source, not from whoever says hello first."""
        fleet = fleet_of("demo-0")
        fleet.report("stranger-0", KEYS, contract=msgspec.structs.replace(CONTRACT, tokenizer="sha256:bad"))
        assert fleet.pool().contract is None
        fleet.report("demo-0", KEYS)
        assert (fleet.pool().contract, fleet.worker("demo-0").excluded) == (contract_facts(CONTRACT), False)
        assert fleet.worker("stranger-0").excluded

    def test_that_of_a_worker_counts_once_it_is_listed(self) -> None:
        fleet = fleet_of()
        fleet.report("demo-0", KEYS)
        assert fleet.pool().contract is None
        fleet.update_pools([view(pool(), unready=["demo-0"])])
        assert fleet.pool().contract == contract_facts(CONTRACT)


class TestConnections:
    def test_the_newer_connection_wins_and_the_older_is_closed(self) -> None:
        fleet = fleet_of("demo-0")
        older = FakeLink()
        first = fleet.connect(older)
        fleet.hello(first, hello())
        fleet.report(holds=KEYS)
        assert older.closed == ["superseded"]
        with pytest.raises(RefusedError):
            fleet.receive(first, delta(1))
        with pytest.raises(RefusedError) as refused:
            fleet.hello(first, hello(epoch="old"))
        assert refused.value.code == "superseded"
        fleet.disconnect(first)
        assert (fleet.worker().connected, fleet.worker().held_blocks) == (True, 10)

    def test_losing_it_keeps_the_blocks_until_they_are_too_old(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report().connection
        fleet.receive(connection, snapshot(0, KEYS))
        fleet.receive(connection, state(0, [(key, 0) for key in KEYS]))
        fleet.disconnect(connection)
        assert (fleet.worker().connected, fleet.worker().stream, fleet.worker().held_blocks) == (False, "adrift", 10)
        fleet.now += 15.1
        assert fleet.worker().held_blocks == 0

    def test_divergence_asks_the_agent_for_a_snapshot(self) -> None:
        fleet = fleet_of("demo-0")
        link = fleet.report(holds=KEYS, digest=1)
        assert link.resyncs() == ["divergence"]
        assert fleet.worker().stream == "awaiting"

    def test_notes_say_what_happened(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.connect(FakeLink())
        assert fleet.hello(connection, hello()) == [StreamEvent.EPOCH]
        fleet.receive(connection, snapshot(5, KEYS))
        assert fleet.receive(connection, delta(5)) == [StreamEvent.DUPLICATE]
        assert fleet.receive(connection, delta(9)) == [StreamEvent.GAP]


class TestUnsoundFrames:
    @pytest.mark.parametrize(
        "frame",
        [delta(1, stored(KEYS[:5]), stored([KEYS[0], KEYS[0]])), snapshot(1, KEYS[:5], [KEYS[0], KEYS[0]])],
        ids=["delta", "snapshot"],
    )
    def test_one_changes_nothing(self, frame: Delta | Snapshot) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report(holds=KEYS[5:]).connection
        with pytest.raises(FrameError, match="keys"):
            fleet.receive(connection, frame)
        assert (fleet.worker().stream, fleet.worker().held_blocks) == ("live", 5)
        assert fleet.view().index.refused_frames == 1
        fleet.receive(connection, delta(1, stored(KEYS)))
        assert fleet.worker().held_blocks == 10

    def test_one_held_back_leaves_nothing_claimed_until_a_snapshot(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report(holds=KEYS[5:]).connection
        fleet.receive(connection, snapshot(1, KEYS[:5], last=False))
        fleet.receive(connection, delta(2, stored([KEYS[0], KEYS[0]])))
        with pytest.raises(FrameError, match="keys"):
            fleet.receive(connection, snapshot(1, KEYS[5:], part=1))
        assert (fleet.worker().stream, fleet.worker().held_blocks) == ("awaiting", 0)

        assert fleet.receive(connection, delta(2, stored(KEYS))) == []
        assert fleet.worker().held_blocks == 0
        fleet.now += 2.1
        assert StreamEvent.OVERDUE in fleet.receive(connection, state(2))
        fleet.receive(connection, snapshot(2, KEYS))
        assert (fleet.worker().stream, fleet.worker().held_blocks) == ("live", 10)


class TestFull:
    def test_a_worker_that_does_not_fit_is_left_out_until_it_starts_anew(self) -> None:
        fleet = fleet_of("demo-0", "demo-1", max_held=12)
        fleet.report("demo-1", KEYS[:6])
        connection = fleet.report("demo-0", KEYS[:6]).connection
        assert fleet.receive(connection, delta(1, stored(KEYS[6:]))) == []
        assert fleet.receive(connection, delta(2, removed(KEYS[6:]))) == []
        assert fleet.receive(connection, state(2, [(key, 0) for key in KEYS[:6]])) == []
        worker, index = fleet.worker("demo-0"), fleet.view().index
        assert (worker.indexed, worker.held_blocks, worker.stream) == (False, 0, "live")
        assert (index.shed_frames, index.held) == (2, 6)

        fleet.report("demo-0", KEYS[:6], epoch="e2")
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-0").held_blocks) == (True, 6)
        assert fleet.view().index.shed_frames == 2


class TestBounds:
    def test_a_worker_that_claims_more_than_it_can_hold_is_left_out(self) -> None:
        """By a snapshot or by what follows; the connection stays, no other worker is concerned."""
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-1", KEYS)
        claims = chain(7, 101)
        link = fleet.report("demo-0", claims)
        worker, index = fleet.worker("demo-0"), fleet.view().index
        assert (worker.indexed, worker.held_blocks, worker.stream, worker.connected) == (False, 0, "live", True)
        assert (index.excess_claims, index.held, link.closed, link.resyncs()) == (1, 10, [], [])

        later = fleet.report("demo-0", claims[:100], epoch="e2")
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-0").held_blocks) == (True, 100)
        fleet.receive(later.connection, delta(1, removed(claims[:1]), stored(claims[100:])))
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-0").held_blocks) == (True, 100)
        fleet.receive(later.connection, delta(2, stored(claims[:1])))
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-1").held_blocks) == (False, 10)
        assert (fleet.view().index.excess_claims, later.closed, later.resyncs()) == (2, [], [])

    def test_blocks_below_the_device_do_not_count_against_it(self) -> None:
        """Also where the pool does not say that its engines have such: an argument in an image may."""
        fleet, claims = fleet_of("demo-0"), chain(7, 1501)
        link = fleet.report("demo-0", claims[:100])
        fleet.receive(link.connection, delta(1, stored(claims[:1500], tier=Tier.HOST)))
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-0").held_blocks) == (True, 1600)
        fleet.receive(link.connection, delta(2, removed(claims[:1], tier=Tier.HOST), stored(claims[100:101])))
        assert (fleet.worker("demo-0").indexed, fleet.view().index.excess_claims) == (False, 1)

        again = fleet.report("demo-0", claims[:100], epoch="e2")
        fleet.receive(again.connection, delta(1, stored(claims, tier=Tier.HOST)))
        assert (fleet.worker("demo-0").indexed, fleet.view().index.excess_claims) == (False, 2)

    def test_what_a_worker_could_hold_at_its_hello_it_may_claim_while_it_runs(self) -> None:
        """A spec of less memory is not that of the workers that are there, also where their agents connect again."""
        fleet, claims = fleet_of("demo-0"), chain(7, 100)
        link = fleet.report("demo-0", claims)
        device = {"resource": "nvidia.com/gpu", "memoryMiB": 211, "activationMiB": 100, "floorMiB": 100}
        model = {"name": MODEL, "source": "tiny", "weightsMiB": 10, "kvBytesPerToken": 2**16}
        small = pool(device=device, model=model)
        assert most_blocks(small.spec, 100) < 99
        fleet.update_pools([view(small, ["demo-0"])])
        fleet.receive(link.connection, delta(1, removed(claims[:1])))
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-0").held_blocks) == (True, 99)
        fleet.report("demo-0", claims)
        assert (fleet.worker("demo-0").indexed, fleet.worker("demo-0").held_blocks) == (True, 100)
        fleet.report("demo-0", claims, epoch="e2")
        assert fleet.worker("demo-0").indexed is False, "a new engine is held to the new spec"


class _DefectiveIndex(BlockIndex):
    """Its code fails at whatever changes it."""

    def ingest(self, worker: WorkerId, delta: bytes) -> None:
        raise IndexDefectError("a defect")


class TestDefects:
    def test_a_worker_whose_frame_the_index_fails_at_is_left_out_and_not_asked_for_it_again(self) -> None:
        fleet = fleet_of("demo-0", make_index=_DefectiveIndex)
        link = fleet.report(holds=KEYS[:6])
        assert fleet.receive(link.connection, delta(1, stored(KEYS[6:]))) == []
        assert fleet.receive(link.connection, state(1, [(key, 0) for key in KEYS])) == []
        assert (fleet.worker().indexed, fleet.worker().held_blocks, fleet.worker().stream) == (False, 0, "live")
        assert (fleet.view().index.shed_frames, link.closed, link.resyncs()) == (1, [], [])


class TestRemoval:
    @pytest.mark.parametrize("uid", ["", "2"], ids=["gone", "made anew"])
    def test_frames_of_a_removed_worker_are_refused_and_leave_nothing(self, uid: str) -> None:
        fleet = fleet_of("demo-0")
        fleet.update_pools([view(ranked(2), ["demo-0"])])
        connection = fleet.report(holds=KEYS).connection
        fleet.report(rank=1)
        fleet.update_pools([view(pool(uid=uid), ["demo-0"])] if uid else [])
        for frame in (delta(1, stored(KEYS)), snapshot(1, KEYS), state(1)):
            with pytest.raises(RefusedError) as refused:
                fleet.receive(connection, frame)
            assert refused.value.code == "unannounced"
        assert fleet.index.stats().held == {}

    def test_so_are_those_of_a_worker_that_nobody_lists_after_its_silence(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report("x-0", KEYS).connection
        fleet.now += 16
        fleet.expire()
        with pytest.raises(RefusedError):
            fleet.receive(connection, snapshot(1, KEYS))
        assert fleet.index.stats().held == {}


class TestTelling:
    def test_a_new_generation_is_pushed_to_connected_workers_of_the_pool_once(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        links = [fleet.report("demo-0"), fleet.report("demo-1")]
        newer = pool(generation=2, hit={"threshold": 0.5})
        for _ in range(2):
            fleet.update_pools([view(newer, ["demo-0", "demo-1"])])
        assert [link.policies() for link in links] == [[1, 2], [1, 2]]
        policy = links[0].sent[-1]
        assert isinstance(policy, Policy)
        assert (policy.threshold, policy.pool) == (0.5, "default/demo")

    def test_a_change_of_endpoints_tells_nobody_anything(self) -> None:
        fleet = fleet_of("demo-0")
        link = fleet.report()
        fleet.update_pools([view(pool(), ["demo-0", "demo-1"])])
        assert link.policies() == [1]

    def test_a_worker_can_be_told_to_drain_where_it_is_connected(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        link = fleet.report("demo-0")
        assert fleet.tell(wid("demo-0"), Drain(seconds=5))
        assert link.sent[-1] == Drain(seconds=5)
        assert not fleet.tell(wid("demo-1"), Drain(seconds=5))
        assert not fleet.tell(wid("nobody"), Drain(seconds=5))


def test_the_index_is_blind_to_an_engine_that_serves_from_a_cache_of_which_it_holds_nothing() -> None:
    fleet = fleet_of("demo-0")
    fleet.update_pools([view(pool(prefixCache={"budgetMiB": 64}), ["demo-0"])])
    link = FakeLink()
    connection = link.connection = fleet.connect(link)
    fleet.hello(connection, hello(capabilities=(Capability(feature="events", mode="off"),)))
    fleet.receive(connection, snapshot(0))
    for number in range(12):
        fleet.receive(connection, state(prefix_queries=100 * number, prefix_hits=90 * number, unkeyed=False))
        fleet.now += 10
        assert fleet.worker("demo-0").blind is (number >= MIN_REPORTS), "the first report has no hits yet"
    fleet.receive(connection, delta(1, stored(KEYS)))
    digest = fleet.index.digest(wid("demo-0"))
    fleet.receive(connection, state(1, digest=digest, held=len(KEYS), prefix_hits=2000, unkeyed=False))
    assert not fleet.worker("demo-0").blind
