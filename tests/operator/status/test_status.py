import datetime as dt
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cachefleet_core.fleet_status.pool_facts import AdapterConflict, AliasConflict, ContractFacts, HitRatio, PoolDetail
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.adapter_reports import AdapterProblem, AdapterReport
from cachefleet_core.pool.model_names import NameConflict
from cachefleet_core.pool.status import MAX_WORKERS, PoolStatus
from cachefleet_core.warmth import WarmProblem, Warmth
from cachefleet_operator.controlplane_client.pool_facts import Facts
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.pods import Pod
from cachefleet_operator.status.pool_assessment import Observations, Verdict, Workers, judge
from cachefleet_operator.status.status import due, status, written_at
from cachefleet_operator.status.troubles import Trouble
from tests.operator.pools import document

VERDICT = judge(document({"hit": {"objective": {"ratio": 0.6, "windowSeconds": 600}}}))[1]
WORKERS = Workers(wanted=2, total=2, ready=2, updated=2, current=True)
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"
INVALID = Verdict(("Invalid", "spec.x: is wrong"))
LONGER = Difference("max_model_len", "4096", "9")
UNCACHED = Difference("enable_prefix_caching", "true", "false")
SILENT = Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, "no answer")


def member(name: str = "demo-a", **more: Any) -> WorkerFacts:
    given = {
        "phase": "ready",
        "epoch": "e",
        "held_blocks": 40,
        "block_bytes": 1 << 20,
        "load": Load(blocks_idle=30),
        "ready": True,
        "stream": "live",
        "stale": False,
    }
    return WorkerFacts(name=name, **{**given, **more})


def cold(kind: str) -> WorkerFacts:
    problem = WarmProblem(name="policy", kind=kind, tokens=900, limit=511, attempts=3, detail="engine.maxModelLen")
    return member(warmth=Warmth(done=0, total=1, problems=(problem,)))


def facts(*members: WorkerFacts, ratio: float | None = 0.714, sampled: bool = True) -> Facts:
    measured = HitRatio(ratio, 600, queried_tokens=9, sampled=sampled)
    return Facts(
        PoolDetail(key="p/q", contract=ContractFacts("sha256:x"), hit_ratio=measured, members=members or (member(),))
    )


def made(
    observations: Observations, previous: dict[str, Any] | None = None, now: str = NOW, **verdict: Any
) -> dict[str, Any]:
    chosen = verdict.get("verdict", VERDICT)
    return status(chosen, WORKERS, observations, name="demo", generation=3, previous=previous or {}, now=now)


def observations(*pods: Pod, known: Facts | None = None) -> Observations:
    return Observations(pods or (Pod("demo-a", ready=True), Pod("demo-b")), known or facts())


def said(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in found["conditions"]}


def test_it_is_what_the_schema_says() -> None:
    PoolStatus.model_validate(made(observations()))


def test_when_it_first_had_a_ready_worker_is_written_once() -> None:
    seen = observations()
    none = replace(WORKERS, ready=0)
    told: dict[str, Any] = {"name": "demo", "generation": 3}
    assert "firstReadyTime" not in status(VERDICT, none, seen, **told, previous={}, now=NOW)
    first = made(seen)
    assert first["firstReadyTime"] == NOW
    assert status(VERDICT, none, seen, **told, previous=first, now=LATER)["firstReadyTime"] == NOW
    assert status(INVALID, WORKERS, seen, **told, previous=first, now=LATER)["firstReadyTime"] == NOW
    assert due(first, {**first, "firstReadyTime": None}, age=0, seconds=30) == 0.0


def test_who_was_ready_before_that_was_written_down_is_so_since_then() -> None:
    before = made(observations())
    del before["firstReadyTime"]
    assert made(observations(), before, LATER)["firstReadyTime"] == NOW


