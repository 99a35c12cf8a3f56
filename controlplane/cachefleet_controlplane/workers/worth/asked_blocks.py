"""How much of what workers evict is asked for again: a sample of a pool's blocks, in the order they were asked for.

It remembers as many blocks as twice the pool's caches hold. One that is asked for again, and that no worker holds, was
evicted, and would have been served by a cache that kept it for as long again. The share of such blocks in those that
workers store anew, and evict others for, is what an evicted block is worth. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES

SAMPLE: Final = 128
"""One block in so many is looked at, and fewer in a pool of which MAX_BLOCKS would be too few."""
MAX_BLOCKS: Final = 8192
DOUBT: Final = 16
"""Blocks of a pool of which nothing is known that are taken to have been asked for again."""
MEMORY: Final = 2048
"""Stored blocks after which the older ones count half."""
_MARKS: Final = bytes(byte % SAMPLE == 0 for byte in range(256))


@dataclass(slots=True)
class AskedBlocks:
    """Of one pool."""

    _asked: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    _stored: float = 0.0
    _again: float = 0.0

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def worth(self) -> float:
        """Share of evicted blocks that are asked for again; 1 where nothing is known."""
        return (self._again + DOUBT) / (self._stored + DOUBT)

    def ask(self, keys: bytes, *, held: int, found: int, evicting: bool, room: int) -> None:
        """A prompt goes to a worker with ``held`` of its blocks; none of the pool's has more than ``found``.

        ``evicting``: the others have to take the place of cached ones. ``room`` is how many blocks the pool's workers
        have in all.
        """
        asked, counted = self._asked, held if evicting else len(keys)
        for place in _sampled(keys, room):
            key = keys[KEY_BYTES * place : KEY_BYTES * place + KEY_BYTES]
            known = key in asked
            if place >= counted:
                self._count(again=known and place >= found)
            if known:
                asked.move_to_end(key)
            else:
                asked[key] = None
        most = min(MAX_BLOCKS, 2 * room // SAMPLE + 1)
        while len(asked) > most:
            asked.popitem(last=False)

    def _count(self, *, again: bool) -> None:
        if self._stored >= MEMORY:
            self._stored /= 2
            self._again /= 2
        self._stored += 1
        self._again += again


def _sampled(keys: bytes, room: int) -> list[int]:
    """Places of the blocks to look at."""
    marks = keys[3::KEY_BYTES].translate(_MARKS)
    places, place = [], marks.find(1)
    while place >= 0:
        places.append(place)
        place = marks.find(1, place + 1)
    fewer = 2 * room // (SAMPLE * MAX_BLOCKS) + 1
    return places if fewer == 1 else [place for place in places if not keys[KEY_BYTES * place + 4] % fewer]
