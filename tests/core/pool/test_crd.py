from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachefleet_core.pool.crd import CHART_FILE, FILE, custom_resource_definition, main, render
from cachefleet_core.pool.managed_arguments import MANAGED_ARGUMENTS, MANAGED_VARIABLES, SHORT_ARGUMENTS
from cachefleet_core.pool.section import PATTERN_WORDS, Section
from cachefleet_core.pool.spec import read_pool
from tests.core.invalid_pools import VALID, merged

ROOT = Path(__file__).parents[3]
DEFINITION = custom_resource_definition()
VERSION = DEFINITION["spec"]["versions"][0]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


NODES = dict(nodes(SCHEMA))
SPEC = {path: node for path, node in NODES.items() if path.startswith(".spec")}


def sections(root: type[Section] = Section) -> Iterator[type[Section]]:
    for section in root.__subclasses__():
        yield section
        yield from sections(section)


@pytest.mark.parametrize("file", [FILE, CHART_FILE])
def test_the_committed_files_are_what_the_models_say(file: str) -> None:
    assert (ROOT / file).read_text(encoding="utf-8") == render(), "run `make crds`"


def test_the_file_is_plain_yaml() -> None:
    assert yaml.safe_load(render()) == DEFINITION
    assert "&id" not in render()


def test_names_and_subresources() -> None:
    assert DEFINITION["metadata"]["name"] == "prefixcachepools.cachefleet.io"
    assert DEFINITION["spec"]["names"]["shortNames"] == ["pcp"]
    assert DEFINITION["spec"]["names"]["categories"] == ["cachefleet"]
    assert VERSION["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    columns = [column["name"] for column in VERSION["additionalPrinterColumns"]]
    assert columns == ["Ready", "Model", "Workers", "Budget", "Hit", "Reason", "Age"]


@pytest.mark.parametrize("column", VERSION["additionalPrinterColumns"], ids=lambda column: column["name"])
def test_columns_show_fields_that_exist(column: dict[str, str]) -> None:
    path = re.sub(r"\[\?\(@\.type==\"Ready\"\)\]", "[]", column["jsonPath"])

    assert path in NODES or path == ".metadata.creationTimestamp"


@pytest.mark.parametrize("path", [".spec.replicas", ".status.replicas", ".status.selector"])
def test_the_scale_subresource_finds_its_fields(path: str) -> None:
    assert path in NODES


@pytest.mark.parametrize("path", NODES)
def test_every_node_is_structural(path: str) -> None:
    node = NODES[path]

    assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}
    assert not {"$ref", "anyOf", "oneOf", "allOf", "const", "title", "additionalProperties", "nullable"} & set(node)


@pytest.mark.parametrize("path", [path for path in NODES if not path.endswith("[]") and ".metadata" not in path])
def test_every_field_is_described(path: str) -> None:
    assert NODES[path]["description"].endswith(".")


@pytest.mark.parametrize("path", SPEC)
def test_descriptions_say_what_explain_does_not_show(path: str) -> None:
    """Defaults and ranges."""
    node = SPEC[path]
    default = node.get("default")
    if default is not None and not isinstance(default, dict | list):
        assert "Default: " in node["description"]
    if "maximum" in node:
        assert f"From {node['minimum']} to {node['maximum']}." in node["description"]


@pytest.mark.parametrize("path", SPEC)
def test_everything_is_bounded_so_that_rules_stay_cheap(path: str) -> None:
    node = SPEC[path]
    match node["type"]:
        case "string":
            assert "maxLength" in node or "enum" in node
        case "array":
            assert "maxItems" in node
        case "integer" | "number":
            assert {"minimum", "maximum"} <= set(node)


@pytest.mark.parametrize("path", [path for path, node in SPEC.items() if "pattern" in node])
def test_every_pattern_has_words(path: str) -> None:
    assert SPEC[path]["pattern"] in PATTERN_WORDS


def test_free_maps_are_kept_and_nothing_else() -> None:
    free = [path for path, node in NODES.items() if node.get("x-kubernetes-preserve-unknown-fields")]

    spec = [".spec.engine.kvTransfer", ".spec.engine.env[].valueFrom", ".spec.podTemplate"]
    assert free == [*spec, ".status.admitted.spec"]


@pytest.mark.requirement("C10")
def test_defaults_of_the_schema_are_those_of_the_models() -> None:
    def filled(given: Any, node: dict[str, Any]) -> Any:
        """What an API server makes of an object, as far as mappings go."""
        if not isinstance(given, dict):
            return given
        made = dict(given)
        for name, child in node.get("properties", {}).items():
            if name not in made and "default" in child:
                made[name] = child["default"]
            if name in made:
                made[name] = filled(made[name], child)
        return made

    objective = merged(VALID, {"spec": {"hit": {"objective": {"ratio": 0.5}}}})
    for manifest in (VALID, objective):
        ours = read_pool(manifest).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert filled(manifest["spec"], SCHEMA["properties"]["spec"]) == ours


