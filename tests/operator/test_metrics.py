import datetime as dt

from prometheus_client import generate_latest

from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.metrics import Metrics


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_condition_is_a_number_and_goes_with_its_pool() -> None:
    metrics = Metrics("1")
    said = [{"type": "Ready", "status": "True"}, {"type": "IndexFresh", "status": "Unknown"}]
    metrics.conditions("serving", "demo", said)
    name = "cachefleet_operator_pool_condition"
    assert sample(metrics, name, namespace="serving", pool="demo", type="Ready") == 1
    assert sample(metrics, name, namespace="serving", pool="demo", type="IndexFresh") == -1
    metrics.conditions("serving", "demo", [{"type": "Ready", "status": "False"}])
    assert sample(metrics, name, namespace="serving", pool="demo", type="Ready") == 0
    assert sample(metrics, name, namespace="serving", pool="demo", type="IndexFresh") is None
    metrics.conditions("serving", "other", said)
    metrics.forget("serving", "demo")
    metrics.forget("serving", "demo")
    assert b'pool="demo"' not in generate_latest(metrics.registry)
    metrics.not_watching()
    assert b'pool="other"' not in generate_latest(metrics.registry)


def test_who_does_not_lead_tells_no_end_of_a_certificate() -> None:
    metrics = Metrics("1")
    metrics.leads(yes=True)
    metrics.certificate(Ref("Secret", "ops", "cachefleet-ca"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    name, labels = "cachefleet_operator_certificate_expiry_timestamp_seconds", {"namespace": "ops"}
    assert sample(metrics, name, secret="cachefleet-ca", **labels) is not None
    assert sample(metrics, "cachefleet_operator_leading") == 1
    metrics.leads(yes=False)
    assert sample(metrics, name, secret="cachefleet-ca", **labels) is None
    assert sample(metrics, "cachefleet_operator_leading") == 0


def test_a_watch_has_an_age_while_it_runs() -> None:
    metrics = Metrics("1")
    name = "cachefleet_operator_watch_age_seconds"
    assert sample(metrics, name) == 0
    metrics.watching()
    first = sample(metrics, name)
    assert first is not None
    assert 0 <= first <= (sample(metrics, name) or 0)
    metrics.not_watching()
    assert sample(metrics, name) == 0


def test_unanswered_questions_are_counted() -> None:
    metrics = Metrics("1")
    metrics.unanswered("503")
    assert sample(metrics, "cachefleet_operator_facts_failures_total", reason="503") == 1
