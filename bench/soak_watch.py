"""What a process holds over time, and whether it holds more and more."""

from __future__ import annotations

import json
import os
import statistics
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.parts import Running

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
MIB: Final = 1024 * 1024
PROBE_SECONDS: Final = 60.0
"""A control plane that answers no probe for so long has failed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """At ``at`` seconds of the run; memory in MiB."""

    at: float
    memory: float
    descriptors: int
    threads: int
    tasks: int
    """Besides one for each request under way: how many these are goes up and down with deaths of workers."""
    under_way: int


@dataclass(frozen=True, slots=True)
class Bound:
    """How much something may grow: ``per_minute``, and ``slack`` over the whole run."""

    name: str
    per_minute: float
    slack: float
    unit: str = ""


BOUNDS: Final = (
    Bound("memory", 1.0, 0.0, " MiB"),
    Bound("descriptors", 2.0, 4.0),
    Bound("threads", 0.2, 2.0),
    Bound("tasks", 2.0, 4.0),
)
JUDGED_SECONDS: Final = 240.0
"""A run shorter than that is still filling its caches: its memory is told, not judged."""


def sample(running: Running, at: float) -> Sample:
    """What the control plane holds now."""
    process = Path(f"/proc/{running.pid}")
    with urllib.request.urlopen(f"{running.internal}/readyz", timeout=PROBE_SECONDS) as answer:  # noqa: S310 - our own address
        told = json.loads(answer.read())
    return Sample(
        at=at,
        memory=int((process / "statm").read_text().split()[1]) * PAGE / MIB,
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        tasks=told["tasks"] - told["requests_under_way"],
        under_way=told["requests_under_way"],
    )


def growth(samples: Sequence[Sample], name: str) -> float:
    """A minute, over the last two thirds of the samples."""
    late = samples[len(samples) // 3 :]
    if len(late) < 3:
        return 0.0
    slope = statistics.linear_regression([one.at for one in late], [getattr(one, name) for one in late]).slope
    return slope * 60


def grown(samples: Sequence[Sample]) -> list[str]:
    """What is not flat, in words."""
    minutes = (samples[-1].at - samples[len(samples) // 3].at) / 60 if samples else 0.0
    out = []
    for bound in BOUNDS:
        found = growth(samples, bound.name)
        if found * minutes > bound.per_minute * minutes + bound.slack:
            out.append(f"{bound.name} grow by {found:.2f}{bound.unit} a minute, {bound.per_minute:g} are allowed")
    return out