def test_a_pool_that_may_not_have_its_name_says_who_has_it() -> None:
    def name(**more: Any) -> dict[str, Any]:
        found = made(replace(observations(), **more))
        return next(each for each in found["conditions"] if each["type"] == "ModelNameConflict")

    assert (name()["status"], name()["reason"]) == ("False", "NameOwned")
    taken, forbidden = name(name_conflict=NameConflict("a/x")), name(name_conflict=NameConflict())
    assert (taken["status"], taken["reason"]) == ("True", "NameOfAnother")
    assert "pool a/x" in taken["message"]
    assert (forbidden["status"], forbidden["reason"]) == ("True", "NameNotAllowed")
    assert "as namespace/model alone" in taken["message"]
    nameless = name(name_conflict=NameConflict("a/x", nameless=True))
    assert "name it apart" in nameless["message"]
    assert said(made(observations(), verdict=INVALID))["ModelNameConflict"] == ("Unknown", "ConfigInvalid")


def test_tells_what_is_known() -> None:
    found = made(observations())
    assert found["contract"] == "sha256:x"
    assert found["hitRatio"] == {"value": "0.71", "sampledAt": NOW}
    assert (found["budget"]["usedMiB"], found["budget"]["blocks"]) == (30, 512)
    assert found["workers"] == [
        {"name": "demo-a", "state": "ready", "warmed": True, "heldBlocks": 40, "epoch": "e"},
        {"name": "demo-b", "state": "starting"},
    ]


def test_measurements_stay_when_nobody_measures() -> None:
    before = made(observations())
    after = made(observations(known=SILENT), before, now=LATER)
    for part in ("contract", "hitRatio", "budget"):
        assert after[part] == before[part]
    assert said(after)["IndexFresh"] == ("Unknown", "ControlPlaneUnreachable")
    assert after["workers"][0] == {"name": "demo-a", "state": "ready"}


def test_a_hit_ratio_has_the_time_it_was_first_so() -> None:
    before = made(observations())
    assert made(observations(known=facts(ratio=0.7141)), before, now=LATER)["hitRatio"]["sampledAt"] == NOW
    assert made(observations(known=facts(ratio=0.72)), before, now=LATER)["hitRatio"]["sampledAt"] == LATER


@pytest.mark.parametrize(
    ("pod", "phase", "state"),
    [
        (Pod("a", leaving=True, ready=True), "ready", "draining"),
        (Pod("a", trouble=Trouble(Reason.CRASH_LOOPING, "a", "engine", "", lasting=True)), "warming", "failed"),
        (Pod("a", trouble=Trouble(Reason.UNSCHEDULABLE, "a", "", "", lasting=False)), None, "starting"),
        (Pod("a", ready=True), "draining", "draining"),
        (Pod("a", ready=True), "failed", "failed"),
        (Pod("a", ready=True), "warming", "ready"),
        (Pod("a"), "warming", "warming"),
        (Pod("a"), "ready", "starting"),
        (Pod("a"), None, "starting"),
    ],
)
def test_a_worker_is_in_one_state(pod: Pod, phase: str | None, state: str) -> None:
    known = facts(member("a", phase=phase, warmth=Warmth(done=1, total=2)))
    (worker,) = made(observations(pod, known=known))["workers"]
    assert worker["state"] == state
    assert worker["warmed"] is False


@pytest.mark.parametrize(
    ("pod", "phase", "state"),
    [
        (Pod("a", ready=True), "ready", "asleep"),
        (Pod("a", ready=True), "draining", "draining"),
        (Pod("a", leaving=True, ready=True), "ready", "draining"),
        (Pod("a"), "ready", "starting"),
    ],
)
def test_a_worker_whose_engine_serves_nothing_says_why(pod: Pod, phase: str, state: str) -> None:
    known = facts(member("a", phase=phase, suspended="asleep"))
    (worker,) = made(observations(pod, known=known))["workers"]
    assert worker["state"] == state


def test_nothing_is_told_of_a_cache_whose_agent_has_said_nothing() -> None:
    (worker,) = made(observations(Pod("a"), known=facts(member("a", phase=None, epoch=""))))["workers"]
    assert worker == {"name": "a", "state": "starting"}


def test_of_many_workers_some_are_shown() -> None:
    found = made(observations(*(Pod(f"demo-{number:03}") for number in range(MAX_WORKERS + 6))))
    assert len(found["workers"]) == MAX_WORKERS
    assert found["workersOmitted"] == 6
    PoolStatus.model_validate(found)


