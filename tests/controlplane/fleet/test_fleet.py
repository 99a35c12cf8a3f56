"""The live picture: who may be asked, what is known of each, and what was sent."""

from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from cachefleet_controlplane.fleet.view_builders import contract_facts
from cachefleet_controlplane.report_streams.report_stream import FORGET_SECONDS
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, Reason, RoutingPolicy, Verdict
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_keys
from cachefleet_core.fleet_status.pool_facts import AdapterConflict, AliasConflict
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.adapter_reports import AdapterProblem, AdapterReport
from cachefleet_core.pool.model_names import claim_of
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.status import PoolStatus
from cachefleet_core.report_frames import Phase
from cachefleet_core.tenancy import fleet_index_key
from cachefleet_core.warmth import WarmProblem, Warmth
from tests.controlplane.chains import chain
from tests.controlplane.fleets import INDEX_KEY, MODEL, FakeLink, LiveFleet, fleet_of, pool, ranked, view, wid
from tests.controlplane.frames import CONTRACT, delta, hello, snapshot, state
from tests.reference.adapter_loading import ASSUMED_SECONDS
from tests.reference.inflight import UNCACHED_WORK_SECONDS

KEYS = chain(1, 10)
TINY: Final[dict[str, Any]] = {"source": "tiny", "weightsMiB": 1}
OTHER = IndexContract(weights="tiny", tokenizer="sha256:bb", block_size=16)


def prompt(seed: int = 1, blocks: int = 10) -> Prompt:
    keys = pack_keys(chain(seed, blocks))
    return Prompt(tokens=blocks * 16 + 1, keys=keys, block_size=16, max_tokens=16, knowledge=Knowledge.EXACT)


def route(fleet: LiveFleet, of: Prompt | None = None, **options: object) -> Decision:
    return fleet.route(MODEL, of or prompt(), **options)  # type: ignore[arg-type]  # passed through


def served_since(time: str, declared: PrefixCachePool) -> PrefixCachePool:
    return declared.model_copy(update={"status": PoolStatus(first_ready_time=time)})


def adapted(*names: str) -> dict[str, Any]:
    """A model with adapters of these names."""
    adapters = [{"name": name, "source": f"/{name}"} for name in names]
    return {"name": MODEL, "source": "tiny", "weightsMiB": 1, "adapters": adapters}


def renamed(*names: str) -> dict[str, Any]:
    """A model with aliases."""
    return {"name": MODEL, **TINY, "aliases": list(names)}


