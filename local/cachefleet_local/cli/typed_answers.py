"""Pools and workers in answers of the admin API, as the values that the control plane made them from.

Their types are imported with the first answer, so that commands start without them.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from cachefleet_local.cli_errors import FailureError

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.capacity_facts import CapacityFacts
    from cachefleet_core.fleet_status.pool_facts import PoolFacts
    from cachefleet_core.fleet_status.worker_facts import WorkerFacts

T = TypeVar("T")


def pools_of(answer: Mapping[str, Any]) -> Sequence[PoolFacts]:
    """The pools of a list. FailureError."""
    from cachefleet_core.fleet_status.pool_facts import PoolList

    return _decoded(answer, PoolList).items


def workers_of(answer: Mapping[str, Any]) -> Sequence[WorkerFacts]:
    """The workers of a list. FailureError."""
    from cachefleet_core.fleet_status.worker_facts import WorkerList

    return _decoded(answer, WorkerList).items


def capacity_of(item: Mapping[str, Any]) -> CapacityFacts:
    """What caches of another size would serve of one pool's requests. FailureError."""
    from cachefleet_core.fleet_status.capacity_facts import CapacityFacts

    return _decoded(item, CapacityFacts)


def pool_of(item: Mapping[str, Any]) -> PoolFacts:
    """One pool. FailureError."""
    from cachefleet_core.fleet_status.pool_facts import PoolFacts

    return _decoded(item, PoolFacts)


def worker_of(item: Mapping[str, Any]) -> WorkerFacts:
    """One worker. FailureError."""
    from cachefleet_core.fleet_status.worker_facts import WorkerFacts

    return _decoded(item, WorkerFacts)


def _decoded(answer: object, kind: type[T]) -> T:
    """Decoded JSON as a value of a type. FailureError, which names the field, where it is none."""
    import msgspec

    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise FailureError([f"the control plane's answer is no {kind.__name__}: {error}"]) from error
