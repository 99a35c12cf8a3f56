"""Counters of tenants, and how many tenants they tell apart."""

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.tenants.tenant_metrics import MAX_TENANTS, OTHER, TenantMetrics
from cachefleet_core.tenancy import TenantId
from tests.controlplane.waiting import value


def record(*sums: int) -> UsageRecord:
    requests, prompt, cached, completion = sums
    return UsageRecord(
        hour=0,
        tenant=TenantId("acme"),
        model="m",
        requests=requests,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
    )


def test_what_a_tenant_used_is_counted_under_its_name() -> None:
    metrics = Metrics()
    counted = TenantMetrics(metrics)
    for requests, prompt, cached, completion in ((1, 100, 60, 7), (2, 1, 0, 1)):
        counted.used(record(requests, prompt, cached, completion))
    counted.refused("acme", "disabled")
    counted.waited("acme", 1.5)
    counted.waited("acme", 0.25)
    told: dict[str, float] = {"requests": 3, "prompt_tokens": 101, "cached_tokens": 60, "completion_tokens": 8}
    told |= {"queued_requests": 2, "queued_seconds": 1.75}
    for name, expected in told.items():
        assert value(metrics, f"tenant_{name}_total", tenant="acme") == expected
    assert value(metrics, "tenant_refusals_total", tenant="acme", reason="disabled") == 1


def test_tenants_as_labels_are_bounded() -> None:
    metrics = Metrics()
    counted = TenantMetrics(metrics)
    for number in range(MAX_TENANTS + 10):
        counted.refused(f"t{number}", "disabled")
    counted.refused("t0", "disabled")
    assert value(metrics, "tenant_refusals_total", tenant=OTHER, reason="disabled") == 10
    assert value(metrics, "tenant_refusals_total", tenant="t0", reason="disabled") == 2
