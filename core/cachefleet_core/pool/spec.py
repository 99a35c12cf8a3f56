"""PrefixCachePool v1alpha1, the resource that a platform engineer declares, and its readers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from cachefleet_core.pool.manifest import documents
from cachefleet_core.pool.policy import (
    AdmissionSpec,
    ContinuationSpec,
    HitSpec,
    InferencePoolSpec,
    Isolation,
    PreemptionSpec,
    PrefixCacheSpec,
    PricingSpec,
    RolloutSpec,
    TenancySpec,
)
from cachefleet_core.pool.section import FreeMap, Label, PoolName, Rule, Section, alias
from cachefleet_core.pool.status import PoolStatus
from cachefleet_core.pool.validation_problems import PoolError, Problem, preview, problems_of
from cachefleet_core.pool.worker_spec import (
    CPU_BLOCK_SIZE,
    GPU_BLOCK_SIZE,
    MAX_CLAIMED,
    DeviceSpec,
    EngineSpec,
    KvRole,
    ModelSpec,
    PodIdentity,
    Role,
)

GROUP: Final = "cachefleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "PrefixCachePool"
PLURAL: Final = "prefixcachepools"
DEFAULT_CONTROL_PLANE: Final = "default"
"""Name of the control plane that serves pools which name none."""


class PoolSpec(Section):
    """What is wanted of a pool: one model, one role, one kind of device."""

    immutable: ClassVar[tuple[str, ...]] = ("control_plane",)
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="engine.kvTransfer",
            cel="self.role == 'Both' || has(self.engine.kvTransfer.kv_connector)",
            message="must name a kv_connector when role is Prefill or Decode",
            holds=lambda spec: spec.role == Role.BOTH or spec.engine.kv_transfer.kv_connector is not None,
        ),
        Rule(
            field="engine.kvTransfer.kv_role",
            cel="self.role != 'Prefill' || !has(self.engine.kvTransfer.kv_role) "
            "|| self.engine.kvTransfer.kv_role != 'kv_consumer'",
            message="must be kv_producer or kv_both when role is Prefill: it hands prompts' blocks to Decode",
            holds=lambda spec: spec.role != Role.PREFILL or spec.engine.kv_transfer.kv_role != KvRole.CONSUMER,
        ),
        Rule(
            field="engine.kvTransfer.kv_role",
            cel="self.role != 'Decode' || !has(self.engine.kvTransfer.kv_role) "
            "|| self.engine.kvTransfer.kv_role != 'kv_producer'",
            message="must be kv_consumer or kv_both when role is Decode: it takes prompts' blocks from Prefill",
            holds=lambda spec: spec.role != Role.DECODE or spec.engine.kv_transfer.kv_role != KvRole.PRODUCER,
        ),
        Rule(
            field="engine.blockSize",
            cel="!has(self.device.resource) || self.device.resource != '' || !has(self.engine.blockSize) "
            "|| self.engine.blockSize % 32 == 0",
            message="must be a multiple of 32 on a CPU",
            holds=lambda spec: not spec.device.is_cpu or spec.block_size % CPU_BLOCK_SIZE == 0,
        ),
        Rule(
            field="device.claims.count",
            cel="!has(self.device.claims) || !has(self.device.claims.className) "
            "|| (has(self.device.claims.count) ? self.device.claims.count "
            ": self.engine.tensorParallelSize * self.engine.dataParallelSize) <= 32 "
            "&& (!has(self.device.claims.count) "
            "|| self.device.claims.count >= self.engine.tensorParallelSize * self.engine.dataParallelSize)",
            message="must be at least engine.tensorParallelSize times engine.dataParallelSize, its default, and at "
            f"most {MAX_CLAIMED}",
            holds=lambda spec: (
                spec.device.claims is None
                or spec.device.claims.class_name is None
                or spec.engine.devices <= (spec.device.claims.count or spec.engine.devices) <= MAX_CLAIMED
            ),
        ),
        Rule(
            field="inferencePool.enabled",
            cel="self.role != 'Prefill' || !self.inferencePool.enabled",
            message="must be false when role is Prefill: gateways send whole requests",
            holds=lambda spec: spec.role != Role.PREFILL or not spec.inference_pool.enabled,
        ),
        Rule(
            field="prefixCache.warmPrefixes",
            cel="self.tenancy.isolation != 'PerTenant' || self.prefixCache.warmPrefixes.all(p, size(p.tenants) > 0)",
            message="must each name tenants when tenancy.isolation is PerTenant",
            holds=lambda spec: (
                spec.tenancy.isolation != Isolation.PER_TENANT
                or all(prefix.tenants for prefix in spec.prefix_cache.warm_prefixes)
            ),
        ),
    )

    model: ModelSpec
    """The model all workers of the pool serve."""
    role: Annotated[Role, Field(strict=False)] = Role.BOTH
    """Both serves whole requests; Prefill and Decode split them and need engine.kvTransfer."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Workers wanted. Leave it out of the manifest when an autoscaler owns it."""
    control_plane: Label = DEFAULT_CONTROL_PLANE
    """Name of the control plane that its workers report to and that serves its model. Immutable."""
    engine: EngineSpec
    """The vLLM engine of each worker."""
    device: DeviceSpec
    """The devices a worker runs on; all of one kind."""
    prefix_cache: PrefixCacheSpec = PrefixCacheSpec()
    """The prefix cache of each worker."""
    hit: HitSpec = HitSpec()
    """When a cache hit is good enough."""
    preemption: PreemptionSpec = PreemptionSpec()
    """What becomes of preempted requests."""
    admission: AdmissionSpec = AdmissionSpec()
    """When a worker is given more work."""
    tenancy: TenancySpec = TenancySpec()
    """Who shares cached blocks with whom."""
    pricing: PricingSpec = PricingSpec()
    """What tokens and devices cost, for the account of tenants."""
    continuation: ContinuationSpec = ContinuationSpec()
    """How later turns of a conversation find the blocks of earlier ones."""
    rollout: RolloutSpec = RolloutSpec()
    """How workers are replaced."""
    inference_pool: InferencePoolSpec = InferencePoolSpec()
    """The pool in a cluster with an inference gateway."""
    pod_identity: Annotated[PodIdentity, Field(strict=False)] | None = None
    """Who chooses user, group, fsGroup and seccomp profile of its pods: Fixed (65532, RuntimeDefault) or Cluster, which
    fills them in as OpenShift does. Default: what the operator takes for its cluster."""
    pod_template: FreeMap = Field(default={})
    """Narrow strategic patch of the worker's pod: nodeSelector, tolerations, volumes, annotations; its list remove
    names, by paths, what the pod is to be without."""

    @property
    def block_size(self) -> int:
        """Tokens in one block, the default filled in."""
        return self.engine.block_size or (CPU_BLOCK_SIZE if self.device.is_cpu else GPU_BLOCK_SIZE)


