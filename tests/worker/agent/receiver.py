"""What a control plane makes of the operations it is sent: a plain set of keys, to compare with the sender's."""

from __future__ import annotations

from collections.abc import Iterable

from cachefleet_core.block_keys import BlockKey, Tier
from cachefleet_core.report_frames import Cleared, Operation, Removed, Snapshot, Stored, decode_up, encode
from tests.reference.digest import Digest


class Receiver:
    def __init__(self) -> None:
        self.held: set[tuple[BlockKey, Tier]] = set()

    @property
    def keys(self) -> set[BlockKey]:
        return {key for key, tier in self.held if tier is Tier.DEVICE}

    @property
    def digest(self) -> int:
        digest = Digest()
        for key, tier in self.held:
            digest.add((key,), tier)
        return digest.value

    def apply(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            match operation:
                case Stored():
                    self.held |= {(key, Tier(operation.tier)) for key in operation.unpack()}
                case Removed():
                    self.held -= {(key, Tier(operation.tier)) for key in operation.unpack()}
                case Cleared():
                    self.held.clear()


def checked(chains: list[Stored]) -> list[Stored]:
    """The chains as they arrive, having passed the protocol's own checks; parents come first."""
    frame = decode_up(encode(Snapshot(sequence=0, part=0, last=True, chains=tuple(chains))))
    assert isinstance(frame, Snapshot)
    seen: set[tuple[int, Tier]] = set()
    every = {(key, chain.tier) for chain in frame.chains for key in chain.unpack()}
    for chain in frame.chains:
        parent = (chain.parent, chain.tier)
        assert parent not in every or parent in seen, "a chain came before its parent"
        keys = [(key, chain.tier) for key in chain.unpack()]
        assert not seen.intersection(keys), "a key came twice"
        seen.update(keys)
    return list(frame.chains)