def test_every_rule_that_cel_says_is_in_the_schema() -> None:
    written = [rule for node in NODES.values() for rule in node.get("x-kubernetes-validations", ())]
    declared = [rule for section in sections() for rule in section.rules if rule.cel]
    fixed = [field for section in sections() for field in section.immutable]

    assert {rule.cel for rule in declared} < {rule["rule"] for rule in written}
    assert len(written) == len(declared) + len(fixed) + 1, "each of an engine's extra arguments"
    assert NODES[".spec.model"]["x-kubernetes-validations"][0]["rule"] == "self.name == oldSelf.name"


def test_rules_that_only_python_says_are_kept_unique_by_the_server() -> None:
    silent = {(section.__name__, rule.field) for section in sections() for rule in section.rules if not rule.cel}

    assert silent == {
        ("CacheShareSpec", "tenants"),
        ("EngineSpec", "env"),
        ("EngineSpec", "extraArgs"),
        ("InferencePoolSpec", "labels"),
        ("ModelSpec", "adapters"),
        ("PrefixCacheSpec", "warmPrefixes"),
        ("TenancySpec", "contracts"),
        ("WarmPrefix", "tenants"),
    }
    assert NODES[".spec.model.adapters"]["x-kubernetes-list-map-keys"] == ["name"]
    assert NODES[".spec.inferencePool.labels"]["x-kubernetes-list-map-keys"] == ["name"]
    assert NODES[".spec.engine.env"]["x-kubernetes-list-map-keys"] == ["name"]
    assert NODES[".spec.prefixCache.warmPrefixes"]["x-kubernetes-list-map-keys"] == ["name"]
    assert NODES[".spec.tenancy.cacheShare.tenants"]["x-kubernetes-list-map-keys"] == ["name"]
    assert NODES[".spec.tenancy.contracts"]["x-kubernetes-list-map-keys"] == ["tenant"]
    assert NODES[".spec.prefixCache.warmPrefixes[].tenants"]["x-kubernetes-list-type"] == "set"


def test_rules_point_at_fields_that_exist() -> None:
    for path, node in NODES.items():
        for rule in node.get("x-kubernetes-validations", ()):
            assert f"{path}{rule.get('fieldPath', '')}" in NODES


def test_the_pattern_of_managed_arguments_is_that_of_python() -> None:
    """CEL matches by RE2; the parts of it used here mean the same to Python."""
    [rule] = NODES[".spec.engine.extraArgs[]"]["x-kubernetes-validations"]
    pattern = re.search(r"matches\('(.*)'\)", rule["rule"])
    assert pattern
    written = [f"--{name}" for name in MANAGED_ARGUMENTS] + [f"-{name}" for name in SHORT_ARGUMENTS]
    for name in [*written, *(name.replace("--", "--no-") for name in written)]:
        for argument in (name, name.replace("-", "_").replace("__", "--", 1), f"{name}=1", f"{name}.a=1", f"{name} 1"):
            if argument.startswith("_"):
                continue
            assert re.search(pattern[1], argument)
            with pytest.raises(
                ValueError, match=f"must not have {argument.split('=')[0].split('.')[0].split(' ')[0]}: "
            ):
                read_pool(merged(VALID, {"spec": {"engine": {"extraArgs": [argument]}}}))
    for argument in ("--models", "--max-num-seqs", "-pp", "model", "x --model", "--model-impl=auto", "--no-model-x"):
        assert not re.search(pattern[1], argument)
        read_pool(merged(VALID, {"spec": {"engine": {"extraArgs": [argument]}}}))


@pytest.mark.parametrize("name", MANAGED_VARIABLES)
def test_managed_variables_are_in_the_rule(name: str) -> None:
    rules = NODES[".spec.engine.env[]"]["x-kubernetes-validations"]

    assert [f"'{name}'" in rule["rule"] for rule in rules if rule["fieldPath"] == ".name"] == [True]


def test_the_program_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "crds" / "pool.yaml"
    assert main(["--check", "--output", str(file)]) == 1
    assert not file.exists()

    assert main(["--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == render()
    assert main(["--check", "--output", str(file)]) == 0

    file.write_text("other", encoding="utf-8")
    assert main(["--check", "--output", str(file)]) == 1
    assert "run `make crds`" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "other"
