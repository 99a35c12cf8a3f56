"""Cache of block keyers by fleet, contract, salt and adapter: making one costs more than keying a short prompt."""

from __future__ import annotations

from typing import Final

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.tenancy import fleet_index_key
from cachefleet_runtime.lru import LruMap

MAX_KEYERS: Final = 4096

FleetName = tuple[str, str]
"""Namespace and model name."""


class Keyers:
    """The MAX_KEYERS most recently used keyers; ``index_key`` is the one that every fleet's is made from."""

    def __init__(self, index_key: bytes, make: type[BlockKeyer] = BlockKeyer) -> None:
        self._index_key = index_key
        self._make = make
        self._keyers: LruMap[tuple[FleetName, IndexContract, str, str], BlockKeyer] = LruMap(MAX_KEYERS)

    def get(self, fleet: FleetName, contract: IndexContract, *, salt: str, lora: str) -> BlockKeyer:
        """The keyer of a fleet's namespace, made where it is not cached."""
        name = (fleet, contract, salt, lora)
        keyer = self._keyers.use(name)
        if keyer is None:
            index_key = fleet_index_key(self._index_key, *fleet)
            namespace = Namespace(contract=contract.fingerprint(), salt=salt, lora=lora)
            keyer = self._make(index_key, namespace, contract.block_size, contract.lookahead)
            self._keyers.put(name, keyer)
        return keyer