class TestModels:
    def test_pools_of_one_namespace_and_model_name_are_one_fleet(self) -> None:
        fleet = LiveFleet()
        other = pool("other", model={"name": "else", "source": "tiny", "weightsMiB": 1})
        fleet.update_pools([view(pool("b")), view(pool("a")), view(other)])
        assert [(model.name, model.pools) for model in fleet.models()] == [
            ("else", ("default/other",)),
            (MODEL, ("default/a", "default/b")),
        ]
        served = fleet.serving(MODEL)
        assert served is not None
        assert (served.namespace, served.max_model_len, served.created) == ("default", 4096, 1_700_000_000)

    def test_adapters_are_asked_for_as_models_and_served_where_they_are_loaded(self) -> None:
        fleet = LiveFleet()
        with_sql = pool("a", model=adapted("sql", "chat"))
        fleet.update_pools([view(with_sql, ["in-a"]), view(pool("b", model=adapted("chat")), ["in-b"])])
        assert [model.name for model in fleet.models()] == [MODEL]
        found = [(one.name, one.upstream, one.base, one.pools) for one in fleet.models(adapters=True) if one.is_adapter]
        assert found == [
            ("chat", "chat", MODEL, ("default/a", "default/b")),
            ("sql", "sql", MODEL, ("default/a",)),
        ]
        assert {fleet.route("sql", prompt()).worker, fleet.route("default/sql", prompt()).worker} == {"in-a"}
        assert fleet.serving("default/sql") is not None
        assert not any(model.is_adapter for model in fleet.models())
        assert fleet.render_facts("sql").adapter
        assert not fleet.render_facts(MODEL).adapter

    def test_a_worker_without_the_adapter_is_never_asked(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(pool(model=adapted("sql")), ["demo-0", "demo-1"])])
        fleet.report("demo-0", served=())
        assert fleet.route("sql", prompt()).worker == "demo-1", "which has not told"
        fleet.report("demo-1", served=("sql",))
        assert [one.name for one in fleet.renderers("sql")] == ["demo-1"]
        fleet.report("demo-1", served=())
        assert fleet.renderers("sql") == []
        assert fleet.route("sql", prompt()).reason is Reason.NO_READY_WORKER
        assert len(fleet.renderers(MODEL)) == 2

    def test_an_adapter_that_is_loaded_while_the_engine_runs_is_asked_for_there_from_then_on(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(pool(model=adapted("sql")), ["demo-0", "demo-1"])])
        fleet.report("demo-0", served=())
        link = fleet.report("demo-1", served=())

        def tells(**said: Any) -> None:
            digest = fleet.index.digest(wid("demo-1"))
            fleet.receive(link.connection, state(0, digest=digest, adapters=AdapterReport(**said)))

        tells(served=("sql",), slots=4)
        assert [fleet.route("sql", prompt()).worker for _ in range(3)] == ["demo-1"] * 3
        told = fleet.worker("demo-1").adapters
        assert told is not None
        assert (told.served, told.slots) == (("sql",), 4)
        tells(served=(), loading=("sql",))
        assert fleet.route("sql", prompt()).reason is Reason.NO_READY_WORKER
        tells(served=None)
        assert fleet.route("sql", prompt()).worker == "demo-1", "which has more than it can tell"

    def test_adapters_part_among_workers_whose_devices_have_room_for_few(self) -> None:
        fleet, names = LiveFleet(), ("a", "b", "c", "d")
        fleet.update_pools([view(pool(model=adapted(*names)), ["demo-0", "demo-1"])])
        for worker in ("demo-0", "demo-1"):
            fleet.report(worker, adapters=AdapterReport(served=names, slots=2))
        sent: list[tuple[str, str]] = []
        for turn in range(12):
            asked = replace(prompt(seed=turn), adapter=names[turn % 4])
            decision = fleet.route(asked.adapter, asked)
            fleet.begin(decision, asked).finish()
            sent.append((asked.adapter, decision.worker))
        assert len(set(sent[4:])) == 4, "each stays where it is"
        assert {worker for _, worker in sent[4:]} == {"demo-0", "demo-1"}
        scores = {name: fleet.route(name, replace(prompt(99), adapter=name)).scores for name in names}
        there = {(name, one.worker) for name in names for one in scores[name] if not one.adapter_seconds}
        assert there == set(sent[4:])
        score = next(one for one in scores["a"] if one.adapter_seconds)
        assert score.adapter_seconds == ASSUMED_SECONDS

    def test_a_models_name_is_its_own_where_an_adapter_has_it_too(self) -> None:
        fleet = LiveFleet()
        rival = pool("a", namespace="a", model=adapted("else", "sql"))
        owner = pool("b", namespace="b", model={"name": "else", "source": "tiny", "weightsMiB": 1})
        other = pool("c", namespace="c", model=adapted("sql"))
        fleet.update_pools([view(rival, ["in-a"]), view(owner, ["in-b"]), view(other, ["in-c"])])
        assert fleet.route("else", prompt()).worker == "in-b"
        assert fleet.route("a/else", prompt()).worker == "in-a"
        assert [fleet.route(name, prompt()).worker for name in ("sql", "c/sql")] == ["in-a", "in-c"]
        assert [one.name for one in fleet.models(adapters=True) if one.is_adapter] == ["a/else", "c/sql", "sql"]

    def test_adapters_whose_names_mean_something_else_are_told(self) -> None:
        fleet = LiveFleet()
        rival = pool("a", namespace="a", model=adapted("else", "sql", "own"))
        owner = pool("b", namespace="b", model={"name": "else", "source": "tiny", "weightsMiB": 1})
        other = pool("c", namespace="c", model=adapted("sql"))
        twin = pool("d", namespace="a", model={**adapted("own"), "name": "another"})
        fleet.update_pools([view(one) for one in (rival, owner, other, twin)])
        assert {one.key: one.adapter_conflicts for one in fleet.view().pools} == {
            "a/a": (AdapterConflict("else", "b/b", nameless=False),),
            "b/b": (),
            "c/c": (AdapterConflict("sql", "a/a", nameless=False),),
            "a/d": (AdapterConflict("own", "a/a", nameless=True),),
        }

    def test_a_name_of_a_model_or_adapter_goes_before_an_alias_and_those_without_effect_are_told(self) -> None:
        fleet = LiveFleet()
        rival = pool("a", namespace="a", model=renamed("else", "sql", "free", "o*"))
        owner = pool("b", namespace="b", model={"name": "else", **TINY, "aliases": ["free", "o*"]})
        adapters = pool("c", namespace="c", model=adapted("sql"))
        fleet.update_pools([view(rival, ["in-a"]), view(owner, ["in-b"]), view(adapters, ["in-c"])])
        assert [one.model.name for one in fleet.aliased("free")] == [MODEL]
        assert [one.model.namespace for one in fleet.aliased("b/free")] == ["b"]
        assert fleet.aliased("else") == fleet.aliased("sql") == ()
        assert fleet.aliases() == ["b/free", "free"]
        assert fleet.aliases(patterns=True) == ["b/free", "b/o*", "free", "o*"]
        assert {one.key: one.alias_conflicts for one in fleet.view().pools} == {
            "a/a": (AliasConflict("else", "b/b"), AliasConflict("sql", "c/c")),
            "b/b": (AliasConflict("free", "a/a"), AliasConflict("o*", "a/a")),
            "c/c": (),
        }

    def test_an_alias_of_another_control_planes_model_is_served_there(self) -> None:
        fleet = LiveFleet()
        own = pool("a", model=renamed("both"))
        other = pool("b", model={"name": "far", **TINY, "aliases": ["both", "only-there"]}, controlPlane="eu-1")
        fleet.update_pools([view(own, ["in-a"])], others=[view(other)])
        assert [one.model.name for one in fleet.aliased("both")] == [MODEL]
        assert (fleet.aliased("only-there"), fleet.elsewhere("both")) == ((), None)
        found = fleet.elsewhere("only-there")
        assert found is not None
        assert (found.model.name, found.control_plane) == ("far", "eu-1")

    def test_keys_of_an_adapter_are_not_made_here(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(pool(model=adapted("sql")), ["demo-0"])])
        fleet.report("demo-0")
        assert fleet.keyer(MODEL) is not None
        assert fleet.keyer("sql") is None

    def test_an_unknown_model_is_served_by_nobody(self) -> None:
        fleet = fleet_of("demo-0")
        assert fleet.serving("nobody") is None
        assert fleet.keyer("nobody") is None
        assert fleet.route("nobody", prompt()).reason is Reason.NO_READY_WORKER

    def test_a_name_served_in_two_namespaces_can_be_qualified(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(pool(namespace="b"), ["in-b"]), view(pool(namespace="a"), ["in-a"])])
        assert [route(fleet).worker, fleet.route(f"b/{MODEL}", prompt()).worker] == ["in-a", "in-b"]
        qualified = fleet.serving(f"b/{MODEL}")
        assert qualified is not None
        assert (qualified.name, qualified.upstream) == (f"b/{MODEL}", MODEL)

    def test_a_name_is_of_the_namespace_that_served_it_first_also_when_it_has_no_worker(self) -> None:
        fleet = LiveFleet()
        served = served_since("2027-01-01T00:00:00Z", pool(namespace="b"))
        fleet.update_pools([view(served, ["in-b"]), view(pool(namespace="a"), ["in-a"])])
        assert [model.name for model in fleet.models()] == [f"a/{MODEL}", MODEL]
        assert [route(fleet).worker, fleet.route(f"a/{MODEL}", prompt()).worker] == ["in-b", "in-a"]
        later = served_since("2027-01-02T00:00:00Z", pool(namespace="a"))
        fleet.update_pools([view(served), view(later, ["in-a"])])
        assert route(fleet).reason is Reason.NO_READY_WORKER
        fleet.update_pools([view(later, ["in-a"])])
        assert (route(fleet).worker, [model.name for model in fleet.models()]) == ("in-a", [MODEL])

    def test_a_pool_that_cannot_be_read_keeps_its_name_also_for_a_replica_that_never_read_it(self) -> None:
        served = served_since("2027-01-01T00:00:00Z", pool(namespace="b"))
        unread, theirs = [claim_of(served)], view(pool(namespace="a"), ["in-a"])
        started_anew, was_there = LiveFleet(), LiveFleet()
        started_anew.update_pools([theirs], unread)
        assert (started_anew.serving(MODEL), route(started_anew).reason) == (None, Reason.NO_READY_WORKER)
        assert [model.name for model in started_anew.models()] == [f"a/{MODEL}"]
        was_there.update_pools([view(served, ["in-b"]), theirs], unread)
        assert route(was_there).worker == "in-b"

    def test_rules_say_which_namespaces_may_have_a_name(self) -> None:
        fleet = LiveFleet(name_rules={MODEL: ("b",)})
        fleet.update_pools([view(pool(namespace="a"), ["in-a"])])
        assert fleet.serving(MODEL) is None
        assert [model.name for model in fleet.models()] == [f"a/{MODEL}"]

    def test_a_pool_that_is_gone_takes_workers_blocks_and_connections_with_it(self) -> None:
        fleet = fleet_of("demo-0")
        link = fleet.report(holds=KEYS)
        fleet.update_pools([])
        assert (fleet.models(), fleet.view().workers, link.closed) == ([], (), ["unknown_pool"])
        assert fleet.index.stats().held == {}

    def test_a_pool_made_anew_under_its_old_name_is_another_one(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(pool(uid="1"), ["demo-0"])])
        fleet.report(holds=KEYS)
        fleet.update_pools([view(pool(uid="2"), ["demo-0"])])
        assert (fleet.worker().held_blocks, fleet.worker().stream) == (0, "unknown")


