"""Sections of a pool's spec on its workers: model, engine, device."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field, JsonValue

from cachefleet_core.pool.adapter_options import PATH_STARTS
from cachefleet_core.pool.adapter_reports import MAX_ADAPTERS
from cachefleet_core.pool.managed_arguments import MANAGED_PATTERN, MANAGED_VARIABLES, managed_arguments
from cachefleet_core.pool.section import (
    ARGUMENT,
    BY_NAME,
    FREE,
    MODEL_NAME,
    OPTIONAL_ARGUMENT,
    RESOURCE,
    SUB_PATH,
    TEXT,
    VARIABLE,
    VERSION,
    Aliases,
    FreeMap,
    Host,
    MiB,
    ObjectKey,
    ObjectName,
    Rule,
    Section,
    unique_names,
)
from cachefleet_core.pool.weights_image import WeightsImage, image_rules

CPU_BLOCK_SIZE: Final = 32
"""vLLM's attention on a CPU takes multiples of 32 tokens only."""
GPU_BLOCK_SIZE: Final = 16
NVIDIA: Final = "nvidia.com/gpu"
MAX_ALIAS_WEIGHT: Final = 1000
MAX_CLAIMED: Final = 32
"""Devices that Kubernetes allocates to one claim."""
DEFAULT_IMAGE: Final = "vllm/vllm-openai:v0.32.0"


_SEE: Final = "it follows from the pool, docs/worker.md has a table of what to do instead"


class Role(StrEnum):
    """What the workers of a pool do with a request."""

    BOTH = "Both"
    PREFILL = "Prefill"
    DECODE = "Decode"


class PodIdentity(StrEnum):
    """Who chooses user, group, fsGroup and seccomp profile of worker pods."""

    FIXED = "Fixed"
    CLUSTER = "Cluster"


class KvRole(StrEnum):
    """What an engine's KV connector does with KV caches."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"


class Dtype(StrEnum):
    """The engine's type of number for weights and activations."""

    AUTO = "auto"
    HALF = "half"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT = "float"
    FLOAT32 = "float32"


class KeyRef(Section):
    """One key of an object in the pool's namespace."""

    name: ObjectName
    """Name of the object."""
    key: ObjectKey
    """Key in its data."""


class ChatTemplate(Section):
    """Where the chat template is read from."""

    config_map_key_ref: KeyRef
    """Key of a ConfigMap that holds the Jinja template."""


class AdapterSpec(Section):
    """An adapter (LoRA) of the model."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="revision",
            cel=r"self.revision == '' || !self.source.matches('^[/.~]')",
            message="must be empty where source is a path: put another revision into another folder",
            holds=lambda adapter: not (adapter.revision and adapter.is_path),
        ),
        *image_rules(),
    )

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=MODEL_NAME)]
    """Name clients ask for in place of the model's; unique in the pool."""
    source: Annotated[str, Field(min_length=1, max_length=512, pattern=ARGUMENT)]
    """Hub id of the adapter, a path on a mounted volume, or an image as oci://REGISTRY/REPOSITORY:TAG or @sha256:..."""
    revision: Annotated[str, Field(max_length=128, pattern=OPTIONAL_ARGUMENT)] = ""
    """Branch, tag or commit of a hub id. Empty for the hub's default."""
    sub_path: Annotated[str, Field(max_length=256, pattern=SUB_PATH)] = ""
    """Folder in the image that has the adapter. Empty for the image's root."""

    @property
    def is_path(self) -> bool:
        """Whether source is a folder, not a hub id."""
        return self.source.startswith(PATH_STARTS)

    @property
    def image(self) -> WeightsImage | None:
        """The image that source names, None where it names none."""
        return WeightsImage.of(self.source, self.sub_path)


