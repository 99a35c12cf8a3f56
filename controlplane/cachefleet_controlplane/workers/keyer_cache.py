"""Block keyers in use, by model contract, salt and adapter: making one costs more than using it on a short prompt."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from cachefleet_core.blocks import BlockKeyer, Namespace
from cachefleet_core.contract import IndexContract

MAX_KEYERS: Final = 4096


class Keyers:
    """The MAX_KEYERS most recently used keyers."""

    def __init__(self, index_key: bytes, make: type[BlockKeyer] = BlockKeyer) -> None:
        self._index_key = index_key
        self._make = make
        self._keyers: OrderedDict[Namespace, BlockKeyer] = OrderedDict()

    def get(self, contract: IndexContract, *, salt: str, lora: str) -> BlockKeyer:
        namespace = Namespace(contract=contract.fingerprint(), salt=salt, lora=lora)
        keyer = self._keyers.get(namespace)
        if keyer is None:
            keyer = self._keyers[namespace] = self._make(self._index_key, namespace, contract.block_size)
            if len(self._keyers) > MAX_KEYERS:
                self._keyers.popitem(last=False)
        self._keyers.move_to_end(namespace)
        return keyer
