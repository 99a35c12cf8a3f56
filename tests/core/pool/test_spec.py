from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cachefleet_core.pool.policy import Isolation
from cachefleet_core.pool.spec import PoolSpec, PrefixCachePool, changes_refused, parse_pools, read_pool
from cachefleet_core.pool.validation_problems import PoolError, Problem
from cachefleet_core.pool.worker_spec import DeviceSpec, EngineSpec, ModelSpec, Role
from tests.core.invalid_pools import INVALID, INVALID_CHANGES, VALID, VALID_PATCHES, Invalid, InvalidChange, merged

WHOLE = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: qwen-decode, namespace: serving}
spec:
  model:
    name: qwen3-32b
    source: Qwen/Qwen3-32B
    revision: 9216db5781bf
    subPath: ""
    weightsMiB: 31250
    kvBytesPerToken: 131072
    chatTemplate: {configMapKeyRef: {name: t, key: chat.jinja}}
    hubTokenSecretRef: {name: hf-token, key: token}
    adapters: [{name: sql, source: org/qwen-sql-lora, revision: v2, subPath: ""}]
    aliases: [gpt-4o-mini, "claude-*"]
    aliasWeight: 100
  role: Both
  replicas: 4
  controlPlane: eu-1
  engine:
    image: vllm/vllm-openai:v0.32.0
    version: ""
    tensorParallelSize: 2
    dataParallelSize: 1
    blockSize: 16
    maxModelLen: 32768
    dtype: auto
    kvTransfer: {}
    allowedMediaDomains: []
    extraArgs: []
    env: []
  device: {resource: nvidia.com/gpu, memoryMiB: 81920, activationMiB: 2048, floorMiB: 1500}
  prefixCache:
    enabled: true
    budgetMiB: 1024
    keepShare: 0.5
    maxEntries: 1024
    warmPrefixes:
    - name: support-agent
      messages: [{role: system, content: "..."}]
      tenants: [acme]
  hit: {threshold: 0.0, omitZeroCachedTokens: false, objective: {ratio: 0.6, windowSeconds: 600, minTokens: 1}}
  preemption: {policy: HandBack, rejectBelow: 0.5, maxHandBacks: 2}
  admission: {minFreeBlockPercent: 5, maxQueueSeconds: 10, maxAheadSeconds: 0.0,
    sharedAheadSeconds: 0.0, sharedRequests: 0, coldStartSeconds: 0, keepAliveSeconds: 0}
  tenancy:
    isolation: PerTenant
    cacheShare: {default: 1.0, tenants: [{name: acme, share: 0.25}]}
    contracts:
    - tenant: umbrella
      share: 0.5
      retentionSeconds: 3600
      hitObjective: {ratio: 0.9, windowSeconds: 600, minTokens: 1}
  pricing: {input: 0.4, cached: 0.1, output: 1.2, gpuHour: 2.5}
  continuation: {enabled: true, handles: false, storeHistory: false, ttlSeconds: 3600}
  rollout: {maxSurge: 1, maxUnavailable: 0, warmTimeoutSeconds: 600}
  inferencePool: {enabled: false, failureMode: FailClose, labels: [{name: example.com/fleet, value: qwen}]}
  podTemplate: {}
"""


def manifest(**patch: Any) -> str:
    return yaml.safe_dump(merged(VALID, patch))


def problems(text: str) -> list[Problem]:
    with pytest.raises(PoolError) as refused:
        parse_pools(text)
    assert str(refused.value).splitlines() == [str(problem) for problem in refused.value.problems]
    return list(refused.value.problems)


def refusal(document: Any) -> tuple[Problem, ...]:
    try:
        read_pool(document)
    except PoolError as error:
        return error.problems
    return ()


def only(text: str) -> Problem:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def test_every_field_reads_as_written() -> None:
    written = yaml.safe_load(WHOLE)
    [pool] = parse_pools(WHOLE)

    assert pool.key == "serving/qwen-decode"
    assert pool.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"] == written["spec"]


def test_defaults_are_those_of_the_whole_example() -> None:
    """What the whole example spells out beyond the least pool are the defaults, a few fields aside."""
    least = read_pool(VALID).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    whole = yaml.safe_load(WHOLE)["spec"]
    for section, field in (
        ("model", "kvBytesPerToken"),
        ("model", "chatTemplate"),
        ("model", "hubTokenSecretRef"),
        ("engine", "blockSize"),
        ("hit", "objective"),
    ):
        del whole[section][field]
    assert read_pool(VALID).spec.device.resource_name == whole["device"].pop("resource")
    whole["model"] |= {"revision": "", "adapters": [], "aliases": []}
    whole["replicas"] = 1
    whole["pricing"] = {}
    whole["controlPlane"] = "default"
    whole["engine"]["tensorParallelSize"] = 1
    whole["prefixCache"]["warmPrefixes"] = []
    whole["tenancy"]["cacheShare"]["tenants"] = []
    whole["tenancy"]["contracts"] = []
    whole["inferencePool"]["labels"] = []

    assert least == whole


def test_a_pool_reads_back_from_what_it_writes() -> None:
    [pool] = parse_pools(WHOLE)

    assert parse_pools(yaml.safe_dump(pool.model_dump(mode="json", by_alias=True))) == [pool]


def test_block_size_follows_the_device() -> None:
    assert read_pool(VALID).spec.block_size == 16
    assert read_pool(merged(VALID, {"spec": {"device": {"resource": ""}}})).spec.block_size == 32
    assert read_pool(merged(VALID, {"spec": {"engine": {"blockSize": 48}}})).spec.block_size == 48


def test_in_python_fields_have_their_own_names_and_rules_hold_too() -> None:
    model = ModelSpec(name="m", source="s", weights_mib=1)
    engine = EngineSpec(max_model_len=10)
    spec = PoolSpec(model=model, engine=engine, device=DeviceSpec(memory_mib=4, resource=""))

    assert spec.block_size == 32
    assert spec.tenancy.isolation is Isolation.PER_TENANT
    with pytest.raises(ValidationError, match="must name a kv_connector"):
        PoolSpec(model=model, engine=engine, device=DeviceSpec(memory_mib=4), role=Role.DECODE)


def test_pools_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read_pool(VALID).spec.replicas = 3  # type: ignore[misc]


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case.name)
@pytest.mark.requirement("B1")
def test_a_refusal_names_path_value_and_what_is_allowed(case: Invalid) -> None:
    with pytest.raises(PoolError) as refused:
        read_pool(merged(VALID, case.patch))

    assert case.parser in str(refused.value)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(("name", "patch"), VALID_PATCHES, ids=[name for name, _ in VALID_PATCHES])
def test_what_is_allowed_is_accepted(name: str, patch: dict[str, Any]) -> None:
    assert read_pool(merged(VALID, patch)).metadata.name == "qwen"


@pytest.mark.parametrize("case", INVALID_CHANGES, ids=lambda case: case.name)
def test_a_change_that_no_server_takes_is_named(case: InvalidChange) -> None:
    old, new = read_pool(VALID), read_pool(merged(VALID, case.patch))

    assert [str(problem) for problem in changes_refused(old, new)] == [case.parser]
    assert changes_refused(old, read_pool(merged(VALID, {"spec": {"replicas": 9}}))) == []


def test_every_problem_has_a_line() -> None:
    text = manifest(
        spec={
            "role": "decode",
            "hit": {"threshold": 1.5, "treshold": 0.5},
            "device": {"memoryMiB": "80Gi"},
            "rollout": {"maxSurge": 0},
            "model": {"weightsMiB": None},
        }
    )

    assert [str(problem) for problem in problems(text)] == [
        "spec.model.weightsMiB: missing: must be a whole number from 0 to 16777216",
        'spec.role: "decode": must be one of Both, Prefill, Decode (default "Both")',
        'spec.device.memoryMiB: "80Gi": must be a whole number from 1 to 16777216; without quotes',
        "spec.hit.threshold: 1.5: must be a number from 0 to 1 (default 0)",
        'spec.hit.treshold: 0.5: is not a known field; did you mean "threshold"?',
        "spec.rollout.maxSurge: 0: must be at least 1 when maxUnavailable is 0",
    ]


def test_a_null_stands_for_the_default() -> None:
    text = manifest().replace("spec:", "spec:\n  hit:\n  role: ~")

    assert parse_pools(text)[0].spec == read_pool(VALID).spec
    assert only(manifest().replace("name: qwen3-32b", "name: ~")).value == "missing"
    assert "is not a known field" in only(manifest().replace("spec:", "spec:\n  rolle: ~")).allowed


def test_what_a_server_adds_is_passed_over() -> None:
    live = merged(
        VALID,
        {
            "metadata": {
                "uid": "u",
                "generation": 3,
                "resourceVersion": "7",
                "managedFields": [],
                "labels": {"a": "b"},
            },
            "status": {
                "observedGeneration": 3,
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "Serving",
                        "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
                "budget": {"requestedMiB": 1024, "later": 1},
                "workers": [{"name": "a", "heldBlocks": 3}],
                "later": {},
            },
        },
    )
    pool = read_pool(live)

    assert (pool.metadata.uid, pool.metadata.generation, pool.metadata.labels) == ("u", 3, {"a": "b"})
    assert pool.status is not None
    assert pool.status.budget is not None
    assert pool.status.budget.requested_mib == 1024
    assert pool.status.workers is not None
    assert pool.status.workers[0].held_blocks == 3


def test_several_documents() -> None:
    one, two = manifest(), manifest(metadata={"name": "other"})

    assert [pool.key for pool in parse_pools(f"---\n{one}---\n---\n{two}")] == ["default/qwen", "default/other"]


def test_problems_of_several_documents_say_which() -> None:
    text = f"{manifest()}---\n{manifest(spec={'replicas': -1})}---\n---\nkind: Pod\n"

    assert [str(problem) for problem in problems(text)] == [
        "document 2: spec.replicas: -1: must be a whole number from 0 to 1000 (default 1)",
        'document 4: kind: "Pod": must be PrefixCachePool',
    ]


def test_a_name_twice_is_refused_but_not_in_two_namespaces() -> None:
    other = manifest(metadata={"namespace": "other"})

    assert str(only(f"{manifest()}---\n{manifest()}")) == 'metadata.name: "qwen": must be unique in namespace default'
    assert len(parse_pools(f"{manifest()}---\n{other}")) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a.b}\nspec: {}",
            'apiVersion: "v1": must be cachefleet.io/v1alpha1',
        ),
        (manifest(kind="PrefixcachePool"), 'kind: "PrefixcachePool": must be PrefixCachePool'),
        (manifest(apiVersion="cachefleet.io/v1"), 'apiVersion: "cachefleet.io/v1": must be cachefleet.io/v1alpha1'),
        (manifest(apiVersion=None), "apiVersion: missing: must be cachefleet.io/v1alpha1"),
        ("- a\n- b", "a list of 2: must be a mapping with the fields apiVersion, kind, metadata, spec, status"),
        ("just text", '"just text": must be a mapping with the fields'),
    ],
)
def test_what_is_no_pool_at_all(text: str, said: str) -> None:
    assert str(problems(text)[0]).startswith(said)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("on", "spec.model.name: true: must be text of 1 to 128 characters: letters, digits and any of . _ : / -"),
        ("on", "YAML reads on, off, yes and no without quotes as true or false: put the text in quotes"),
        ("4711", "spec.model.name: 4711: must be text"),
        ("4711", "put it in quotes to make it text"),
        ("1.5", "spec.model.name: 1.5: must be text"),
        ("0x1f", "spec.model.name: 31: must be text"),
        ("[a]", "spec.model.name: a list of 1: must be text"),
        ("!!binary aGk=", "spec.model.name: a value of type bytes: must be text"),
    ],
)
def test_yaml_that_is_not_what_it_looks_like(written: str, said: str) -> None:
    assert said in str(only(manifest().replace("qwen3-32b", written)))


@pytest.mark.parametrize("written", ["2026-01-01", "1:30", "1_0", "1e3x", "09:30:00", "0.5.1", "1.2.3", "v1"])
def test_text_that_old_yaml_took_for_times_and_numbers_is_text(written: str) -> None:
    assert parse_pools(manifest().replace("qwen3-32b", f"x{written}"))
    [pool] = parse_pools(manifest(spec={"model": {"revision": "REV"}}).replace("REV", written))

    assert pool.spec.model.revision == written


@pytest.mark.parametrize(("written", "value"), [("1", 1.0), ("0.5", 0.5), ("5e-1", 0.5), (".5", 0.5), ("1.", 1.0)])
def test_numbers_are_numbers(written: str, value: float) -> None:
    [pool] = parse_pools(manifest(spec={"hit": {"threshold": 0.125}}).replace("0.125", written))

    assert pool.spec.hit.threshold == value


@pytest.mark.parametrize("written", [".nan", ".inf", "-.inf", "-1e-9", "1.0000001", "1e999", "true"])
def test_numbers_out_of_range(written: str) -> None:
    text = manifest(spec={"hit": {"threshold": 0.125}}).replace("0.125", written)

    assert "must be a number from 0 to 1" in str(only(text))


@pytest.mark.parametrize("key", ["on", "3", "1.5", "~"])
def test_names_of_fields_are_text(key: str) -> None:
    for place in ("spec:", "spec:\n  podTemplate:\n    a: {}"):
        indent = "  " if place == "spec:" else "    "
        found = only(manifest().replace("spec:", f"{place}\n{indent}{key}: 1"))

        assert found.allowed == "must be text as the name of a field: put it in quotes"


def test_free_maps_take_plain_values_only() -> None:
    text = manifest(spec={"podTemplate": {"a": "DATE"}}).replace("DATE", "!!timestamp 2026-01-01")

    assert str(only(text)) == (
        "spec.podTemplate.a: a value of type date: must be made of mappings, lists, text, numbers, true and false only"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; it must hold at least one PrefixCachePool"),
        ("---\n---\n# nothing\n", "is empty; it must hold at least one PrefixCachePool"),
        ("a: [", "is not YAML: expected the node content, but found '<stream end>' (line 1, column 5)"),
        ("a: b: c", "is not YAML: mapping values are not allowed here (line 1, column 5)"),
        ("a: \0", "is not YAML: unacceptable character #x0000: special characters are not allowed"),
        ("a: !!python/object:os.system {}", "is not YAML: could not determine a constructor for the tag"),
        ("a: *b", "is not YAML: found undefined alias 'b'"),
        ("{[a]: 1}", "is not YAML: found unhashable key"),
        ("a: !!int x", "is not YAML: invalid literal for int"),
        ("[" * 5000, "is nested too deeply"),
        ("&a [*a]", "contains itself through an alias (line 1)"),
        ("a: 1\nb: 2\na: 3", 'gives "a" twice in one mapping (line 3)'),
        ("x" * (4 * 1024 * 1024 + 1), "must have at most 4194304 characters, not 4194305"),
    ],
)
def test_what_is_no_yaml(text: str, said: str) -> None:
    found = only(text)

    assert (found.path, found.value) == ("", "file")
    assert found.allowed.startswith(said)


def test_aliases_may_repeat_but_not_explode() -> None:
    layers = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9))
    shared = manifest(spec={"podTemplate": {"a": "X", "b": "Y"}}).replace("X", "&x {k: v}").replace("Y", "*x")

    assert only(f"l0: &l0 [a]\n{layers}").allowed == "must stand for at most 100000 values, aliases written out"
    assert parse_pools(shared)[0].spec.pod_template == {"a": {"k": "v"}, "b": {"k": "v"}}


def test_merge_keys_work() -> None:
    text = manifest(spec={"podTemplate": {"a": "X", "b": "Y"}}).replace("X", "&x {k: v}").replace("Y", "{<<: *x, j: w}")

    assert parse_pools(text)[0].spec.pod_template["b"] == {"k": "v", "j": "w"}


def test_a_problem_is_one_line_whatever_was_given() -> None:
    nasty = "a\nb\r\x1b[2J\u2028\u202e\x00" + "x" * 500
    document = merged(VALID, {"spec": {"role": nasty, nasty: 1, "podTemplate": {nasty: {1}}}})
    with pytest.raises(PoolError) as refused:
        read_pool(document)

    lines = str(refused.value).split("\n")
    assert len(lines) == len(refused.value.problems) == 3
    assert all(line.isprintable() and len(line) < 600 for line in lines)


def test_prompts_and_credentials_are_not_repeated() -> None:
    warm = [
        {"name": "a", "messages": [{"role": "system", "contnt": "secret"}, {"role": "user", "content": ["secret"]}]}
    ]
    env = [{"name": "A", "value": 5353}, {"name": "B", "value": "secret" * 9999}]
    document = merged(VALID, {"spec": {"prefixCache": {"warmPrefixes": warm}, "engine": {"env": env}}})
    with pytest.raises(PoolError) as refused:
        read_pool(document)

    text = str(refused.value)
    assert "secret" not in text
    assert "5353" not in text
    assert 'contnt: text of 6 characters: is not a known field; did you mean "content"?' in text
    assert (
        "env[0].value: a number, true or false: must be text of 0 to 32768 characters: any character but NUL; "
        "put it in quotes" in text
    )
    assert "env[1].value: text of 59994 characters: must be text" in text


def test_metadata_is_checked_as_far_as_it_is_read() -> None:
    found = problems(manifest(metadata={"generation": "3", "labels": {"a": 1}, "namespace": "No"}))

    assert [problem.path for problem in found] == ["metadata.namespace", "metadata.generation", "metadata.labels.a"]
    assert found[1].allowed == "must be a whole number (default 1); without quotes"


def test_an_unknown_field_without_a_near_one_lists_the_known() -> None:
    [found] = problems(manifest(spec={"tenancy": {"zzz": 1}}))

    assert str(found) == "spec.tenancy.zzz: 1: is not a known field; known are isolation, cacheShare, contracts"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(node, dict):
        return [path]
    return [path, *(found for name, child in node.items() for found in paths(child, (*path, name)))]


PATHS = [path for path in paths(yaml.safe_load(WHOLE)) if path]


@given(st.sampled_from(PATHS), JSON)
def test_anything_anywhere_is_a_pool_or_problems(path: tuple[str, ...], value: Any) -> None:
    document = yaml.safe_load(WHOLE)
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value

    found = refusal(document)
    assert all(str(problem).isprintable() for problem in found)
    if not found:
        pool = read_pool(document)
        assert read_pool(json.loads(pool.model_dump_json(by_alias=True))) == pool


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t0123.~<", max_size=60))
def test_any_text_is_refused_in_words(text: str) -> None:
    assert problems(text)


def test_the_model_is_what_the_design_calls_it() -> None:
    assert PrefixCachePool.__name__ == read_pool(VALID).kind