class ModelSpec(Section):
    """The model all workers of the pool serve."""

    immutable: ClassVar[tuple[str, ...]] = ("name",)
    rules: ClassVar[tuple[Rule, ...]] = (
        unique_names("adapters", "an adapter"),
        Rule(
            field="adapters",
            cel="!self.adapters.exists(one, one.name == self.name)",
            message="must not have the model's own name",
            holds=lambda model: model.name not in {one.name for one in model.adapters},
        ),
        Rule(
            field="aliases",
            cel="!self.aliases.exists(one, one == self.name || self.adapters.exists(other, other.name == one))",
            message="must not have the name of the model or of an adapter, nor anything twice",  # it is a set
            holds=lambda model: (
                len({model.name, *model.aliases}) == len(model.aliases) + 1
                and not {one.name for one in model.adapters} & set(model.aliases)
            ),
        ),
        *image_rules(),
    )

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=MODEL_NAME)]
    """Name clients ask for. Pools of one namespace with the same name form a fleet. Immutable."""
    source: Annotated[str, Field(min_length=1, max_length=512, pattern=ARGUMENT)]
    """Hub id of the weights, a path on a mounted volume, or an image as oci://REGISTRY/REPOSITORY:TAG or @sha256:..."""
    revision: Annotated[str, Field(max_length=128, pattern=OPTIONAL_ARGUMENT)] = ""
    """Branch, tag or commit of the source; part of the index contract. Empty for the hub's default."""
    sub_path: Annotated[str, Field(max_length=256, pattern=SUB_PATH)] = ""
    """Folder in the image that has the weights. Empty for the image's root."""
    weights_mib: MiB
    """Memory the weights take on one device, in MiB; admits the budget before any worker starts."""
    kv_bytes_per_token: Annotated[int, Field(ge=1, le=1_073_741_824)] | None = None
    """Bytes of KV cache one token takes on one device. Default: learnt from the first worker."""
    chat_template: ChatTemplate | None = None
    """Chat template to use. Default: the model's own."""
    hub_token_secret_ref: KeyRef | None = None
    """Key of a Secret with the token for the model hub. Default: none."""
    adapters: Annotated[
        tuple[AdapterSpec, ...],
        Field(
            strict=False,
            max_length=MAX_ADAPTERS,
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    """Adapters (LoRA) that every worker serves, loaded at its start or while it runs. Default: none."""
    aliases: Aliases = ()
    """Further names that clients may ask for, exact or with * for any characters; unknown to the engine. Default:
    none."""
    alias_weight: Annotated[int, Field(ge=0, le=MAX_ALIAS_WEIGHT)] = 100
    """Share of the requests by an alias that several models of the namespace have, relative to the weights of the
    others; the largest of a model's pools counts, and 0 takes none."""

    @property
    def image(self) -> WeightsImage | None:
        """The image that source names, None where it names none."""
        return WeightsImage.of(self.source, self.sub_path)

    @property
    def contract_names(self) -> tuple[str, str]:
        """Weights and revision as the index contract of the workers has them."""
        return (self.image.weights, self.image.revision) if self.image else (self.source, self.revision)


class EnvVar(Section):
    """An environment variable of the engine."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="valueFrom",
            cel="!(has(self.value) && has(self.valueFrom))",
            message="must not be given together with value",
            holds=lambda env: env.value is None or env.value_from is None,
        ),
        Rule(
            field="name",
            cel=f"!(self.name in {list(MANAGED_VARIABLES)})",
            message="must not be a variable that follows from the pool",
            cel_message=f"'must not be ' + self.name + ': {_SEE}'",
            holds=lambda env: env.name not in MANAGED_VARIABLES,
            words=lambda env: f"must not be set: {MANAGED_VARIABLES[env.name]}",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=VARIABLE)]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32_768, pattern=TEXT)] | None = None
    """Its value. Default: empty."""
    value_from: FreeMap | None = None
    """Source of its value, as in a container of a Pod. Default: none."""


class KvTransfer(Section):
    """The engine's KV connector; fields beyond those named here are passed through as they are."""

    model_config = ConfigDict(alias_generator=None, extra="allow", json_schema_extra=FREE)
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    kv_connector: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Name of the connector. Default: no KV transfer."""
    kv_role: Annotated[KvRole, Field(strict=False)] | None = None
    """The connector's role: kv_producer, kv_consumer or kv_both. Default: from the pool's role."""


def _managed_words(engine: EngineSpec) -> str:
    return next((f"must not have {found}" for found in managed_arguments(engine.extra_args)), "")


ExtraArgument = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        pattern=TEXT,
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": f"!self.matches('{MANAGED_PATTERN}')",
                    "message": "must not follow from the pool",
                    "messageExpression": f"'must not be ' + self.split('=')[0] + ': {_SEE}'",
                }
            ]
        },
    ),
]


class EngineSpec(Section):
    """The vLLM engine of each worker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="extraArgs",
            cel="",  # its pattern has a rule at each argument, where the API server can name it
            message="must not have arguments that follow from the pool",
            holds=lambda engine: not _managed_words(engine),
            words=_managed_words,
        ),
        unique_names("env", "a variable"),
    )

    image: Annotated[str, Field(min_length=1, max_length=1024, pattern=ARGUMENT)] = DEFAULT_IMAGE
    """Container image of the engine, by tag or digest (NAME:TAG@sha256:...); unused outside Kubernetes."""
    version: Annotated[str, Field(max_length=64, pattern=VERSION)] = ""
    """Version of vLLM in the image, such as 0.29.1. Default: read from the tag; unused outside Kubernetes."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Devices of one rank of a worker, over which the model is split."""
    data_parallel_size: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks of one worker, each with the whole model on devices of its own and a cache of its own."""
    block_size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens in one block of the KV cache; on a CPU a multiple of 32. Default: 16, on a CPU 32."""
    max_model_len: Annotated[int, Field(ge=1, le=16_777_216)]
    """Longest request served, prompt and answer together, in tokens."""
    dtype: Annotated[Dtype, Field(strict=False)] = Dtype.AUTO
    """Type of number for weights and activations; auto takes the model's own."""
    kv_transfer: KvTransfer = KvTransfer()
    """Passed through to --kv-transfer-config; needed by the roles Prefill and Decode."""
    allowed_media_domains: Annotated[tuple[Host, ...], Field(strict=False, max_length=64)] = ()
    """Hosts from which the engine fetches media that requests name by URL; * for any. Default: none, data URLs only."""
    extra_args: Annotated[tuple[ExtraArgument, ...], Field(strict=False, max_length=64)] = ()
    """Further arguments of the engine, one word each, put last. None that follows from the pool, in any spelling."""
    env: Annotated[
        tuple[EnvVar, ...],
        Field(
            strict=False,
            max_length=128,
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    """Environment variables of the engine."""

    @property
    def devices(self) -> int:
        """Devices of one worker."""
        return self.tensor_parallel_size * self.data_parallel_size


CelExpression = Annotated[str, Field(min_length=1, max_length=10_240, pattern=TEXT)]
"""Of a length that Kubernetes takes."""


class DeviceClaims(Section):
    """Devices by Dynamic Resource Allocation: some of a DeviceClass, or what an object of Kubernetes asks for."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="className",
            cel="[has(self.className), has(self.resourceClaimTemplateName), has(self.resourceClaimName)]"
            ".filter(given, given).size() == 1",
            message="must be given, or resourceClaimTemplateName or resourceClaimName: exactly one of the three",
            holds=lambda claims: [claims.class_name, *claims.references].count(None) == 2,
        ),
        Rule(
            field="count",
            cel="has(self.className) || !has(self.count)",
            message="must not be given without className: the object that is named says how many",
            holds=lambda claims: claims.class_name is not None or claims.count is None,
        ),
        Rule(
            field="selectors",
            cel="has(self.className) || size(self.selectors) == 0",
            message="must not be given without className: the object that is named says which",
            holds=lambda claims: claims.class_name is not None or not claims.selectors,
        ),
    )

    class_name: ObjectName | None = None
    """Name of a DeviceClass, of which each worker gets devices. Default: none."""
    count: Annotated[int, Field(ge=1, le=MAX_CLAIMED)] | None = None
    """Devices of one worker. Default: tensorParallelSize times dataParallelSize."""
    selectors: Annotated[tuple[CelExpression, ...], Field(strict=False, max_length=32)] = ()
    """CEL expressions that each device must fulfil besides those of its class, as in a ResourceClaim. Default: none."""
    resource_claim_template_name: ObjectName | None = None
    """Name of a ResourceClaimTemplate in the pool's namespace; each worker gets a claim of it. Default: none."""
    resource_claim_name: ObjectName | None = None
    """Name of a ResourceClaim in the pool's namespace, whose devices all workers share. Default: none."""

    @property
    def references(self) -> tuple[str | None, str | None]:
        """The object that is named instead of a class: a template, or a claim."""
        return self.resource_claim_template_name, self.resource_claim_name


class DeviceSpec(Section):
    """The devices a worker runs on; all of one kind."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="claims",
            cel="!has(self.claims) || !has(self.resource) || self.resource == ''",
            message="must not be given together with resource, unless that is empty (an engine on a CPU): set "
            "resource to null",
            holds=lambda device: device.claims is None or not device.resource,
        ),
        Rule(
            field="memoryMiB",
            cel="has(self.memoryMiB) || has(self.claims) && !has(self.claims.resourceClaimName)",
            message="must be a whole number from 1 to 16777216, unless claims name a class or a template",
            holds=lambda device: (
                device.memory_mib is not None
                or (device.claims is not None and device.claims.resource_claim_name is None)
            ),
        ),
    )

    resource: Annotated[str, Field(max_length=253, pattern=RESOURCE)] | None = None
    """Kubernetes resource of the device; empty for a CPU. Default: nvidia.com/gpu, or none where claims are given."""
    claims: DeviceClaims | None = None
    """Devices by Dynamic Resource Allocation (resource.k8s.io/v1) instead of a resource. Default: none."""
    memory_mib: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Memory of one device, in MiB. Default: of a class or template in claims, what the ResourceSlices tell."""
    activation_mib: MiB = 2048
    """Memory set aside for activations on each device, in MiB."""
    floor_mib: MiB = 1500
    """Memory never touched on each device, in MiB."""

    @property
    def resource_name(self) -> str:
        """The Kubernetes resource that is asked for, "" for none."""
        default = "" if self.claims else NVIDIA
        return default if self.resource is None else self.resource

    @property
    def is_cpu(self) -> bool:
        """Whether the engine runs on a CPU, whatever is claimed for it."""
        return self.resource == ""
