"""Cache of block keyers by contract, salt and adapter: making one costs more than keying a short prompt."""

from __future__ import annotations

from typing import Final

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.index_contract import IndexContract
from cachefleet_runtime.lru import LruMap

MAX_KEYERS: Final = 4096


class Keyers:
    """The MAX_KEYERS most recently used keyers."""

    def __init__(self, index_key: bytes, make: type[BlockKeyer] = BlockKeyer) -> None:
        self._index_key = index_key
        self._make = make
        self._keyers: LruMap[Namespace, BlockKeyer] = LruMap(MAX_KEYERS)

    def get(self, contract: IndexContract, *, salt: str, lora: str) -> BlockKeyer:
        """The keyer of a namespace, made where it is not cached."""
        namespace = Namespace(contract=contract.fingerprint(), salt=salt, lora=lora)
        keyer = self._keyers.use(namespace)
        if keyer is None:
            keyer = self._make(self._index_key, namespace, contract.block_size)
            self._keyers.put(namespace, keyer)
        return keyer
