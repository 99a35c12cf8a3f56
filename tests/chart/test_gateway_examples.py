"""Examples of gateways name what the chart makes with the values in their comments, and what the operator makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cachefleet_controlplane.wiring.settings import Settings as ControlPlaneSettings
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_operator import names
from cachefleet_operator.certificates.server_names import control_plane_names, worker_names
from cachefleet_operator.manifests.child_objects import children, inference_pool
from cachefleet_operator.settings import Settings
from tests.chart.helm import Object, Rendered, template
from tests.chart.test_settings import variables

pytestmark = pytest.mark.cluster

FOLDER: Final = Path(__file__).parents[2] / "examples" / "gateway-api"
WITHOUT_INFERENCE_POOL: Final = "envoy-gateway"
EXAMPLES: Final = ("agentgateway", WITHOUT_INFERENCE_POOL)
FALLBACKS: Final = "CACHEFLEET_PICKER_FALLBACKS"


@dataclass(frozen=True)
class Example:
    """A file of manifests, beside the release that its comment describes."""

    name: str

    @cached_property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.yaml").read_text()

    @cached_property
    def objects(self) -> list[Object]:
        return list(yaml.safe_load_all(self.text))

    @cached_property
    def values(self) -> Object:
        """Those of the chart: the indented lines of the comment, up to the first that is none."""
        lines = self.text[self.text.index("with these values") :].splitlines()[1:]
        begin = next(number for number, line in enumerate(lines) if line.startswith("#   "))
        end = next(number for number, line in enumerate(lines) if number > begin and not line.startswith("#   "))
        told: Object = yaml.safe_load("\n".join(line.removeprefix("#") for line in lines[begin:end]))
        return told

    @cached_property
    def release(self) -> Rendered:
        return template(self.values, release="cachefleet", namespace="serving")

    @cached_property
    def operator(self) -> Settings:
        told = variables(self.release.container("operator"))
        taken = ("AGENT_IMAGE", "CONTROL_PLANE", "ADMIN_URL", "PICKER_SERVICE", "TLS")
        given: dict[str, Any] = {one.lower(): told.get(f"CACHEFLEET_{one}", "") for one in taken}
        return Settings(**given)

    @cached_property
    def pool(self) -> PrefixCachePool:
        [found] = self.of("PrefixCachePool")
        return read_pool(found)

    def of(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def service(self, name: str) -> Object:
        """The Service of that name: the chart's or the pool's."""
        there = [*self.release.of("Service"), *(each for each in children(self.pool, self.operator))]
        [found] = [each for each in there if each["kind"] == "Service" and each["metadata"]["name"] == name]
        assert found["metadata"]["namespace"] == "serving"
        return found

    def references(self) -> Iterator[Object]:
        """Every reference of a backend."""
        yield from (
            ref for route in self.of("HTTPRoute") for rule in route["spec"]["rules"] for ref in rule["backendRefs"]
        )
        for policy in self.of("EnvoyExtensionPolicy"):
            yield from (ref for each in policy["spec"]["extProc"] for ref in each["backendRefs"])


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest) -> Example:
    return Example(request.param)


def test_every_gateways_file_is_tried() -> None:
    assert {file.stem for file in FOLDER.glob("*.yaml")} == {*EXAMPLES, "inference-pool"}


def test_its_values_open_the_picker_to_the_gateway_alone(example: Example) -> None:
    assert example.values["controlPlane"]["picker"]["enabled"]
    assert example.values["networkPolicy"]["pickerFrom"] == example.values["networkPolicy"]["workersFrom"] != []
    assert example.operator.serves_tls


def test_backends_are_there_under_these_names_and_ports(example: Example) -> None:
    for ref in example.references():
        name, port = _picker(example, ref) if ref.get("kind") == "InferencePool" else (ref["name"], ref["port"])
        ports = {each["port"]: each["name"] for each in example.service(name)["spec"]["ports"]}
        assert ports[port] == ("picker" if name.endswith("-controlplane") else "engine-tls")


def _picker(example: Example, ref: Object) -> tuple[str, int]:
    """The picker's Service and port, of the InferencePool that the operator makes and a route refers to."""
    assert example.operator.picker is not None
    assert example.pool.spec.inference_pool.enabled
    made: Any = inference_pool(example.pool, *example.operator.picker)
    assert (ref["group"], ref["name"]) == (made["apiVersion"].partition("/")[0], made["metadata"]["name"])
    picker = made["spec"]["endpointPickerRef"]
    return picker["name"], picker["port"]["number"]


def test_gateways_of_inference_pools_are_told_one_address(example: Example) -> None:
    told = variables(example.release.container("controlplane"))
    assert FALLBACKS.removeprefix("CACHEFLEET_").lower() in ControlPlaneSettings.model_fields
    assert told.get(FALLBACKS) == (None if example.name == WITHOUT_INFERENCE_POOL else "0")


def test_tls_is_verified_by_names_in_the_certificates(example: Example) -> None:
    workers = worker_names(example.pool.key)
    for policy in example.of("BackendTLSPolicy"):
        [target], validation = policy["spec"]["targetRefs"], policy["spec"]["validation"]
        assert [ref["name"] for ref in validation["caCertificateRefs"]] == [names.AUTHORITY]
        section = target.get("sectionName", "engine-tls")
        if target["kind"] == "Service":
            assert section in {port["name"] for port in example.service(target["name"])["spec"]["ports"]}
        else:
            assert (target["kind"], target["name"]) == ("InferencePool", example.pool.metadata.name)
        assert validation["hostname"] in (control_plane_names(example.operator) if section == "picker" else workers)


def test_objects_refer_to_each_other(example: Example) -> None:
    there = {(each["kind"], each["metadata"]["name"]) for each in example.objects}
    assert {each["metadata"].get("namespace", "serving") for each in example.objects} == {"serving"}
    for each in example.objects:
        spec = each["spec"]
        refs = [*spec.get("parentRefs", ()), *spec.get("targetRefs", ()), *filter(None, [spec.get("targetRef")])]
        ours = [ref for ref in refs if ref.get("kind", "Gateway") in {"Gateway", "HTTPRoute"}]
        assert all((ref.get("kind", "Gateway"), ref["name"]) in there for ref in ours)


def test_envoy_gateway_reads_the_header_that_the_picker_sets() -> None:
    [policy] = Example(WITHOUT_INFERENCE_POOL).of("BackendTrafficPolicy")
    [source] = policy["spec"]["loadBalancer"]["endpointOverride"]["extractFrom"]
    assert source == {"header": "x-gateway-destination-endpoint"}
