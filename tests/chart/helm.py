"""The chart as helm renders it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster.binaries import HELM, ensured

Object = dict[str, Any]
Values = Mapping[str, Any]

CHART: Final = Path(__file__).parents[2] / "charts" / "cachefleet"
RELEASE: Final = "cachefleet"
NAMESPACE: Final = "cachefleet-system"
KUBERNETES: Final = "1.37.0"


class Refused(Exception):  # noqa: N818  # reads as what happened in `with pytest.raises(Refused)`
    """Helm gave no objects; the text is what a person would see."""


class _Strict(yaml.CSafeLoader):
    """Refuses a key that is given twice, as strict readers of manifests do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"given twice: {keys}"
        return super().construct_mapping(node, deep)


class Rendered(tuple[Object, ...]):
    """All objects of a release."""

    __slots__ = ()

    def of(self, kind: str) -> list[Object]:
        return [found for found in self if found["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        """The object of that kind whose name ends so; there must be one."""
        found = [found for found in self.of(kind) if found["metadata"]["name"].endswith(name)]
        assert len(found) == 1, f"{kind} *{name}: {[one['metadata']['name'] for one in self.of(kind)]}"
        return found[0]

    def container(self, part: str) -> Object:
        """The only container of the Deployment of ``operator`` or ``controlplane``."""
        containers = self.pod(part)["containers"]
        assert len(containers) == 1
        found: Object = containers[0]
        return found

    def pod(self, part: str) -> Object:
        spec: Object = self.one("Deployment", f"-{part}")["spec"]["template"]["spec"]
        return spec

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Every pod's spec, by the name of what makes it."""
        for found in self:
            if found["kind"] == "Deployment":
                yield found["metadata"]["name"], found["spec"]["template"]["spec"]
            elif found["kind"] == "Pod":
                yield found["metadata"]["name"], found["spec"]


def template(
    values: Values | None = None,
    *,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    kubernetes: str = KUBERNETES,
    apis: tuple[str, ...] = (),
) -> Rendered:
    """The objects of a release with these values; Refused where helm gives none. Do not change them: they are kept.

    ``apis`` are served beside Kubernetes' own.
    """
    return _template(json.dumps(values or {}), release, namespace, kubernetes, apis)


@lru_cache(maxsize=256)
def _template(values: str, release: str, namespace: str, kubernetes: str, apis: tuple[str, ...]) -> Rendered:
    command = ["template", release, str(CHART), "--namespace", namespace, "--kube-version", kubernetes]
    command += [word for api in apis for word in ("--api-versions", api)]
    text = run(*command, "--values", "-", given=values)
    return Rendered(found for found in yaml.load_all(text, _Strict) if found)


def run(*command: str, given: str = "") -> str:
    """What helm writes; Refused where it fails."""
    done = subprocess.run([program(), *command], input=given, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Refused(done.stderr.strip())
    return done.stdout


def program() -> str:
    """Where helm is."""
    return str(ensured([HELM])["helm"])


def values() -> Object:
    """The chart's own values."""
    loaded: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded
