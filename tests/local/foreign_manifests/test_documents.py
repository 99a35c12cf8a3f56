"""Manifests of other projects, written after the field names that these publish, and the pools that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import yaml

from cachefleet_core.pool.crd import custom_resource_definition
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_core.pool.worker_spec import KeyRef, Role
from cachefleet_local.fleet.pool_file import read_pools
from cachefleet_local.foreign_manifests.documents import read_text
from cachefleet_local.foreign_manifests.draft import Outcome, PoolDraft
from cachefleet_local.foreign_manifests.finishing import LENGTH, MEMORY, WEIGHTS, Figures, finish, yaml_text
from cachefleet_operator.manifests.pod import pod_template
from tests.operator.pools import SETTINGS

MANIFESTS: Final = Path(__file__).parent / "manifests"
FIXTURES: Final = sorted(MANIFESTS.glob("*.yaml"))
FIGURES: Final = Figures({WEIGHTS: {"": 16_000}, MEMORY: {"": 81_920}})
SCHEMA: Final = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SECRETS: Final = ("do-not-copy-this", "hf_do_not_copy_this")

Made = tuple[list[PrefixCachePool], list[PoolDraft], str]


def drafts_of(name: str) -> list[PoolDraft]:
    return read_text((MANIFESTS / f"{name}.yaml").read_text(), f"{name}.yaml")


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Made]:
    """Pools of a fixture, as `cachefleet check` reads the file that is written."""

    def made(name: str) -> Made:
        drafts = drafts_of(name)
        text = yaml_text(drafts, finish(drafts, FIGURES))
        (file := tmp_path / "pools.yaml").write_text(text)
        return read_pools(file), drafts, text

    return made


def pod(pool: PrefixCachePool) -> Any:
    """The patch of a pool's pods."""
    return pool.spec.pod_template["spec"]


def sources(draft: PoolDraft, outcome: Outcome) -> dict[str, str]:
    return {note.source: note.text for note in draft.notes if note.outcome == outcome}


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_what_is_written_is_sound_for_the_parser_and_for_the_resource_definition(
    path: Path, make: Callable[[str], Made]
) -> None:
    pools, drafts, text = make(path.stem)
    assert [pool.metadata.name for pool in pools] == [draft.name for draft in drafts]
    for manifest in yaml.safe_load_all(text):
        jsonschema_rs.validate(SCHEMA, manifest)
    assert not any(secret in text for secret in SECRETS)
    assert "&id" not in text


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_every_field_has_its_note_in_the_comments(path: Path, make: Callable[[str], Made]) -> None:
    _, drafts, text = make(path.stem)
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    told = [note.source for draft in drafts for note in draft.notes]
    assert all(source in comments for source in told)
    for document in yaml.safe_load_all(path.read_text()):
        for leaf in leaves(document):
            assert any(leaf.startswith(source.partition(" (")[0]) for source in told) or is_disabled(leaf), leaf


def leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict) and value.get("kind") == "List":
        return [leaf for item in value["items"] for leaf in leaves(item)]
    if isinstance(value, dict) and value:
        return [leaf for name, child in value.items() for leaf in leaves(child, f"{path}.{name}".removeprefix("."))]
    if isinstance(value, list) and value:
        return [leaf for place, child in enumerate(value) for leaf in leaves(child, f"{path}[{place}]")]
    return [path] if value not in ("", [], {}, None) else []


def is_disabled(leaf: str) -> bool:
    """Of the model that the fixture of production-stack's values does not enable."""
    return leaf.startswith("servingEngineSpec.modelSpec[2].")


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_operator_makes_pods_of_them(path: Path, make: Callable[[str], Made]) -> None:
    for pool in make(path.stem)[0]:
        names = [one["name"] for one in pod_template(pool, SETTINGS)["spec"]["containers"]]
        assert names.count("engine") == 1, "the patch merges with the engine's own container"


