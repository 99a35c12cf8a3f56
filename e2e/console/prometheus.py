"""Debian's Prometheus and its promtool, for tests."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cachefleet_local.fleet.ports import take_ports
from tests.chart.rules import RULES

START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0

Labels = dict[str, str]


@dataclass(frozen=True)
class Target:
    """One process whose metrics are read; ``pod`` is what a cluster would call it."""

    job: str
    pod: str
    address: str


@dataclass(frozen=True)
class Series:
    """One line of an answer; points are seconds and numbers, and no NaN."""

    labels: Labels
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def series(self, query: str, *, begin: float, end: float, step: float = 1.0) -> list[Series]:
        """Series of an expression with a number between two times, in Unix seconds. AssertionError if it is bad."""
        asked = {"query": query, "start": begin, "end": end, "step": step}
        found = self._get("query_range", asked)["result"]
        read = [Series(one["metric"], [(t, float(v)) for t, v in one["values"]]) for one in found]
        kept = [Series(one.labels, [(t, v) for t, v in one.points if math.isfinite(v)]) for one in read]
        return [one for one in kept if one.points]

    def now(self, query: str) -> float:
        """The one number that an expression has now. ValueError where it has none, or several."""
        [found] = self._get("query", {"query": query})["result"]
        return float(found["value"][1])

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def targets(self) -> dict[str, str]:
        """Each target's health, by job and pod."""
        found = self._get("targets", {"state": "active"})["activeTargets"]
        return {f"{one['labels']['job']}/{one['labels']['pod']}": one["health"] for one in found}

    def _get(self, path: str, query: Mapping[str, object]) -> dict[str, Any]:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - ours
                found: dict[str, Any] = json.load(answer)["data"]
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error


@contextmanager
def prometheus(folder: Path, targets: Sequence[Target], *, seconds: int = 1) -> Iterator[Prometheus]:
    """A Prometheus that reads these each so many seconds and computes the chart's rules; ended with the block."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus; on Debian: apt-get install prometheus")
    port = take_ports({"prometheus": 0})["prometheus"]
    url = f"http://127.0.0.1:{port}"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_configuration(targets, seconds)))
    flags = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "series",
        "web.listen-address": f"127.0.0.1:{port}",
        "log.level": "warn",
    }
    with (folder / "prometheus.log").open("wb") as log:
        running = subprocess.Popen([program, *(f"--{name}={value}" for name, value in flags.items())], stderr=log)
    try:
        _wait(f"{url}/-/ready", running, folder / "prometheus.log")
        yield Prometheus(url)
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(_STOP_SECONDS)
        running.kill()
        running.wait()


def _configuration(targets: Sequence[Target], seconds: int) -> dict[str, Any]:
    jobs: dict[str, list[dict[str, Any]]] = {}
    for target in targets:
        jobs.setdefault(target.job, []).append(_static(target))
    return {
        "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{seconds}s"),
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": found} for job, found in jobs.items()
        ],
    }


def _static(target: Target) -> dict[str, Any]:
    return {"targets": [target.address], "labels": {"pod": target.pod, "namespace": "default"}}


def _wait(url: str, running: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and running.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=1):  # noqa: S310 - ours
            return
        time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not start: {log.read_text()[-2000:]}")


def promtool(*arguments: str | Path) -> str:
    """Run promtool; what it printed. The test fails where promtool does, and is skipped where there is none."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool; on Debian: apt-get install prometheus")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