def test_ranks_of_a_worker_are_one_worker() -> None:
    known = facts(member("demo-a", rank=1, warmth=Warmth(done=0, total=1)), member("demo-a"))
    (worker,) = made(observations(Pod("demo-a", ready=True), known=known))["workers"]
    assert (worker["heldBlocks"], worker["warmed"], worker["epoch"]) == (80, False, "e")


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (facts(), {"HitRateMet": ("True", "ObjectiveMet"), "IndexFresh": ("True", "ReportsFresh")}),
        (facts(ratio=0.5), {"HitRateMet": ("False", "BelowObjective")}),
        (facts(ratio=None), {"HitRateMet": ("Unknown", "NoSamples")}),
        (facts(ratio=0.0, sampled=False), {"HitRateMet": ("Unknown", "TooFewSamples")}),
        (facts(ratio=0.9, sampled=False), {"HitRateMet": ("Unknown", "TooFewSamples")}),
        (facts(member(stale=True)), {"IndexFresh": ("False", "ReportsStale")}),
        (facts(member(indexed=False), member("demo-b")), {"IndexFresh": ("False", "ReportsStale")}),
        (facts(member(), member("demo-b", ready=False, stale=True)), {"IndexFresh": ("True", "ReportsFresh")}),
        (Facts(PoolDetail(key="p/q")), {"IndexFresh": ("Unknown", "NoReadyWorkers")}),
        (Facts(PoolDetail(key="p/q")), {"ContractConsistent": ("Unknown", "NoContractYet")}),
        (SILENT, {"HitRateMet": ("Unknown", "ControlPlaneUnreachable")}),
        (facts(member(trust=0.49)), {"Degraded": ("True", "ClaimsNotServed"), "Ready": ("True", "WorkersReady")}),
        (facts(), {"EngineAsAsked": ("True", "EnginesAsAsked")}),
        (facts(member(ready=False)), {"EngineAsAsked": ("Unknown", "NoReadyWorkers")}),
        (SILENT, {"EngineAsAsked": ("Unknown", "ControlPlaneUnreachable")}),
        (
            facts(member(), member("demo-b", configuration=(LONGER,))),
            {"EngineAsAsked": ("False", "EngineDiffers"), "Ready": ("True", "WorkersReady")},
        ),
        (
            facts(member(), member("demo-b", configuration=(UNCACHED,))),
            {"EngineAsAsked": ("False", "NoPrefixCache"), "HitRateMet": ("Unknown", "NoPrefixCache")},
        ),
        (
            facts(member(configuration=(UNCACHED, LONGER))),
            {"EngineAsAsked": ("False", "EngineDiffers"), "HitRateMet": ("Unknown", "NoPrefixCache")},
        ),
        (facts(), {"IndexBlind": ("False", "HitsIndexed")}),
        (SILENT, {"IndexBlind": ("Unknown", "ControlPlaneUnreachable")}),
        (facts(member(), member("demo-b", blind=True)), {"IndexBlind": ("True", "ServesUnindexed")}),
        (facts(member(not_indexed="group 1 is odd")), {"IndexBlind": ("True", "NotUnderstood")}),
        (facts(member(trust=0.5)), {"Degraded": ("False", "NothingWrong")}),
        (
            facts(member(key_refused=True), member("demo-b")),
            {
                "KeysBroken": ("True", "KeysRefused"),
                "Degraded": ("True", "KeysRefused"),
                "Ready": ("True", "WorkersReady"),
            },
        ),
        (
            facts(member(key_refused=True), member("demo-b", ready=False)),
            {"KeysBroken": ("True", "KeysRefused"), "Ready": ("False", "KeysRefused")},
        ),
        (
            facts(member(suspended="asleep"), member("demo-b")),
            {"Degraded": ("False", "NothingWrong"), "Ready": ("True", "WorkersReady")},
        ),
        (
            facts(member(suspended="asleep"), member("demo-b", suspended="paused")),
            {"Ready": ("False", "EnginesSuspended"), "Degraded": ("False", "NothingWrong")},
        ),
        (facts(member(suspended="stuck"), member("demo-b")), {"Degraded": ("True", "EngineStuck")}),
        (facts(member()), {"KeysBroken": ("False", "KeysHeld")}),
        (SILENT, {"KeysBroken": ("False", "KeysHeld"), "Ready": ("True", "WorkersReady")}),
        (facts(cold("too_long")), {"Degraded": ("True", "WarmPrefixTooLong"), "Ready": ("True", "WorkersReady")}),
        (facts(cold("refused")), {"Degraded": ("True", "WarmPrefixRefused")}),
        (facts(cold("failing")), {"Degraded": ("True", "WarmPrefixFailing")}),
        (facts(member(phase="failed")), {"Degraded": ("True", "WorkerFailed"), "Ready": ("True", "WorkersReady")}),
    ],
)
def test_facts_become_conditions(known: Facts, expected: dict[str, tuple[str, str]]) -> None:
    found = said(made(observations(known=known)))
    assert {name: found[name] for name in expected} == expected


