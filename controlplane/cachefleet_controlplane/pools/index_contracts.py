"""The index contract in force in a pool, and how a worker's contract differs from it.

The pool's declaration comes first: block size, weights and (where it names one) revision must be as declared. Among
contracts that fit it, the first one announced is in force as long as it fits and some worker announces it, or nobody
announces a fitting one. So editing a pool does not exclude its workers before the first new worker is there, and once
all of them came back with another contract, that one is in force. Only workers that the pool source lists have a say.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_core.index_contract import Difference, IndexContract, differences
from cachefleet_core.pool.spec import PoolSpec


def undeclared(spec: PoolSpec, contract: IndexContract) -> tuple[Difference, ...]:
    """Every field in which a contract differs from what the pool declares."""
    weights, revision = spec.model.contract_names
    declared = [("weights", weights, contract.weights), ("block_size", spec.block_size, contract.block_size)]
    if revision:
        declared.append(("revision", revision, contract.revision))
    return tuple(Difference(name, str(ours), str(theirs)) for name, ours, theirs in declared if ours != theirs)


def in_force(spec: PoolSpec, current: IndexContract | None, announced: Iterable[IndexContract]) -> IndexContract | None:
    """The contract in force, given the one so far and those that workers announce, oldest first."""
    known = list(announced)
    if current is not None and current in known and not undeclared(spec, current):
        return current
    return next((contract for contract in known if not undeclared(spec, contract)), current)


def contract_differences(
    spec: PoolSpec, current: IndexContract | None, contract: IndexContract
) -> tuple[Difference, ...]:
    """The fields in which a worker's contract differs from its pool's; empty where its blocks are usable."""
    if current is not None:
        return () if contract == current else tuple(differences(current, contract))
    return undeclared(spec, contract)
