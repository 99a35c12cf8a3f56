"""What a scope means, which workers are asked, and for what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cachefleet_controlplane.flushing import flush_plan
from cachefleet_controlplane.flushing.flush_plan import Target, rendered_body, targets
from cachefleet_controlplane.flushing.flush_scope import Scope, models_meant
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.engine.cache_flush import FlushAsk
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.report_frames import Capability
from tests.controlplane.fleet_views import worker_status
from tests.controlplane.gateway.harness import pool

DIGEST = "a" * 32
CHAT = {"messages": [{"role": "system", "content": "You are kind."}]}
WHOLE = Capability(feature="flush", mode="whole", reason="no block events")


def model(name: str = "fake", *pools: str, upstream: str = "", isolation: str = "PerTenant") -> ServedModel:
    declared = (pool(model=name, isolation=isolation),)
    keys = pools or ("default/demo",)
    return ServedModel(
        name=upstream or name,
        upstream=upstream or name,
        base=name,
        namespace="default",
        pools=keys,
        declared=declared,
        max_model_len=4096,
        created=0,
    )


def worker(name: str = "demo-0", **changes: Any) -> WorkerFacts:
    able = (Capability(feature="flush", mode="blocks"),)
    return worker_status(name, **({"capabilities": able} | changes))


def planned(
    scope: Scope, *workers: WorkerFacts, models: list[ServedModel] | None = None, dry_run: bool = False
) -> list[Target]:
    found = [model()] if models is None else models
    return targets(scope, found, workers or (worker(),), digests=lambda: (DIGEST,), dry_run=dry_run)


def refused(act: Callable[[], object]) -> tuple[int, str | None, str]:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value.status, caught.value.param, caught.value.message


@pytest.mark.parametrize(
    ("scope", "field", "said"),
    [
        (Scope(), "scope", "all: true"),
        (Scope(everything=True, model="fake"), "scope.all", "nothing else"),
        (Scope(everything=True, prompt=CHAT), "scope.all", "nothing else"),
        (Scope(prompt={}), "scope.prompt", "one of them"),
        (Scope(prompt={"messages": []}), "scope.prompt", "one of them"),
        (Scope(prompt=CHAT | {"prompt": "x"}), "scope.prompt", "one of them"),
        (Scope(prompt={"input": "x"}), "scope.prompt.input", "messages"),
        (Scope(prompt={"prompt": "\ud800"}), "scope.prompt", "surrogate"),
        (Scope(prompt=CHAT | {"system": "x"}), "scope.prompt.system", "messages"),
    ],
)
def test_a_scope_that_names_nothing_or_no_prompt_is_refused(scope: Scope, field: str, said: str) -> None:
    status, param, message = refused(scope.check)
    assert (status, param) == (422, field)
    assert said in message


def test_sound_scopes_pass() -> None:
    for scope in (Scope(everything=True), Scope(tenant="acme"), Scope(prompt={"prompt": [1, 2, 3]}, model="fake")):
        scope.check()


def test_a_model_or_pool_that_is_not_there_is_named_with_those_that_are() -> None:
    known = [model("fake"), model("other", "default/other")]
    assert refused(lambda: models_meant(Scope(model="x"), known, None)) == (
        404,
        "scope.model",
        "no model `x` is served; there are: fake, other",
    )
    status, field, message = refused(lambda: models_meant(Scope(pool="a/b"), known, None))
    assert (status, field) == (404, "scope.pool")
    assert "default/demo, default/other" in message
    _, field, message = refused(lambda: models_meant(Scope(model="fake", pool="default/other"), known, known[0]))
    assert field == "scope.pool"
    assert "of model `fake`" in message


def test_without_a_model_all_are_meant_and_a_prompt_needs_one() -> None:
    known = [model("fake"), model("other", "default/other")]
    assert models_meant(Scope(tenant="acme"), known, None) == known
    assert models_meant(Scope(pool="default/other", prompt=CHAT), known, None) == [known[1]]
    assert models_meant(Scope(model="fake", prompt=CHAT), known, known[0]) == [known[0]]
    status, field, message = refused(lambda: models_meant(Scope(prompt=CHAT), known, None))
    assert (status, field) == (422, "scope.model")
    assert "fake, other" in message


def test_every_worker_is_asked_once_whatever_its_ranks() -> None:
    ranks = [worker(id=f"default/demo/demo-0#{rank}", rank=rank) for rank in range(2)]
    found = planned(Scope(everything=True), *ranks, worker("demo-1"), dry_run=True)
    assert [(one.pool, one.worker) for one in found] == [("default/demo", "demo-0"), ("default/demo", "demo-1")]
    assert {one.ask for one in found} == {FlushAsk(everything=True, dry_run=True)}
    assert {one.problem for one in found} == {""}


@pytest.mark.parametrize("name", ["demo-1", "default/demo/demo-1", "default/demo/demo-1#0"])
def test_a_worker_by_each_of_its_names(name: str) -> None:
    workers = [worker("demo-0"), worker("demo-1", id="default/demo/demo-1#0")]
    (found,) = planned(Scope(worker=name), *workers)
    assert (found.worker, found.ask) == ("demo-1", FlushAsk(everything=True, rank=0 if "#" in name else None))


def test_a_worker_of_another_pool_is_not_there() -> None:
    elsewhere = worker("other-0", pool="default/other", id="default/other/other-0#0")
    status, field, _ = refused(lambda: planned(Scope(worker="other-0"), elsewhere))
    assert (status, field) == (404, "scope.worker")
    assert planned(Scope(everything=True), elsewhere) == []


def test_a_name_that_several_pools_have_a_worker_of_means_none_of_them() -> None:
    other = worker("demo-0", pool="other/demo", id="other/demo/demo-0#0")
    both = [model("fake", "default/demo"), model("other", "other/demo")]
    status, field, said = refused(lambda: planned(Scope(worker="demo-0"), worker(), other, models=both))
    assert (status, field) == (422, "scope.worker")
    assert "default/demo/demo-0, other/demo/demo-0" in said
    (found,) = planned(Scope(worker="other/demo/demo-0"), worker(), other, models=both)
    assert found.pool == "other/demo"
    (found,) = planned(Scope(worker="demo-0", pool="default/demo"), worker(), other, models=both)
    assert found.pool == "default/demo"


def test_a_pool_of_several_that_serve_a_model() -> None:
    several = model("fake", "default/demo", "default/more")
    more = worker("more-0", pool="default/more")
    assert [one.worker for one in planned(Scope(pool="default/more"), worker(), more, models=[several])] == ["more-0"]
    assert len(planned(Scope(model="fake"), worker(), more, models=[several])) == 2


def test_a_tenant_goes_by_the_digests_of_its_salts() -> None:
    (found,) = planned(Scope(tenant="acme"))
    assert found.ask == FlushAsk(salts=(DIGEST,))
    (shared,) = planned(Scope(tenant="acme"), models=[model(isolation="Shared")])
    assert shared.problem == flush_plan.SHARED


def test_an_adapters_name_means_its_blocks_alone() -> None:
    (found,) = planned(Scope(model="french"), models=[model(upstream="french")])
    assert found.ask == FlushAsk(adapter="french")


def test_a_prompt_is_rendered_without_the_start_of_an_answer_and_what_is_not_the_prompts() -> None:
    (found,) = planned(Scope(prompt=CHAT | {"stream": True, "model": "alias", "cache_salt": "s", "tools": []}))
    assert found.ask == FlushAsk(prompt={"model": "fake", "add_generation_prompt": False, "tools": [], **CHAT})
    assert rendered_body({"prompt": [1, 2]}, "m") == {"model": "m", "prompt": [1, 2]}
    assert rendered_body(CHAT | {"add_generation_prompt": True}, "m")["add_generation_prompt"] is True


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": ""}, flush_plan.UNLISTED),
        ({"vouched": False}, flush_plan.UNVOUCHED),
        ({"epoch": ""}, flush_plan.NO_ENGINE),
        ({"capabilities": ()}, flush_plan.NO_PLUGIN),
        ({"capabilities": (Capability(feature="budget", mode="blocks"),)}, flush_plan.NO_PLUGIN),
        (
            {"capabilities": (Capability(feature="flush", mode="off", reason="a fault"),)},
            "its plugin cannot flush this: a fault",
        ),
    ],
)
def test_a_worker_that_cannot_says_why(changes: dict[str, Any], problem: str) -> None:
    (found,) = planned(Scope(everything=True), worker(**changes))
    assert found.problem == problem


def test_where_blocks_cannot_be_told_apart_everything_still_can_be_flushed() -> None:
    able = worker(capabilities=(WHOLE,))
    assert planned(Scope(everything=True), able)[0].problem == ""
    assert planned(Scope(worker="demo-0"), able)[0].problem == ""
    assert planned(Scope(tenant="acme"), able)[0].problem == "its plugin cannot flush this: no block events"
