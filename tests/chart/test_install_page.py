"""docs/install.md names values, files and manifests that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
import yaml

from cachefleet_core.pool.worker_spec import DeviceSpec
from tests.chart.helm import CHART, template, values

ROOT = CHART.parents[1]
PAGE = (ROOT / "docs" / "install.md").read_text()
OWN = tuple(values())


def named() -> Iterator[str]:
    """Paths of values in backticks, ``.tag`` beside ``image.repository`` too, and after --set."""
    for line in PAGE.splitlines():
        parent = ""
        for text in re.findall(r"`([a-zA-Z.]+)(?:=[^`]*)?`", line):
            path = parent + text if text.startswith(".") else text
            if path.split(".")[0] in OWN and "." in path:
                parent = path.rpartition(".")[0]
                yield path
        for options in re.findall(r"--set (\S+)", line):
            yield from (option.partition("=")[0].rstrip("`") for option in re.sub(r"\{.*?\}", "", options).split(","))


def at(path: str) -> Any:
    return reduce(lambda node, name: node[name], path.split("."), values())


@pytest.mark.parametrize("path", sorted(set(named())))
def test_every_value_exists(path: str) -> None:
    if not path.endswith("labels.release"):
        at(path)


def test_it_names_values_at_all() -> None:
    assert {"image.tag", "controlPlane.databaseUrlSecretRef.name", "crds.keep"} <= set(named())


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("operator.replicas", "2"),
        ("operator.workerStartSeconds", "3600"),
        ("operator.workerDrainSeconds", "120"),
        ("controlPlane.replicas", "2"),
        ("controlPlane.apiKeys", "`auto`"),
    ],
)
def test_defaults_are_the_chart_s(path: str, shown: str) -> None:
    assert f"| `{path}` | {shown} |" in PAGE
    assert str(at(path)) == shown.strip("`")


@pytest.mark.parametrize("file", sorted(set(re.findall(r"(?:examples|charts|images)/[\w./-]+", PAGE))))
def test_every_file_exists(file: str) -> None:
    assert (ROOT / file.rstrip(".")).exists()


@pytest.mark.cluster
def test_the_ingress_points_at_the_gateway() -> None:
    [text] = re.findall(r"```yaml\n(apiVersion: networking.*?)```", PAGE, re.DOTALL)
    ingress = yaml.safe_load(text)
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    gateway = template().one("Service", "-gateway")

    assert backend["name"] == gateway["metadata"]["name"]
    assert backend["port"]["number"] == gateway["spec"]["ports"][0]["port"]
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-body-size"] == "32m"
    assert values()["controlPlane"]["requestMaxBytes"] == 32 * 1024 * 1024


def test_the_slice_of_a_gpu_is_a_device() -> None:
    [text] = re.findall(r"```yaml\n(spec:.*?)```", PAGE, re.DOTALL)

    DeviceSpec.model_validate(yaml.safe_load(text)["spec"]["device"])


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_a_namespace_is_made_before_a_pool_is_applied_into_it(page: str) -> None:
    text = (ROOT / page).read_text()
    applied = re.findall(r"kubectl apply.*?-f (examples/\S+)", text)
    assert applied
    for path in applied:
        namespace = yaml.safe_load((ROOT / path).read_text())["metadata"].get("namespace", "default")
        made = text.find(f"kubectl create namespace {namespace}\n")
        assert namespace == "default" or 0 <= made < text.index(path)