class TestEligibility:
    def test_without_any_report_it_routes_by_load(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        decision = route(fleet)
        assert (decision.verdict, decision.knowledge) == (Verdict.ROUTE, Knowledge.LOAD)

    def test_only_ready_workers_are_candidates(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(pool(), ["demo-0"], unready=["demo-1"])])
        fleet.report("demo-1", KEYS)
        assert [score.worker for score in route(fleet).scores] == ["demo-0"]

        fleet.update_pools([view(pool(), unready=["demo-0", "demo-1"])])
        assert route(fleet).reason is Reason.NO_READY_WORKER

    @pytest.mark.parametrize("name", ["default/demo/demo-0", "default/demo/demo-0#0"])
    def test_excluded_names_are_never_chosen(self, name: str) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        assert route(fleet, exclude=frozenset({name})).worker == "demo-1"
        assert route(fleet, exclude=frozenset({name, "default/demo/demo-1"})).verdict is Verdict.REJECT

    def test_a_decision_names_all_ranks_of_its_worker_and_no_namesake_in_another_pool(self) -> None:
        fleet = LiveFleet()
        fleet.update_pools([view(ranked(2, "a"), ["w-0"]), view(pool("b"), ["w-0"])])
        fleet.report("w-0", pool="default/a", rank=1)
        first = route(fleet, exclude=frozenset({"default/b/w-0"}))
        assert first.full_name == "default/a/w-0"
        assert [score.pool for score in route(fleet, exclude=frozenset({first.full_name})).scores] == ["default/b"]

        fleet.worker_failed(first.full_name)
        assert [(worker.pool, worker.backing_off) for worker in fleet.view().workers] == [
            ("default/a", True),
            ("default/a", True),
            ("default/b", False),
        ]

    def test_a_worker_that_could_not_be_reached_rests_longer_each_time(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        rests = []
        for _ in range(6):
            fleet.worker_failed("default/demo/demo-0")
            began = fleet.now
            while len(route(fleet).scores) == 1:
                fleet.now += 0.5
            rests.append(fleet.now - began)
        assert rests == [1, 2, 4, 8, 10, 10]

    def test_a_resting_worker_serves_where_it_is_the_only_one(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.worker_failed("default/demo/demo-0")
        assert route(fleet).worker == "demo-0"

    def test_an_answer_ends_its_rest(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.worker_failed("default/demo/demo-0")
        with fleet.begin(route(fleet), prompt()) as inflight:
            inflight.first_token()
        assert not fleet.worker().backing_off

    def test_draining_workers_are_the_last_resort(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", KEYS, phase=Phase.DRAINING)
        assert [score.worker for score in route(fleet).scores] == ["demo-1"]
        assert route(fleet, exclude=frozenset({"default/demo/demo-1"})).worker == "demo-0"

    def test_one_that_leaves_or_is_not_ready_is_expected_to_end(self) -> None:
        fleet = fleet_of("demo-0", "demo-1", "demo-2")
        fleet.report("demo-1", KEYS, phase=Phase.DRAINING)
        fleet.update_pools([view(pool(), ["demo-0", "demo-1"], ["demo-2"])])
        serving = [fleet.serves(f"default/demo/demo-{number}") for number in range(4)]
        assert serving == [True, False, False, False]

    def test_a_worker_that_is_not_ready_gets_nothing_whatever_its_agent_says(self) -> None:
        """As one whose pod is being deleted: it still serves what it has, and its agent may not know yet."""
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", KEYS, phase=Phase.READY)
        fleet.update_pools([view(pool(), ["demo-1"], ["demo-0"])])
        assert fleet.worker("demo-0").connected
        assert [score.worker for score in route(fleet).scores] == ["demo-1"]
        nobody = route(fleet, exclude=frozenset({"default/demo/demo-1"}))
        assert nobody.reason is Reason.NO_READY_WORKER

    def test_prefill_workers_never_answer_and_nobody_else_prefills(self) -> None:
        transfer = {"image": "vllm", "blockSize": 16, "maxModelLen": 4096, "kvTransfer": {"kv_connector": "x"}}
        prefill, decode = pool("p", role="Prefill", engine=transfer), pool("d", role="Decode", engine=transfer)
        fleet = LiveFleet()
        fleet.update_pools([view(prefill, ["p-0"]), view(decode, ["d-0"])])
        assert [score.worker for score in route(fleet).scores] == ["d-0"]
        assert route(fleet, exclude=frozenset({"default/d/d-0"})).reason is Reason.NO_READY_WORKER
        assert [score.worker for score in route(fleet, duty=Duty.PREFILL).scores] == ["p-0"]
        both = pool("b", engine=transfer)
        fleet.update_pools([view(both, ["b-0"]), view(decode, ["d-0"])])
        assert {score.worker for score in route(fleet).scores} == {"b-0", "d-0"}
        assert route(fleet, duty=Duty.PREFILL).reason is Reason.NO_READY_WORKER

    def test_renderers_are_the_ready_ones_least_busy_first(self) -> None:
        fleet = fleet_of("demo-0", "demo-1", "demo-2")
        for name, running in (("demo-0", 2), ("demo-1", 0), ("demo-2", 1)):
            fleet.report(name, running=running)
        assert [endpoint.name for endpoint in fleet.renderers(MODEL)] == ["demo-1", "demo-2", "demo-0"]
        assert fleet.renderers("nobody") == []

    def test_a_rank_of_its_own_is_a_candidate_of_its_own(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.update_pools([view(ranked(2), ["demo-0"])])
        fleet.report("demo-0", KEYS, rank=1)
        decision = route(fleet)
        assert (decision.worker, decision.rank, decision.id) == ("demo-0", 1, wid("demo-0", 1))
        assert len(decision.scores) == 2


class TestContracts:
    def test_the_first_that_fits_the_pool_is_in_force(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        assert fleet.keyer(MODEL) is None
        fleet.report("demo-0", contract=IndexContract(weights="else", tokenizer="sha256:aa", block_size=16))
        assert fleet.keyer(MODEL) is None
        assert [(d.field, d.expected, d.actual) for d in fleet.worker().differences] == [("weights", "tiny", "else")]

        fleet.report("demo-1")
        assert fleet.pool().contract == contract_facts(CONTRACT)

    @pytest.mark.requirement("A10", "A11")
    def test_a_worker_that_differs_is_left_out_and_shown(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0")
        fleet.report("demo-1", KEYS, contract=OTHER)
        assert [score.worker for score in route(fleet).scores] == ["demo-0"]
        (difference,) = fleet.worker("demo-1").differences
        assert str(difference) == "tokenizer: pool has 'sha256:aa', worker has 'sha256:bb'"
        assert (fleet.worker("demo-1").excluded, fleet.pool().workers.excluded) == (True, 1)

    def test_a_worker_whose_hashes_look_further_ahead_is_left_out_and_shown(self) -> None:
        """Of equal prompts it holds other blocks: with a draft model, or another setting of it."""
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0")
        ahead = IndexContract(weights="tiny", tokenizer="sha256:aa", block_size=16, key_version=2, lookahead=1)
        fleet.report("demo-1", KEYS, contract=ahead)
        assert [score.worker for score in route(fleet).scores] == ["demo-0"]
        told = [str(difference) for difference in fleet.worker("demo-1").differences]
        assert told == ["key_version: pool has '1', worker has '2'", "lookahead: pool has '0', worker has '1'"]

    def test_keys_cover_what_the_contract_in_force_says(self) -> None:
        fleet = fleet_of("demo-0")
        ahead = IndexContract(weights="tiny", tokenizer="sha256:aa", block_size=16, key_version=2, lookahead=1)
        fleet.report("demo-0", contract=ahead)
        made, facts = fleet.keyer(MODEL), fleet.render_facts(MODEL)
        assert made is not None
        assert (made.block_size, made.lookahead, len(made.keys([7] * 32)), len(made.keys([7] * 33))) == (16, 1, 1, 2)
        assert (facts.lookahead, facts.keys_query.endswith("&block_size=16&lookahead=1")) == (1, True)

    def test_it_serves_where_it_is_the_only_one(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report("demo-0", contract=IndexContract(weights="else", tokenizer="sha256:aa", block_size=16))
        assert route(fleet).worker == "demo-0"

    def test_editing_the_pool_makes_strangers_only_once_a_new_worker_is_there(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0")
        edited = pool(generation=2, model={"name": MODEL, "source": "tiny", "revision": "2", "weightsMiB": 10})
        fleet.update_pools([view(edited, ["demo-0", "demo-1"])])
        assert (fleet.pool().contract, fleet.worker().excluded) == (contract_facts(CONTRACT), False)

        new = IndexContract(weights="tiny", revision="2", tokenizer="sha256:aa", block_size=16)
        fleet.report("demo-1", contract=new)
        assert (fleet.pool().contract, fleet.worker().excluded) == (contract_facts(new), True)

    def test_one_that_nobody_announces_any_more_gives_way(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0")
        fleet.report("demo-1")
        fleet.report("demo-0", epoch="e2", contract=OTHER)
        assert (fleet.pool().contract, fleet.worker("demo-0").excluded) == (contract_facts(CONTRACT), True)

        fleet.report("demo-1", epoch="e2", contract=OTHER)
        assert (fleet.pool().contract, fleet.pool().workers.excluded) == (contract_facts(OTHER), 0)

    def test_it_gives_way_too_where_other_workers_took_the_place_of_the_old(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.disconnect(fleet.report("demo-0").connection)
        link = fleet.report("demo-1", contract=OTHER)
        fleet.update_pools([view(pool(), ["demo-1"])])
        fleet.now += FORGET_SECONDS + 0.1
        fleet.receive(link.connection, state())
        assert (fleet.pool().contract, fleet.pool().workers.excluded) == (contract_facts(OTHER), 0)

    @pytest.mark.requirement("A10")
    def test_the_keyer_is_the_agents_own(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report("demo-0")
        ours = fleet.keyer(MODEL, salt="s", lora="l")
        theirs = BlockKeyer(
            fleet_index_key(INDEX_KEY, "default", MODEL), Namespace(CONTRACT.fingerprint(), "s", "l"), 16
        )
        assert ours is not None
        assert ours.keys(range(64)) == theirs.keys(range(64))
        assert fleet.keyer(MODEL, salt="s", lora="l") is ours
        assert fleet.keyer(MODEL, salt="t", lora="l") is not ours


class TestKnowledge:
    def test_the_holder_is_chosen_and_its_blocks_predicted(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", KEYS[:2])
        fleet.report("demo-1", KEYS[:8])
        decision = route(fleet)
        assert (decision.worker, decision.predicted_tokens, decision.knowledge) == ("demo-1", 128, Knowledge.EXACT)

    def test_after_five_seconds_of_silence_its_cache_counts_nothing(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-1", KEYS)
        fleet.now += 5.1
        assert (route(fleet).predicted_tokens, fleet.worker("demo-1").stale) == (0, True)
        assert fleet.worker("demo-1").held_blocks == 10

    def test_after_fifteen_its_blocks_are_gone_and_it_still_serves(self) -> None:
        fleet = fleet_of("demo-1")
        fleet.report("demo-1", KEYS, waiting_tokens=10**6)
        fleet.now += FORGET_SECONDS + 0.1
        decision = route(fleet)
        assert (decision.worker, fleet.worker("demo-1").held_blocks) == ("demo-1", 0)
        assert decision.scores[0].queued_tokens == 0

    @pytest.mark.requirement("A19")
    def test_a_restart_drops_everything_before_the_first_new_block(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report(holds=KEYS)
        fleet.hello(fleet.connect(FakeLink()), hello(epoch="e2"))
        assert fleet.worker().held_blocks == 0

    def test_a_worker_too_large_for_the_index_is_routed_by_load(self) -> None:
        fleet = fleet_of("demo-0", "demo-1", max_held=12)
        fleet.report("demo-0", KEYS)
        link = fleet.report("demo-1", chain(2, 10), digest=7)
        assert (fleet.worker("demo-1").held_blocks, link.resyncs()) == (0, [])
        assert route(fleet, prompt(seed=2)).predicted_tokens == 0

    def test_a_rate_is_believed_after_three_samples(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0")
        connection = fleet.report().connection
        rates = []
        for _ in range(4):
            fleet.receive(connection, state(prefill_tokens_per_second=777.0))
            rates.append(route(fleet).scores[0].tokens_per_second)
        assert rates == [4000, 4000, 777, 777]


class TestFlights:
    def test_a_burst_of_one_prompt_stays_together_while_there_is_room(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", blocks_total=320, blocks_free=319)
        fleet.report("demo-1", blocks_total=320, blocks_free=319)
        chosen = []
        for _ in range(4):
            decision = route(fleet, prompt(blocks=100))
            fleet.begin(decision, prompt(blocks=100))
            chosen.append(decision.worker)
        assert chosen == [chosen[0]] * 2 + [chosen[2]] * 2
        assert chosen[0] != chosen[2]
        assert route(fleet, prompt(blocks=100)).scores[0].predicted_tokens == 0

    def test_cold_prompts_of_a_burst_spread(self) -> None:
        fleet = fleet_of("demo-0", "demo-1", "demo-2")
        chosen = []
        for seed in range(9):
            decision = route(fleet, prompt(seed))
            fleet.begin(decision, prompt(seed))
            chosen.append(decision.worker)
        assert [chosen.count(f"demo-{i}") for i in range(3)] == [3, 3, 3]

    def test_interleaved_conversations_stick_before_any_report(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        homes: dict[int, set[str]] = {seed: set() for seed in range(4)}
        for turn in range(1, 6):
            for seed, home in homes.items():
                decision = route(fleet, prompt(seed, 10 * turn))
                with fleet.begin(decision, prompt(seed, 10 * turn)) as inflight:
                    inflight.first_token()
                home.add(decision.worker)
                fleet.now += 0.1
        assert [len(home) for home in homes.values()] == [1, 1, 1, 1]

    def test_what_is_sent_counts_as_work_until_its_first_token(self) -> None:
        fleet = fleet_of("demo-0")
        inflight = fleet.begin(route(fleet), prompt())
        assert (fleet.worker().inflight_requests, fleet.worker().inflight_tokens) == (1, 161)
        inflight.first_token()
        assert (fleet.worker().inflight_requests, fleet.worker().inflight_tokens) == (1, 0)
        inflight.finish(cached_tokens=0)
        inflight.finish()
        assert (fleet.worker().inflight_requests, fleet.view().inflight_requests) == (0, 0)

    def test_and_no_longer_than_patience(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.begin(route(fleet), prompt())
        fleet.now += UNCACHED_WORK_SECONDS
        assert fleet.worker().inflight_tokens == 0

    def test_expected_blocks_fade_after_two_seconds(self) -> None:
        fleet = fleet_of("demo-0")
        with fleet.begin(route(fleet), prompt()) as inflight:
            inflight.first_token()
        assert route(fleet).scores[0].expected_tokens == 160
        fleet.now += 2.0
        assert route(fleet).scores[0].expected_tokens == 0

    def test_a_request_that_failed_leaves_nothing_to_expect(self) -> None:
        fleet = fleet_of("demo-0")
        with pytest.raises(ConnectionError), fleet.begin(route(fleet), prompt()):
            raise ConnectionError
        assert route(fleet).scores[0].expected_tokens == 0

    def test_work_that_a_report_shows_is_not_counted_twice(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.begin(route(fleet), prompt())
        fleet.report(running=1, waiting=2, waiting_tokens=161 + 39)
        (score,) = route(fleet).scores
        assert (score.queued_tokens, score.inflight_tokens, score.requests) == (39, 161, 3)

    def test_waiting_tokens_that_an_engine_does_not_tell_are_estimated(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report(waiting=3, waiting_tokens=None)
        assert route(fleet).scores[0].queued_tokens == 3 * 512

    def test_free_and_blank_blocks_shrink_by_what_was_sent_since_the_report(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", running=1, blocks_total=30, blocks_free=14)
        fleet.report("demo-1", running=1, blocks_total=30, blocks_free=15)
        fleet.now += 0.1
        first = route(fleet)
        assert [score.fits for score in first.scores] == [True, True]
        fleet.begin(first, prompt())
        again = route(fleet, prompt(2))
        assert [score.fits for score in again.scores if score.worker == first.worker] == [False]

    def test_a_worker_keeps_its_reserve_of_free_blocks(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.update_pools([view(pool(admission={"minFreeBlockPercent": 20}), ["demo-0"])])
        fleet.report(running=1, blocks_total=101, blocks_free=32)
        (score,) = route(fleet).scores
        assert (score.needed_blocks, score.free_blocks, score.reserved_blocks, score.fits) == (12, 12, 20, True)
        fleet.report(running=1, blocks_total=101, blocks_free=31)
        assert route(fleet).reason is Reason.NO_ROOM

    def test_what_our_requests_will_still_fill_is_not_free_though_reports_do_not_show_it(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report(blocks_total=101, blocks_free=100).connection
        for seed in range(7):
            fleet.begin(route(fleet, prompt(seed)), prompt(seed))
        fleet.now += 1
        fleet.receive(connection, state(running=1, waiting=6, blocks_total=101, blocks_free=100))
        (score,) = route(fleet, prompt(9)).scores
        assert (score.free_blocks, score.fits) == (100 - 7 * 12 - 5, False)

    def test_blocks_in_use_that_a_prompt_shares_are_not_needed_again(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report(holds=KEYS, running=1, blocks_total=41, blocks_free=6, blocks_idle=2)
        (score,) = route(fleet).scores
        assert (score.needed_blocks, score.fits) == (12 - (10 - 2), True)
        assert route(fleet, prompt(2)).reason is Reason.NO_ROOM

    def test_whoever_listens_is_told_of_reports_ends_and_pools(self) -> None:
        fleet, told = fleet_of("demo-0"), []
        fleet.listen(lambda: told.append(fleet.now))
        connection = fleet.report().connection
        assert told
        before = len(told)
        fleet.receive(connection, state())
        inflight = fleet.begin(route(fleet), prompt())
        inflight.first_token()
        assert len(told) == before + 1
        inflight.finish()
        inflight.finish()
        fleet.update_pools([view(pool(), ["demo-0"])])
        assert len(told) == before + 3

    def test_a_flight_to_a_worker_that_is_no_more_is_harmless(self) -> None:
        fleet = fleet_of("demo-0")
        decision = route(fleet)
        fleet.update_pools([view(pool(), [])])
        with fleet.begin(decision, prompt()) as inflight:
            inflight.first_token()

    def test_the_policy_may_change_at_any_time(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", KEYS)
        fleet.policy = RoutingPolicy.ROUND_ROBIN
        chosen = []
        for _ in range(4):
            chosen.append(route(fleet).worker)
            fleet.begin(route(fleet), prompt()).finish()
        assert chosen == ["demo-0", "demo-1"] * 2
        assert route(fleet, policy=RoutingPolicy.CACHE_AWARE).worker == "demo-0"


class TestView:
    @pytest.mark.requirement("A23")
    def test_hit_ratio_is_measured_over_the_pools_window(self) -> None:
        fleet = LiveFleet()
        hit = {"objective": {"ratio": 0.6, "windowSeconds": 60, "minTokens": 150}}
        fleet.update_pools([view(pool(hit=hit), ["demo-0"])])
        connection = fleet.report(prefix_queries=5000, prefix_hits=4000).connection
        assert fleet.pool().hit_ratio.value is None
        assert not fleet.pool().hit_ratio.sampled

        fleet.receive(connection, state(prefix_queries=5100, prefix_hits=4080))
        assert fleet.pool().hit_ratio.value == pytest.approx(0.8)
        assert not fleet.pool().hit_ratio.sampled
        fleet.now += 30
        fleet.receive(connection, state(prefix_queries=5200, prefix_hits=4080))
        ratio = fleet.pool().hit_ratio
        assert (ratio.hit_tokens, ratio.objective, ratio.queried_tokens, ratio.sampled) == (80, 0.6, 200, True)
        fleet.now += 40
        assert fleet.pool().hit_ratio.value == 0.0
        fleet.receive(connection, state(prefix_queries=50, prefix_hits=25))
        assert fleet.pool().hit_ratio.hit_tokens == 25

    def test_a_caches_value_counts_what_nobody_else_holds(self) -> None:
        fleet = fleet_of("demo-0", "demo-1")
        fleet.report("demo-0", KEYS)
        fleet.report("demo-1", KEYS[:4])
        assert [worker.cache_value for worker in fleet.view().workers] == [pytest.approx(8), pytest.approx(2)]

    def test_shows_stream_load_and_policy_of_each_worker(self) -> None:
        fleet = fleet_of("demo-0")
        fleet.report(holds=KEYS, running=3, generation=1)
        worker = fleet.worker()
        assert (worker.stream, worker.epoch, worker.held_blocks, worker.policy_generation) == ("live", "e1", 10, 1)
        assert worker.load is not None
        assert (worker.load.running, worker.report_age_seconds, worker.connected, worker.listed) == (3, 0.0, True, True)
        assert (fleet.pool().workers.ready, fleet.pool().workers.fresh, fleet.view().index.keys) == (1, 1, 10)

    def test_what_is_told_at_its_longest_can_be_read_by_clients(self) -> None:
        fleet = fleet_of("demo-0")
        reason, names = "r" * 1024, tuple(f"{number:02}".ljust(253, "n") for number in range(64))
        warmth = Warmth(total=64, failed=names, problems=(WarmProblem(name=names[0], kind="k" * 64, detail=reason),))
        problems = (AdapterProblem(name=names[0], detail="d" * 256),)
        adapters = AdapterReport(served=names, busy=names, loading=names, problems=problems)
        fleet.report(not_indexed=reason, reason=reason, suspended=reason, warmth=warmth, adapters=adapters)
        worker = fleet.worker()
        assert (worker.capabilities[-1].feature, worker.phase_reason, worker.adapters) == ("index", reason, adapters)
        assert msgspec.json.decode(msgspec.json.encode(worker), type=WorkerFacts) == worker

    def test_a_delta_moves_the_picture(self) -> None:
        fleet = fleet_of("demo-0")
        connection = fleet.report().connection
        fleet.receive(connection, snapshot(0))
        fleet.receive(connection, delta(1))
        assert fleet.worker().sequence == 1