def test_a_runtime_of_production_stack(make: Callable[[str], Made]) -> None:
    (pool,), (draft,), _ = make("vllm-runtime")
    spec = pool.spec
    assert pool.key == "serving/llama-chat"
    assert spec.model.name == spec.model.source == "meta-llama/Llama-3.1-8B-Instruct"
    assert spec.model.hub_token_secret_ref == KeyRef(name="hub", key="token")
    assert (spec.replicas, spec.engine.tensor_parallel_size, spec.engine.max_model_len) == (3, 2, 16_384)
    assert (spec.engine.image, spec.engine.block_size) == ("docker.io/vllm/vllm-openai:v0.32.0", 32)
    assert spec.engine.extra_args == (
        *("--enable-auto-tool-choice", "--tool-call-parser", "llama3_json", "--max-num-seqs", "64"),
        *("--no-enable-chunked-prefill", "--seed", "7"),
    )
    assert [variable.name for variable in spec.engine.env] == ["VLLM_LOGGING_LEVEL"]
    assert spec.device.resource_name == "nvidia.com/gpu"
    assert spec.device.floor_mib == 81_920 - 65_536
    assert pod(pool)["imagePullSecrets"] == [{"name": "registry"}]
    assert sources(draft, Outcome.NO_COUNTERPART).keys() == {
        "spec.model.chatTemplate",
        "spec.vllmConfig.env[1] (S3_SECRET)",
        "spec.lmCacheConfig",
        "spec.autoscalingConfig",
    }
    assert "spec.vllmConfig.extraArgs (--port)" in sources(draft, Outcome.NOT_NEEDED)


def test_values_of_production_stack_make_a_pool_of_each_enabled_model(make: Callable[[str], Made]) -> None:
    (mistral, qwen), (first, second), _ = make("production-stack-values")
    assert (mistral.metadata.name, qwen.metadata.name) == ("mistral", "qwen-8b")
    assert not mistral.spec.prefix_cache.enabled
    assert pod(mistral)["tolerations"] == [
        {"key": "gpu", "operator": "Exists"},
        {"key": "mistral", "operator": "Exists"},
    ]
    assert pod(qwen)["tolerations"] == [{"key": "qwen", "operator": "Exists"}]
    assert qwen.spec.device.resource_name == "nvidia.com/mig-3g.40gb"
    assert qwen.spec.model.hub_token_secret_ref == KeyRef(name="hub", key="token")
    assert mistral.spec.model.hub_token_secret_ref is None
    lacking = {note.source.rpartition(".")[2] for draft in (first, second) for note in draft.lacking()}
    assert lacking == {"pvcStorage", "hf_token", "lmcacheConfig"}


def test_values_of_llm_d_make_a_decode_and_a_prefill_pool_of_one_fleet(make: Callable[[str], Made]) -> None:
    (decode, prefill), drafts, _ = make("llm-d-modelservice-values")
    assert (decode.spec.role, prefill.spec.role) == (Role.DECODE, Role.PREFILL)
    assert decode.spec.model == prefill.spec.model
    assert decode.spec.model.hub_token_secret_ref == KeyRef(name="llm-d-hf-token", key="HF_TOKEN")
    assert (decode.spec.engine.tensor_parallel_size, decode.spec.engine.max_model_len) == (4, 32_000)
    assert (
        decode.spec.engine.kv_transfer.kv_connector == prefill.spec.engine.kv_transfer.kv_connector == "NixlConnector"
    )
    assert decode.spec.device.floor_mib == 81_920 - int(81_920 * 0.95)
    assert prefill.spec.device.resource_name == "nvidia.com/gpu"
    assert [note.source for note in drafts[0].lacking()] == ["image"]
    assert [note.source for note in drafts[1].lacking()] == ["prefill.parallelism.workers", "image"]


def test_an_inference_service_of_kserve(make: Callable[[str], Made]) -> None:
    (granite, opt), (first, second), _ = make("llm-inference-service")
    assert granite.key == "models/granite"
    assert granite.spec.model.source == "/mnt/weights/granite-3.3-8b"
    assert pod(granite)["volumes"] == [
        {"name": "weights", "persistentVolumeClaim": {"claimName": "granite-weights", "readOnly": True}}
    ]
    assert [adapter.source for adapter in granite.spec.model.adapters] == ["acme/granite-sql"]
    assert granite.spec.engine.max_model_len == 8_192
    assert granite.spec.engine.extra_args[-3:] == ("--enable-auto-tool-choice", "--tool-call-parser", "granite")
    assert {note.source for note in first.lacking()} == {"spec.model.lora.adapters[1]", "spec.baseRefs"}
    assert opt.spec.device.is_cpu
    assert {note.source for note in second.lacking()} == {"spec.scaling", "spec.kvCacheOffloading", "spec.template"}