def test_an_engine_that_is_not_as_asked_is_named_with_both_values() -> None:
    blocks = Difference("block_size", "16", "32")
    known = facts(member("demo-b", configuration=(LONGER, blocks)), member("demo-c", configuration=(LONGER,)))
    (found,) = [each for each in made(observations(known=known))["conditions"] if each["type"] == "EngineAsAsked"]

    assert found["message"] == (
        "the engine of worker demo-b: max_model_len is 9, the pool asks for 4096; "
        "block_size is 32, the pool asks for 16; and 1 more"
    )


def test_an_adapter_that_is_not_loaded_is_told_with_the_engines_words_and_what_to_do() -> None:
    problem = AdapterProblem(name="sql", detail="No adapter found for /weights/sql")
    known = facts(member(), member("demo-b", adapters=AdapterReport(problems=(problem,))))
    (found,) = [each for each in made(observations(known=known))["conditions"] if each["type"] == "EngineAsAsked"]

    assert (found["status"], found["reason"]) == ("False", "AdapterNotLoaded")
    assert found["message"] == (
        "worker demo-b: adapter sql is not as the pool has it, and gets no requests there: No adapter found for "
        "/weights/sql; correct its source or the variable named, or take it out; it is tried again"
    )


def test_an_adapter_whose_image_has_none_is_told_of_images() -> None:
    problem = AdapterProblem(name="sql", detail="Loading lora sql failed: No adapter found for /mnt/adapters/1f3a")
    known = facts(member(), member("demo-b", adapters=AdapterReport(problems=(problem,))))
    (found,) = [each for each in made(observations(known=known))["conditions"] if each["type"] == "EngineAsAsked"]
    assert "/mnt/adapters/1f3a; its image has no adapter there, as an OCI artifact has none" in found["message"]


@pytest.mark.parametrize(
    ("conflict", "message"),
    [
        (
            AdapterConflict("sql", "b/other"),
            "the name of adapter sql belongs to pool b/other; it is asked for as namespace/sql alone",
        ),
        (
            AdapterConflict("sql", "b/other", nameless=True),
            (
                "the name of adapter sql belongs to pool b/other; namespace/sql is not its name either, "
                "so nobody can ask for it: name it apart"
            ),
        ),
    ],
)
def test_an_adapters_name_that_another_has_is_told(conflict: AdapterConflict, message: str) -> None:
    known = msgspec.structs.replace(facts(member()).pool or PoolDetail(key="p/q"), adapter_conflicts=(conflict,))
    conditions = made(observations(known=Facts(known)))["conditions"]
    (found,) = [each for each in conditions if each["type"] == "ModelNameConflict"]
    assert (found["status"], found["reason"], found["message"]) == ("True", "AdapterNameTaken", message)


@pytest.mark.parametrize(
    ("conflict", "message"),
    [
        (
            AliasConflict("gpt", "b/other"),
            "the alias gpt belongs to pool b/other; it means this model as namespace/gpt alone",
        ),
        (
            AliasConflict("gpt", nameless=True),
            (
                "the alias gpt may not be had by this namespace; namespace/gpt does not mean this model either: take "
                "another alias"
            ),
        ),
    ],
)
def test_an_alias_that_another_has_is_told(conflict: AliasConflict, message: str) -> None:
    known = msgspec.structs.replace(facts(member()).pool or PoolDetail(key="p/q"), alias_conflicts=(conflict,))
    conditions = made(observations(known=Facts(known)))["conditions"]
    (found,) = [each for each in conditions if each["type"] == "ModelNameConflict"]
    assert (found["status"], found["reason"], found["message"]) == ("True", "AliasTaken", message)


