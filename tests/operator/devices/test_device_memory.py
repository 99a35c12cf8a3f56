"""The memory of claimed devices: expressions, slices, and the budget that follows."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from cachefleet_core.pool.admitted import in_force, known_memory
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_operator.devices import published_devices
from cachefleet_operator.devices.cel_selectors import NoConditionError, SelectorError, fulfils, quantity
from cachefleet_operator.devices.pool_claims import DeviceMemory, device_memory
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reconcile.reconciler import Outcome
from cachefleet_runtime.kubernetes import Object, RefusedError
from tests.operator.devices.test_claim_templates import KEY, POOL, condition, reconciler
from tests.operator.pools import document, pool
from tests.operator.store import Store

DRIVER = "gpu.example.com"
OURS = f"device.driver == '{DRIVER}'"
GPU: Object = {
    "name": "gpu-0",
    "attributes": {"model": {"string": "h100"}, "index": {"int": 3}, "ecc": {"bool": True}, "v": {"version": "1.2.3"}},
    "capacity": {"memory": {"value": "80Gi"}, "other.example.com/lanes": {"value": "16"}},
}


@pytest.mark.parametrize(
    ("expression", "held"),
    [
        (OURS, True),
        ("device.driver == 'another'", False),
        (f"device.attributes['{DRIVER}'].model == 'h100'", True),
        (f"device.attributes['{DRIVER}'].model.startsWith('a')", False),
        (f"device.attributes['{DRIVER}'].index in [1, 3] && device.attributes['{DRIVER}'].ecc", True),
        (f"device.attributes['{DRIVER}'].v == '1.2.3'", True),
        (f"device.attributes['{DRIVER}'].color == 'red'", False),
        ("device.attributes['nobody'].color == 'red'", False),
        ("'nobody' in device.attributes", False),
        (f"'{DRIVER}' in device.attributes || false", True),
        (f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('40Gi'))", True),
        (f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('80Gi'))", False),
        (f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) == 0", True),
        ("device.capacity['other.example.com'].lanes.compareTo(quantity('8')) > 0", True),
    ],
)
def test_expressions_are_evaluated_as_kubernetes_does(expression: str, held: bool) -> None:  # noqa: FBT001  # a case
    assert fulfils([expression], DRIVER, GPU) is held
    assert fulfils(["true", expression], DRIVER, GPU) is held


@pytest.mark.parametrize("expression", ["device.driver ==", "semver('1.0.0').isGreaterThan(semver('0.1.0')) == x()"])
def test_what_cannot_be_evaluated_here_is_said_and_not_guessed(expression: str) -> None:
    with pytest.raises(SelectorError):
        fulfils([expression], DRIVER, GPU)


@pytest.mark.parametrize(
    ("expression", "given"),
    [
        ("device.driver", "string"),
        (f"device.attributes['{DRIVER}'].model", "string"),
        ("0", "int"),
        ("1", "int"),
        ("null", "null"),
        ("[true]", "list"),
        ("device", "map"),
    ],
)
def test_an_expression_that_is_no_condition_is_refused(expression: str, given: str) -> None:
    with pytest.raises(NoConditionError, match=f"gives {given}, and must give true or false"):
        fulfils([expression], DRIVER, GPU)
    assert not fulfils(["false", expression], DRIVER, GPU), "as in Kubernetes: the first that does not hold decides"


TEN = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


@pytest.mark.parametrize(
    "expression",
    [
        f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, {TEN}.all(d, {TEN}.all(e, {TEN}.all(f, true))))))",
        "['a'].map(x, x + x).map(x, x + x) == []",
        "(" * 400 + "true" + ")" * 400,
        "!" * 1000 + "true",
        "true" + " || true" * 200,
    ],
    ids=["a billion steps", "doubling", "parentheses", "negations", "too long"],
)
def test_an_expression_that_would_take_much_is_refused_at_once(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(SelectorError):
        fulfils([expression], DRIVER, GPU)
    assert time.process_time() - began < 5, "of CPU: others' work takes none of it"


@pytest.mark.parametrize("text", ["1.2.3", "1e3000000", "9" * 100])
def test_an_expression_about_no_quantity_is_not_fulfilled(text: str) -> None:
    assert not fulfils([f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('{text}'))"], DRIVER, GPU)


def test_of_macros_one_is_evaluated() -> None:
    assert fulfils([f"['a100', 'h100'].exists(one, device.attributes['{DRIVER}'].model == one)"], DRIVER, GPU)


@pytest.mark.parametrize(
    ("text", "value"),
    [("80Gi", 80 << 30), ("1.5Ki", 1536), ("2k", 2000), ("128974848000m", 128974848), ("1e3", 1000), ("0", 0)],
)
def test_quantities_are_kubernetes_own(text: str, value: int) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "5X", "1.2.3", ".", "1e999", None])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def device_class(name: str = "gpu", *expressions: str) -> Object:
    selectors = [{"cel": {"expression": each}} for each in expressions or (OURS,)]
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name, "namespace": ""},
        "spec": {"selectors": selectors},
    }


def resource_slice(name: str, *memories: str, driver: str = DRIVER, node: str = "n", generation: int = 1) -> Object:
    devices = [
        {"name": f"gpu-{i}", "attributes": {"index": {"int": i}}, "capacity": {"memory": {"value": each}}}
        for i, each in enumerate(memories)
    ]
    pool_ = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool_, "nodeName": node, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": name, "namespace": ""}, "spec": spec}


def claiming(memory_mib: int | None = None, **claims: Any) -> dict[str, Any]:
    return {"device": {"memoryMiB": memory_mib, "claims": claims or {"className": "gpu"}}}


async def read(store: Store, wanted: PrefixCachePool) -> DeviceMemory:
    return await device_memory(store, wanted, document())


THERE = (device_class(), resource_slice("a", "80Gi", "40Gi"), resource_slice("b", "8Gi", driver="other.example.com"))


async def test_it_is_the_least_of_those_that_may_be_given() -> None:
    found = await read(Store(*THERE), pool(claiming()))
    assert (found.mib, found.problem) == (40 * 1024, "")
    first: dict[str, Any] = {"className": "gpu", "selectors": [f"device.attributes['{DRIVER}'].index == 0"]}
    assert (await read(Store(*THERE), pool(claiming(**first)))).mib == 80 * 1024


async def test_a_capacity_with_the_driver_s_domain_counts() -> None:
    there = resource_slice("a")
    there["spec"]["devices"] = [{"name": "x", "capacity": {f"{DRIVER}/memory": {"value": "16Gi"}}}]
    assert (await read(Store(device_class(), there), pool(claiming()))).mib == 16 * 1024


@pytest.mark.parametrize("odd", ["99E", "much", None])
async def test_a_device_with_an_odd_capacity_keeps_nobody_from_the_others(odd: str | None) -> None:
    there = resource_slice("a", "16Gi", "80Gi")
    there["spec"]["devices"][0]["capacity"] = {"memory": {"value": odd}, "lanes": {"value": odd}}
    assert (await read(Store(device_class(), there), pool(claiming()))).mib == 80 * 1024


async def test_of_a_pool_of_devices_the_newest_generation_counts() -> None:
    there = (device_class(), resource_slice("old", "40Gi"), resource_slice("new", "80Gi", generation=2))
    assert (await read(Store(*there), pool(claiming()))).mib == 80 * 1024


async def test_a_template_s_alternatives_all_count() -> None:
    requests = [{"name": "r", "firstAvailable": [{"deviceClassName": "gpu"}, {"deviceClassName": "small"}]}]
    template = {
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "theirs", "namespace": "serving"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    small = device_class("small", "device.driver == 'other.example.com'")
    wanted = pool(claiming(resourceClaimTemplateName="theirs"))
    assert (await read(Store(*THERE, small, template), wanted)).mib == 8 * 1024
    assert "is not there" in (await read(Store(*THERE, small), wanted)).problem


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ((), "there is no DeviceClass gpu; create it, or set device.memoryMiB"),
        ((device_class(),), "no device of DeviceClass gpu that is asked for is published; set device.memoryMiB"),
        (
            (
                device_class(),
                {**resource_slice("a"), "spec": {**resource_slice("a")["spec"], "devices": [{"name": "x"}]}},
            ),
            "no device of DeviceClass gpu that is asked for tells its memory",
        ),
        ((device_class("gpu", "unknown(device)"), resource_slice("a", "1Gi")), "function that is not known here"),
        (
            (device_class("gpu", "device.driver"), resource_slice("a", "1Gi")),
            "gives string, and must give true or false; correct it in device.claims or in DeviceClass gpu",
        ),
    ],
    ids=["no class", "no device", "no memory", "odd function", "no condition"],
)
async def test_what_is_not_told_is_not_guessed(there: tuple[Object, ...], words: str) -> None:
    found = await read(Store(*there), pool(claiming()))
    assert found.mib is None
    assert words in found.problem


async def test_devices_that_take_long_to_judge_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_devices, "MAX_SECONDS", -1.0)
    found = await read(Store(*THERE), pool(claiming()))
    assert (found.mib, "takes longer than" in found.problem) == (None, True)


async def test_devices_are_judged_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def fulfils_noted(*_: object) -> bool:
        threads.append(threading.current_thread())
        return True

    monkeypatch.setattr(published_devices, "fulfils", fulfils_noted)
    await read(Store(*THERE), pool(claiming()))
    assert threads
    assert threading.main_thread() not in threads


async def test_without_rights_to_slices_it_is_to_be_set() -> None:
    def refuse(_: str, ref: Ref) -> None:
        if ref.kind == "ResourceSlice":
            raise RefusedError(403, "Forbidden", "resourceslices is forbidden")

    store = Store(*THERE)
    store.before = refuse
    found = await read(store, pool(claiming()))
    assert found.problem == "resourceslices is forbidden; set device.memoryMiB"


async def test_no_worker_is_started_before_the_memory_is_known_and_then_the_budget_is_judged_by_it() -> None:
    store = Store(document(claiming()), device_class())
    await reconciler(store).reconcile(KEY)
    said = condition(store, "BudgetAdmitted")
    assert (said["status"], said["reason"]) == ("Unknown", "DeviceMemoryUnknown")
    assert "no device of DeviceClass gpu" in said["message"]
    assert not [ref for ref in store.objects if ref.kind == "Deployment"]
    store.objects[Ref("ResourceSlice", "", "a")] = resource_slice("a", "8Gi")
    await reconciler(store).reconcile(KEY)
    assert condition(store, "BudgetAdmitted")["reason"] == "Admitted"
    (engine,) = store.objects[Ref("Deployment", "serving", "demo-workers")]["spec"]["template"]["spec"]["containers"]
    kv_cache = 8192 - 100 - 2048 - 1500
    assert f"--kv-cache-memory-bytes={kv_cache << 20}" in engine["args"] or str(kv_cache << 20) in engine["args"]
    assert store.objects[POOL]["status"]["admitted"]["spec"]["device"]["memoryMiB"] == 8192


async def test_a_device_too_small_for_the_budget_is_refused() -> None:
    store = Store(document(claiming()), device_class(), resource_slice("a", "4Gi"))
    store.objects[POOL]["spec"]["prefixCache"]["budgetMiB"] = 4096
    await reconciler(store).reconcile(KEY)
    assert condition(store, "BudgetAdmitted")["reason"] == "BudgetExceedsKVCache"


async def test_a_figure_of_the_pool_s_own_that_is_taken_back_does_not_hold() -> None:
    store = Store(document(claiming(16384)), device_class(), resource_slice("a", "8Gi"))
    await reconciler(store).reconcile(KEY)
    assert store.objects[POOL]["status"]["admitted"]["spec"]["device"]["memoryMiB"] == 16384
    del store.objects[POOL]["spec"]["device"]["memoryMiB"]
    store.objects[POOL]["metadata"]["generation"] = 2
    await reconciler(store).reconcile(KEY)
    assert store.objects[POOL]["status"]["admitted"]["spec"]["device"]["memoryMiB"] == 8192


async def test_what_was_read_holds_until_the_claims_change() -> None:
    """A smaller device that is added, or a driver that is gone, must not roll workers."""
    store = Store(document(claiming()), device_class(), resource_slice("a", "8Gi"))
    await reconciler(store).reconcile(KEY)
    deployment = store.objects[Ref("Deployment", "serving", "demo-workers")]
    store.objects[Ref("ResourceSlice", "", "a")] = resource_slice("a", "4Gi")
    store.objects[POOL]["spec"]["prefixCache"]["budgetMiB"] = 256
    store.objects[POOL]["metadata"]["generation"] = 2
    await reconciler(store).reconcile(KEY)
    assert store.objects[Ref("Deployment", "serving", "demo-workers")]["spec"] == deployment["spec"]
    assert known_memory(store.objects[POOL]) == 8192
    store.objects[POOL]["spec"]["device"]["claims"] = {"className": "gpu", "selectors": ["true"]}
    store.objects[POOL]["metadata"]["generation"] = 3
    await reconciler(store).reconcile(KEY)
    assert known_memory(store.objects[POOL]) == 4096
    store.settle()
    await reconciler(store).reconcile(KEY)
    assert await reconciler(store).reconcile(KEY) is Outcome.DONE


async def test_the_control_plane_follows_the_memory_that_was_admitted() -> None:
    store = Store(document(claiming()), device_class(), resource_slice("a", "8Gi"))
    await reconciler(store).reconcile(KEY)
    found = in_force(store.objects[POOL])
    assert found.admitted
    assert found.pool.spec.device.memory_mib == 8192
