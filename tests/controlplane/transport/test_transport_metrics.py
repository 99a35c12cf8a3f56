"""What /metrics says of the native transport."""

import cachefleet_native
from prometheus_client import CollectorRegistry, generate_latest

from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.transport_metrics import TransportCollector


def test_metrics_tell_the_version_and_panics() -> None:
    registry = CollectorRegistry()
    registry.register(TransportCollector(Completions()))
    metrics = generate_latest(registry).decode()
    assert f'cachefleet_transport_info{{version="{cachefleet_native.__version__}"}} 1.0' in metrics
    assert "cachefleet_transport_panics_total 0.0" in metrics