def test_a_prefix_that_does_not_fit_is_told_with_both_numbers() -> None:
    conditions = made(observations(known=facts(cold("too_long"))))["conditions"]
    (message,) = [each["message"] for each in conditions if each["type"] == "Degraded"]
    assert message == (
        "worker demo-a: warm prefix policy takes 900 tokens, the limit is 511 by engine.maxModelLen: "
        "shorten it, or raise that"
    )


def test_without_an_objective_none_is_met() -> None:
    assert said(made(observations(), verdict=judge(document())[1]))["HitRateMet"] == ("Unknown", "NoObjective")


def figures(value: dict[str, Any]) -> None:
    value["hitRatio"] = {"value": "0.10", "sampledAt": LATER}
    value["budget"]["usedMiB"] = 1
    value["workers"][0]["heldBlocks"] = 1
    value["conditions"][2]["message"] = "other words"


@pytest.mark.parametrize(("age", "wait"), [(0.0, 30.0), (12.0, 18.0), (30.0, 0.0), (float("inf"), 0.0), (-5.0, 30.0)])
def test_figures_are_written_at_leisure(age: float, wait: float) -> None:
    live = made(observations())
    wanted = deepcopy(live)
    figures(wanted)
    assert due(wanted, live, age=age, seconds=30) == wait


def test_where_clocks_disagree_nothing_waits() -> None:
    live = made(observations())
    wanted = deepcopy(live)
    figures(wanted)
    assert due(wanted, live, age=-3600, seconds=30) == 0


def test_nothing_new_is_not_written() -> None:
    assert due(made(observations()), made(observations()), age=float("inf"), seconds=30) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["conditions"][0].update(status="False"),
        lambda value: value["conditions"][0].update(reason="Other"),
        lambda value: value["conditions"][1].update(message="9999 of 4544"),
        lambda value: value.update(readyReplicas=1),
        lambda value: value.update(contract="sha256:y"),
        lambda value: value["workers"][0].update(epoch="other"),
        lambda value: value["workers"][0].update(state="draining"),
        lambda value: value["workers"].pop(),
        lambda value: value["budget"].update(admittedMiB=1),
        lambda value: value.pop("hitRatio"),
    ],
)
def test_what_matters_is_written_at_once(change: Any) -> None:
    live = made(observations())
    wanted = deepcopy(live)
    change(wanted)
    assert due(wanted, live, age=0, seconds=30) == 0


def test_the_last_write_is_in_the_object() -> None:
    entry = {"manager": "cachefleet-operator", "subresource": "status", "time": NOW}
    pool = document(managedFields=[entry, {**entry, "manager": "kubectl", "time": LATER}, {"manager": "x"}])
    assert written_at(pool) == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert written_at(document()) is None


@pytest.mark.parametrize("field", ["admitted", "foreignPods"])
def test_what_the_control_plane_follows_is_written_at_once(field: str) -> None:
    assert due({field: ["new"]}, {field: ["old"]}, age=1.0, seconds=60.0) == 0.0


@pytest.mark.parametrize(("counted", "both"), [(0.0, True), (0.69, False), (None, False)])
def test_the_hit_ratio_is_of_what_was_served_and_says_where_the_counters_differ(
    counted: float | None, *, both: bool
) -> None:
    measured = HitRatio(0.714, 600, tokens=900, by="answers", counted=counted)
    seen = made(
        observations(
            known=Facts(
                PoolDetail(key="p/q", contract=ContractFacts("sha256:x"), hit_ratio=measured, members=(member(),))
            )
        )
    )
    (condition,) = [each for each in seen["conditions"] if each["type"] == "HitRateMet"]
    assert (condition["status"], seen["hitRatio"]["value"]) == ("True", "0.71")
    assert condition["message"].startswith("0.71 of prompt tokens came from cache")
    assert ("say 0.00" in condition["message"]) is both
