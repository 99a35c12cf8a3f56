"""The standard OTEL_* variables that this program acts upon, checked; OpenTelemetry reads the others itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_TRACES: Final = "OTEL_EXPORTER_OTLP_TRACES_"
_ALL: Final = "OTEL_EXPORTER_OTLP_"
_RATIO: Final = ("traceidratio", "parentbased_traceidratio")
SAMPLERS: Final = ("always_on", "always_off", "parentbased_always_on", "parentbased_always_off", *_RATIO)
QUEUE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
BATCH: Final = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
DELAY: Final = "OTEL_BSP_SCHEDULE_DELAY"
_DEFAULTS: Final = {QUEUE: 2048, BATCH: 512, DELAY: 5000}
_MOST: Final = {QUEUE: 1_000_000, BATCH: 100_000, DELAY: 300_000}


class TracingSettingsError(ValueError):
    """Variables that cannot be used; ``lines`` holds one line per problem: variable, value and what is allowed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """How batches of spans are made; spans and milliseconds."""

    queue: int
    batch: int
    delay: int


def tracing_settings(environment: Mapping[str, str]) -> TracingSettings | None:
    """Return the settings of traces; None where they are off. TracingSettingsError."""
    given = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_") and value.strip()}
    endpoint = next((name for name in (f"{_TRACES}ENDPOINT", f"{_ALL}ENDPOINT") if name in given), "")
    exporter = given.get("OTEL_TRACES_EXPORTER", "otlp")
    if not endpoint or exporter == "none" or given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    numbers = {name: _number(given.get(name, ""), _DEFAULTS[name]) for name in _DEFAULTS}
    if problems := [*_export_problems(given, endpoint, exporter), *_sampler_problems(given), *_sizes(given, numbers)]:
        raise TracingSettingsError(problems)
    return TracingSettings(queue=numbers[QUEUE], batch=min(numbers[BATCH], numbers[QUEUE]), delay=numbers[DELAY])


def _export_problems(given: Mapping[str, str], endpoint: str, exporter: str) -> list[str]:
    protocol = next((name for name in (f"{_TRACES}PROTOCOL", f"{_ALL}PROTOCOL") if name in given), "")
    problems = []
    if not _is_url(given[endpoint]):
        problems.append(f"{endpoint}: got {given[endpoint]!r}, allowed: an address like http://collector:4318")
    if protocol and given[protocol] != "http/protobuf":
        problems.append(f"{protocol}: got {given[protocol]!r}, allowed: 'http/protobuf'")
    if exporter != "otlp":
        problems.append(f"OTEL_TRACES_EXPORTER: got {exporter!r}, allowed: one of 'otlp', 'none'")
    return problems


def _sampler_problems(given: Mapping[str, str]) -> list[str]:
    sampler, ratio = given.get("OTEL_TRACES_SAMPLER", SAMPLERS[2]).lower(), given.get("OTEL_TRACES_SAMPLER_ARG", "1")
    if sampler not in SAMPLERS:
        return [f"OTEL_TRACES_SAMPLER: got {sampler!r}, allowed: one of {', '.join(map(repr, SAMPLERS))}"]
    if sampler in _RATIO and not _is_ratio(ratio):
        return [f"OTEL_TRACES_SAMPLER_ARG: got {ratio!r}, allowed: a number from 0 to 1"]
    return []


def _sizes(given: Mapping[str, str], numbers: Mapping[str, int]) -> list[str]:
    return [
        f"{name}: got {given[name]!r}, allowed: a whole number from 1 to {_MOST[name]}"
        for name, number in numbers.items()
        if not 1 <= number <= _MOST[name]
    ]


def _number(text: str, default: int) -> int:
    """The number; 0, which none may be, for what is none."""
    return int(text) if text.isdecimal() else 0 if text else default


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
