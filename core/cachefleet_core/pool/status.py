"""The status of a pool, which the operator writes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field

from cachefleet_core.pool.section import BY_NAME, FREE, FreeMap, Section

MAX_WORKERS: Final = 64
"""Workers listed in a status; of further ones only the count is written."""

Text = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class Observed(Section):
    """A part of status: what a newer operator wrote beyond it is passed over."""

    model_config = ConfigDict(extra="ignore")


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Observed):
    """One observation, as all of Kubernetes writes them."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Name of the condition."""
    status: Annotated[ConditionStatus, Field(strict=False)]
    """Whether it holds."""
    observed_generation: Count | None = None
    """Generation of the pool the condition was observed at."""
    last_transition_time: Time
    """When status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why, in one word for programs."""
    message: Annotated[str, Field(max_length=32_768)]
    """Why, in a sentence for people."""


class BudgetStatus(Observed):
    """The budget of one device."""

    requested_mib: Annotated[Count | None, Field(alias="requestedMiB")] = None
    """Budget asked for, in MiB."""
    kv_cache_mib: Annotated[Count | None, Field(alias="kvCacheMiB")] = None
    """KV cache of the device, in MiB."""
    admitted_mib: Annotated[Count | None, Field(alias="admittedMiB")] = None
    """Budget in force, in MiB."""
    used_mib: Annotated[Count | None, Field(alias="usedMiB")] = None
    """Idle cached blocks, in MiB, on the device that holds most."""
    blocks: Count | None = None
    """Budget in force, in blocks."""


class AdmittedSpec(Observed):
    """The spec that was admitted last: control plane and workers follow it, whatever the pool says since."""

    uid: Annotated[str, Field(max_length=64)]
    """The pool it was admitted for; a copy of another one, from a backup for instance, is not followed."""
    generation: Count
    """Generation of the pool it is of; an older one than the pool's where the present spec is refused."""
    kv_bytes_per_token: Count | None = None
    """Bytes of a token as workers reported them, by which the next spec is judged while none reports."""
    device_memory_mib: Count | None = None
    """Memory of a device as ResourceSlices told it, which holds until device.claims changes; it is in the spec, too."""
    spec: Annotated[FreeMap, Field(json_schema_extra={**FREE, "x-kubernetes-map-type": "atomic"})]
    """The spec without what concerns the pods alone: podTemplate, engine.env, and warm prefixes above 512 KiB."""


class HitRatioStatus(Observed):
    """The measured hit ratio."""

    value: Annotated[str, Field(max_length=16)]
    """Share of prompt tokens served from the cache, rounded to two places."""
    sampled_at: Time
    """When it was first measured as that; the same value later changes nothing."""


class WorkerStatus(Observed):
    """One worker."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of its pod."""
    epoch: Text | None = None
    """Life of its engine's cache; a new one begins empty."""
    state: Annotated[str, Field(max_length=64)] | None = None
    """Where it is in its life: starting, warming, ready, draining or failed; or why its engine serves nothing: asleep,
    paused, updating_weights or stuck.
    """
    warmed: bool | None = None
    """Whether all warm prefixes are cached."""
    held_blocks: Count | None = None
    """Blocks it holds."""


UNOBSERVED: Final = -1
"""The generation that a pool's status is about before the operator has seen it: no pool ever has it."""


class PoolStatus(Observed):
    """The observed state of a pool."""

    observed_generation: Annotated[int, Field(ge=UNOBSERVED)] | None = None
    """Generation of the pool this status is about; -1 before the operator has seen it."""
    conditions: (
        Annotated[
            tuple[Condition, ...],
            Field(
                strict=False,
                max_length=32,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            ),
        ]
        | None
    ) = None
    """Ready, ConfigValid, BudgetAdmitted, WorkersAvailable and others."""
    replicas: Count | None = None
    """Workers there are."""
    ready_replicas: Count | None = None
    """Workers that take traffic."""
    first_ready_time: Time | None = None
    """When it first had a ready worker. The name of a model belongs to the pool that had one first."""
    selector: Text | None = None
    """Selector of the workers' pods, for the scale subresource."""
    admitted: AdmittedSpec | None = None
    """The spec in force."""
    budget: BudgetStatus | None = None
    """The budget of each device."""
    hit_ratio: HitRatioStatus | None = None
    """The measured hit ratio."""
    contract: Annotated[str, Field(max_length=128)] | None = None
    """Fingerprint of the index contract all workers share."""
    workers: (
        Annotated[
            tuple[WorkerStatus, ...],
            Field(
                strict=False,
                max_length=MAX_WORKERS,
                json_schema_extra=BY_NAME,
            ),
        ]
        | None
    ) = None
    """The workers, at most 64."""
    workers_omitted: Count | None = None
    """Workers beyond those listed."""
    foreign_pods: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
            Field(strict=False, max_length=MAX_WORKERS, json_schema_extra={"x-kubernetes-list-type": "set"}),
        ]
        | None
    ) = None
    """Pods with the pool's label that are not its own, at most 64. They get no requests."""
