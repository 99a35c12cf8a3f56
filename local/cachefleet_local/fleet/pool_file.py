"""The pools of a file, checked as far as they can be without a machine to run them on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cachefleet_core.pool.spec import DEFAULT_CONTROL_PLANE, PrefixCachePool, parse_pools
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.machine import check_budgets, check_sources


def check(pools: Sequence[PrefixCachePool]) -> None:
    """Check all sources and budgets. FailureError with one line for each that is wrong or does not fit."""
    if lines := check_sources(pools) + check_budgets(pools):
        raise FailureError(lines, Exit.BAD_INPUT)


def read_pools(pool_file: Path) -> list[PrefixCachePool]:
    """The pools of a file, valid and within their budgets. FailureError with one line for each problem."""
    try:
        pools = parse_pools(pool_file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise FailureError([f"cannot read {pool_file}: {_reason(error)}"], Exit.BAD_INPUT) from error
    except PoolError as error:
        raise FailureError([f"{pool_file}: {problem}" for problem in error.problems], Exit.BAD_INPUT) from error
    check(pools)
    return pools


def control_plane_of(pools: Sequence[PrefixCachePool]) -> str:
    """Name of the one control plane that a fleet on one machine runs. FailureError where the pools name several."""
    first, *others = sorted({pool.spec.control_plane for pool in pools}) or [DEFAULT_CONTROL_PLANE]
    if others:
        words = "a fleet on one machine runs one control plane: give all pools one name, or a file of their own to each"
        told = (f"{pool.key}: spec.controlPlane is {pool.spec.control_plane}" for pool in pools)
        raise FailureError([f"{line}; {words}" for line in told], Exit.BAD_INPUT)
    return first


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "is not UTF-8 text"
