"""Which index contract a pool goes by, and how a worker's differs from it.

The pool's declaration comes first: block size, weights and (where it names one) revision must be as declared. Among
contracts that fit it, the first one announced holds, for as long as it fits and some worker announces it, or nobody
announces a fitting one: editing a pool does not make its workers strangers before the first new worker is there, and
once all of them came back with another contract, that one holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_core.contract import Difference, IndexContract, differences
from cachefleet_core.pool.spec import PoolSpec


def undeclared(spec: PoolSpec, contract: IndexContract) -> tuple[Difference, ...]:
    """Every field in which a contract is not what the pool declares."""
    declared = [("weights", spec.model.source, contract.weights), ("block_size", spec.block_size, contract.block_size)]
    if spec.model.revision:
        declared.append(("revision", spec.model.revision, contract.revision))
    return tuple(Difference(name, str(ours), str(theirs)) for name, ours, theirs in declared if ours != theirs)


def in_force(spec: PoolSpec, current: IndexContract | None, announced: Iterable[IndexContract]) -> IndexContract | None:
    """The contract to go by, given the one so far and those that workers announce, oldest first."""
    fitting = [contract for contract in announced if not undeclared(spec, contract)]
    return current if current in fitting else next(iter(fitting), current)


def strangeness(spec: PoolSpec, current: IndexContract | None, contract: IndexContract) -> tuple[Difference, ...]:
    """Why a worker's blocks are not its pool's; empty where they are."""
    if current is not None:
        return tuple(differences(current, contract))
    return undeclared(spec, contract)
