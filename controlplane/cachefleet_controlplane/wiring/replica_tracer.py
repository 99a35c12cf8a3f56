"""Builds the tracer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.tracing.tracer import Tracer
from cachefleet_controlplane.tracing.tracing_settings import TracingSettingsError, tracing_settings
from cachefleet_controlplane.wiring.settings import SettingsError


def tracer_of(environment: Mapping[str, str], metrics: Metrics) -> Tracer | None:
    """The tracer that the OTEL_* variables ask for; None where traces are off. SettingsError."""
    try:
        settings = tracing_settings(environment)
        if settings is None:
            return None
        export = import_module("cachefleet_controlplane.tracing.span_export")
        made: Tracer = export.make_tracer(settings, metrics.trace_spans)
    except TracingSettingsError as error:
        raise SettingsError(error.lines) from error
    except ValueError as error:
        raise SettingsError([f"OTEL_EXPORTER_OTLP_*: {error}"]) from error
    return made