class ObjectMeta(Section):
    """The part of a Kubernetes object's metadata that is read here."""

    model_config = ConfigDict(extra="ignore")

    name: PoolName
    """Name of the pool, unique in its namespace."""
    namespace: Label = "default"
    """Namespace of the pool."""
    uid: str = ""
    """Identity of this pool among all of its name."""
    generation: int = 1
    """Counts the changes of spec."""
    creation_timestamp: str = ""
    """When it was made; empty in a file."""
    labels: dict[str, str] = Field(default={})
    """Labels of the pool."""
    annotations: dict[str, str] = Field(default={})
    """Annotations of the pool."""


class PrefixCachePool(Section):
    """The prefix caches of a fleet of vLLM workers, as one managed resource."""

    api_version: Literal["cachefleet.io/v1alpha1"]
    """Version of this schema."""
    kind: Literal["PrefixCachePool"]
    """Kind of the object."""
    metadata: ObjectMeta
    """Name and namespace."""
    spec: PoolSpec
    """What is wanted."""
    status: PoolStatus | None = None
    """What is; written by the operator, not read from a file."""

    @property
    def key(self) -> str:
        """Namespace and name, joined by a slash."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


def read_pool(document: Any) -> PrefixCachePool:
    """The pool that a decoded manifest describes. PoolError with every problem where it describes none."""
    pool, problems = problems_of(PrefixCachePool, document)
    if pool is None:
        raise PoolError(problems)
    return pool


def parse_pools(text: str) -> list[PrefixCachePool]:
    """The pools of a YAML file of one or several documents. PoolError with every problem of every document."""
    pools: list[PrefixCachePool] = []
    problems: list[Problem] = []
    given = documents(text)
    for number, document in given:
        pool, found = problems_of(PrefixCachePool, document, where=f"document {number}" if len(given) > 1 else "")
        problems += found
        pools += [pool] if pool else []
    problems += _duplicates(pools)
    if problems:
        raise PoolError(problems)
    return pools


def changes_refused(old: PrefixCachePool, new: PrefixCachePool) -> list[Problem]:
    """The changes from one version of a pool to the next that the API server refuses."""
    sections = (("spec", old.spec, new.spec), ("spec.model", old.spec.model, new.spec.model))
    return [
        Problem(f"{where}.{alias(field)}", preview(getattr(after, field)), "must not change in the life of a pool")
        for where, before, after in sections
        for field in after.immutable
        if getattr(before, field) != getattr(after, field)
    ]


def _duplicates(pools: list[PrefixCachePool]) -> list[Problem]:
    seen: set[str] = set()
    problems = []
    for pool in pools:
        if pool.key in seen:
            where = f"must be unique in namespace {pool.metadata.namespace}"
            problems.append(Problem("metadata.name", preview(pool.metadata.name), where))
        seen.add(pool.key)
    return problems