def test_an_inference_service_with_prefill_makes_two_pools(make: Callable[[str], Made]) -> None:
    (decode, prefill), _, _ = make("llm-inference-service-prefill")
    assert (decode.metadata.name, decode.spec.role) == ("deepseek-decode", Role.DECODE)
    assert (prefill.metadata.name, prefill.spec.role) == ("deepseek-prefill", Role.PREFILL)
    assert (decode.spec.engine.devices, prefill.spec.engine.devices) == (8, 8)
    assert prefill.spec.engine.data_parallel_size == 2
    assert decode.spec.model.image is not None
    assert (decode.spec.model.name, decode.spec.model.sub_path) == ("deepseek", "models")


def refusal(text: str) -> str:
    with pytest.raises(PoolError) as caught:
        finish(read_text(text, "file.yaml"), FIGURES)
    return str(caught.value)


RUNTIME: Final = "apiVersion: production-stack.vllm.ai/v1alpha1\nkind: VLLMRuntime\nmetadata: {name: one}\nspec: "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: one}",
            '"apps Deployment": is not read here; known are',
        ),
        ("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}", "known are VLLMRuntime"),
        ("replicas: 3", "a mapping without kind: must be one of VLLMRuntime"),
        ("- 1", "a list of 1: must be one of"),
        ("", "it must hold at least one of VLLMRuntime"),
        (
            "modelArtifacts: {name: a, uri: 'hf://{{ .Values.modelArtifacts.name }}'}",
            "modelArtifacts.uri: is a template",
        ),
        ("modelArtifacts: {{ .Values.model }}", "it has templates ({{...): write what they stand for"),
        (
            "modelArtifacts: {name: a, uri: 's3://bucket/a'}\ndecode: {replicas: 1}",
            "must begin with hf://, pvc:// or oci://",
        ),
        ("modelArtifacts: 7", "modelArtifacts: 7: must be a mapping"),
        ("modelArtifacts: {name: a, uri: 'hf://a/b'}\ndecode: {replicas: 0}", "must make at least one replica"),
        ("servingEngineSpec: {modelSpec: 3}", "servingEngineSpec.modelSpec: 3: must be a list of models"),
        (f"{RUNTIME}{{model: {{modelURL: [1]}}}}", "spec.model.modelURL: a list of 1: must be text"),
        (f"{RUNTIME}{{deploymentConfig: {{replicas: many}}}}", '"many": must be a whole number from 0 to 999999999'),
        (f"{RUNTIME}{{vllmConfig: {{gpuMemoryUtilization: 80}}}}", "80: must be a number above 0 and up to 1"),
        (
            f"{RUNTIME}{{model: {{modelURL: a/b}}}}",
            "spec.engine.maxModelLen: is told nowhere in VLLMRuntime default/one",
        ),
        ("apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata: {name: a}", "spec.model.uri"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_field_and_what_it_must_be(text: str, words: str) -> None:
    assert words in refusal(text)


def test_every_document_tells_its_own_problems() -> None:
    told = refusal(f"{RUNTIME}{{model: {{modelURL: 3}}}}\n---\nkind: Other\napiVersion: v1").splitlines()
    assert [line.partition(": ")[0] for line in told] == ["file.yaml, document 1", "file.yaml, document 2"]


def test_a_field_that_no_table_has_is_told() -> None:
    (draft,) = read_text(f"{RUNTIME}{{model: {{modelURL: a/b, shape: round}}, extra: {{deep: {{a: 1}}}}}}", "file.yaml")
    assert {note.source for note in draft.lacking()} == {"spec.model.shape", "spec.extra"}


def test_figures_of_one_pool_go_before_those_of_all_and_name_a_pool_that_is_made() -> None:
    drafts = read_text(f"{RUNTIME}{{model: {{modelURL: a/b}}}}", "file.yaml")
    given = {WEIGHTS: {"": 1, "one": 2}, MEMORY: {"": 81_920}, LENGTH: {"one": 512}}
    (manifest,) = finish(drafts, Figures(given))
    assert manifest["spec"]["model"]["weightsMiB"] == 2
    with pytest.raises(PoolError, match="--weights-mib: two: is no pool that is made; these are: one"):
        finish(drafts, Figures({**given, WEIGHTS: {"": 1, "two": 2}}))
