"""The standard variables: off unless an endpoint is named, and clear words for what cannot be used."""

import subprocess
import sys

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.tracing.tracing_settings import TracingSettings, TracingSettingsError, tracing_settings
from cachefleet_controlplane.wiring.gateway_parts import tracer_of
from cachefleet_controlplane.wiring.settings import SettingsError

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_TRACES_SAMPLER": "always_on"},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318"},
    ],
)
def test_traces_are_off(environment: dict[str, str]) -> None:
    assert tracing_settings(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        ENDPOINT,
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "false", "OTEL_TRACES_SAMPLER": "ParentBased_TraceIdRatio"},
        {**ENDPOINT, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
        {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_TRACES_EXPORTER": "otlp"},
        {
            **ENDPOINT,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        },
    ],
)
def test_traces_are_on(environment: dict[str, str]) -> None:
    assert tracing_settings(environment) == TracingSettings(queue=2048, batch=512, delay=5000)


def test_a_batch_is_no_longer_than_the_queue() -> None:
    few = {**ENDPOINT, "OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_SCHEDULE_DELAY": "20"}
    assert tracing_settings(few) == TracingSettings(queue=10, batch=10, delay=20)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "an address like http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "'http/protobuf'"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "one of 'otlp', 'none'"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "one of 'always_on'"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a whole number from 1 to 1000000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon", "a whole number from 1 to 300000"),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str, allowed: str) -> None:
    with pytest.raises(TracingSettingsError) as refused:
        tracing_settings(ENDPOINT | {name: value})
    (line,) = refused.value.lines
    assert line.startswith(f"{name}: got {value!r}, allowed: {allowed}")


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nan", "all"])
def test_a_ratio_is_from_0_to_1(ratio: str) -> None:
    given = {**ENDPOINT, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}
    with pytest.raises(SettingsError, match=r"OTEL_TRACES_SAMPLER_ARG: got .*, allowed: a number from 0 to 1"):
        tracer_of(given, Metrics())


def test_nothing_of_opentelemetry_is_imported_while_traces_are_off() -> None:
    loaded = "any(name.startswith('opentelemetry') for name in sys.modules)"
    code = f"import sys, cachefleet_controlplane.wiring.replica_process; sys.exit({loaded})"
    subprocess.run([sys.executable, "-c", code], check=True)
