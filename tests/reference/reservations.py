"""Blocks that this replica's requests in flight will fill on one worker, shared blocks counted once. Pure.

A worker's report shows what its requests use now; what they will still fill, and what was sent too late to be seen,
only this replica knows. For each request it is known how many blocks it needs and which of them, by their keys, may be
shared. A request shares only blocks that are certainly there when it arrives: those that the index says are held, and
those of a request that has its first token. All others it has alone: two equal prompts computed at the same time fill
their blocks twice.

Keys commit to all before them, so among chains in byte order each lies beside those it shares most with, and the number
of distinct blocks is the sum of their lengths less what each has in common with the one before it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's blocks: those of ``chain`` (packed keys), which others may share, and ``alone`` others."""

    chain: bytes
    alone: int


class BlockReservations:
    """All reservations on one worker; each change takes a few comparisons of chains, however long they are."""

    def __init__(self) -> None:
        self._chains: list[bytes] = []
        self._common = 0
        self._alone = 0

    @property
    def blocks(self) -> int:
        """Distinct blocks that all reservations need."""
        return self._common + self._alone

    def take(self, keys: bytes, *, blocks: int, held: int) -> Reservation:
        """Reserve ``blocks``; others may share those of ``keys``, of which the first ``held`` are there already."""
        there = min(max(held, self._longest_shared(keys)), len(keys) // KEY_BYTES, blocks) if keys else 0
        reservation = Reservation(keys[: KEY_BYTES * there], blocks - there)
        self._alone += reservation.alone
        self._insert(reservation.chain)
        return reservation

    def computed(self, reservation: Reservation, keys: bytes) -> None:
        """All of ``keys``, as given to ``take``, are in the cache now: others may share them."""
        if not keys:
            return
        new = len(keys) // KEY_BYTES - self._longest_shared(keys)
        self._remove(reservation.chain)
        reservation.chain, reservation.alone = keys, reservation.alone - new
        self._alone -= new
        self._insert(keys)

    def drop(self, reservation: Reservation) -> None:
        """End a reservation: its request is over."""
        self._alone -= reservation.alone
        self._remove(reservation.chain)

    def _longest_shared(self, keys: bytes) -> int:
        """The longest prefix, in blocks, that ``keys`` share with any chain."""
        place = bisect_left(self._chains, keys)
        return max((shared_blocks(keys, self._chains[i]) for i in (place - 1, place) if self._has(i)), default=0)

    def _insert(self, chain: bytes) -> None:
        if chain:
            place = bisect_left(self._chains, chain)
            self._chains.insert(place, chain)
            self._common += self._distinct(place)

    def _remove(self, chain: bytes) -> None:
        if chain:
            place = bisect_left(self._chains, chain)
            self._common -= self._distinct(place)
            del self._chains[place]

    def _distinct(self, place: int) -> int:
        """Blocks that only the chain at ``place`` has: in sorted order it shares most with one of its neighbours."""
        chain = self._chains[place]
        shared = 0
        for near in (place - 1, place + 1):
            if self._has(near):
                shared = shared_blocks(chain, self._chains[near], at_least=shared)
        return len(chain) // KEY_BYTES - shared

    def _has(self, place: int) -> bool:
        return 0 <= place < len(self._chains)


def shared_blocks(a: bytes, b: bytes, *, at_least: int = 0) -> int:
    """Length in blocks of the common prefix of two packed chains, or ``at_least`` where it is not longer.

    A key commits to all before it: equal keys at a position mean equal keys before it, so the last is looked at first.
    """
    low, high = at_least, min(len(a), len(b)) // KEY_BYTES
    if low >= high:
        return low
    mine, theirs = memoryview(a).cast("Q"), memoryview(b).cast("Q")
    middle = high - 1
    while low < high:
        if mine[middle] == theirs[middle]:
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return low
