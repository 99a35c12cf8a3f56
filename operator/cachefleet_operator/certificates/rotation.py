"""What is to be issued, trusted or retired now: from certificates and the time to a step (pure).

| state of the authority | time | step |
|---|---|---|
| one, current | in the last fifth of its life, or not yet valid | PREPARE: make the next, which only is trusted |
| current and next | all have had the next for ``spread``, or the current is not valid | PROMOTE: the next signs |
| with some before it | one has expired | RETIRE it |

A next one that is not yet valid counts as none. What is not yet valid was made while the operator's clock was ahead.

After PROMOTE every certificate is issued anew, as its issuer is not the current one. Clients trust all of them.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cachefleet_operator.certificates.certificate import Certificate, Pair

SKEW: Final = dt.timedelta(hours=1)
"""How long before it is made a certificate begins: clocks differ, those of two operators too."""
AUTHORITY_SHARE: Final = 5
"""An authority is renewed when this part of its life, a fifth, is left."""
SERVING_SHARE: Final = 3
"""A server's certificate is renewed when this part of its life, a third, is left."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long certificates are valid, and how long an authority is trusted before it signs."""

    authority: dt.timedelta
    serving: dt.timedelta
    spread: dt.timedelta


@dataclass(frozen=True, slots=True)
class Authorities:
    """The authority that signs, the one that will, and those that did; of the last the keys are not kept."""

    current: Pair
    next: Pair | None = None
    previous: tuple[Pair, ...] = ()

    @property
    def trusted(self) -> tuple[Pair, ...]:
        """All of them."""
        return (self.current, *((self.next,) if self.next else ()), *self.previous)

    @property
    def bundle(self) -> bytes:
        """What clients are given to trust, PEM."""
        return b"".join(pair.pem for pair in self.trusted)


class Step(StrEnum):
    """What to do about the authority now."""

    KEEP = "keep"
    PREPARE = "prepare"
    PROMOTE = "promote"
    RETIRE = "retire"


def step(authorities: Authorities, now: dt.datetime, lifetimes: Lifetimes, *, since: dt.datetime) -> Step:
    """The step that is due. ``since`` is when this operator began to write the bundle to whoever needs it."""
    current, following = authorities.current.certificate, authorities.next
    valid = current.begins <= now < current.ends
    if following is None or now < following.certificate.begins:
        if not valid or now >= current.ends - current.life / AUTHORITY_SHARE:
            return Step.PREPARE
    elif not valid or now >= max(since, following.certificate.begins + SKEW) + lifetimes.spread:
        return Step.PROMOTE
    return Step.RETIRE if any(now >= pair.certificate.ends for pair in authorities.previous) else Step.KEEP


def prepared(authorities: Authorities, made: Pair) -> Authorities:
    """With the next one."""
    return replace(authorities, next=made)


def promoted(authorities: Authorities) -> Authorities:
    """The next one signs; the present one is trusted until its end, and its key forgotten."""
    if authorities.next is None:
        raise ValueError("there is no next authority")
    past = replace(authorities.current, key_pem=b"")
    return Authorities(authorities.next, None, (past, *authorities.previous))


def retired(authorities: Authorities, now: dt.datetime) -> Authorities:
    """Without those that have expired."""
    kept = tuple(pair for pair in authorities.previous if now < pair.certificate.ends)
    return replace(authorities, previous=kept)


def reason_to_issue(found: Certificate | None, names: frozenset[str], authority: Certificate, now: dt.datetime) -> str:
    """Why a server's certificate is to be issued anew, "" where it is not."""
    if found is None:
        return "there is none that can be read"
    if found.issuer != authority.key:
        return "another authority signs now"
    if found.names != names:
        return "its names are others"
    if now < found.begins:
        return "it is not valid yet"
    if now >= found.ends - found.life / SERVING_SHARE:
        return "it expires"
    return ""


def end_of(now: dt.datetime, life: dt.timedelta, authority: Certificate) -> dt.datetime:
    """When a server's certificate made now ends: never after its authority."""
    return min(now + life, authority.ends)
