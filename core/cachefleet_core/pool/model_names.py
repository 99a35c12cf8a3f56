"""Which namespace a model name belongs to, where pools of several declare it. Pure: all who see the same pools agree.

A name that is asked for without its namespace belongs to the namespace of the pool that had a ready worker first, as
its status says, for as long as that pool exists, also while its spec cannot be read; of pools in files the control
plane keeps those times itself. Among pools that never had one the oldest has it, and in files, which know no ages, the
one declared first. "namespace/model" is how that namespace's model is asked for, and may be a name that another pool
declares: it then belongs to the older of both, or to whom a rule for it names.

Names of adapters belong to namespaces in the same way, among themselves; where a model has the name, it is the model's.
So do aliases, which give way to both; within its namespace several models may have one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cachefleet_core.pool.section import DNS_LABEL, MODEL_NAME, PATTERN_WORDS
from cachefleet_core.pool.spec import PrefixCachePool

OTHERS: Final = "*"
"""In rules: every name that has no rule of its own."""
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
"""As the API server writes all times, so that they sort as text."""

NameRules = Mapping[str, tuple[str, ...]]
"""Model names, and the namespaces that may have them unqualified; a name without a rule is free for all."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One pool's claim to the name of its model."""

    namespace: str
    model: str
    pool: str
    """As "namespace/name"."""
    first_ready: str = ""
    """When it first had a ready worker; "" where it never had one, or nobody recorded it."""
    created: str = ""
    place: int = 0
    """In the order of declaration."""

    @property
    def age(self) -> tuple[bool, str, bool, str, int, str]:
        """Smaller for the pool whose claim goes first."""
        return not self.first_ready, self.first_ready, not self.created, self.created, self.place, self.pool


@dataclass(frozen=True, slots=True)
class NameConflict:
    """Why a pool's model is not asked for by its name alone; ``owner`` is the pool that has it, "" where none may."""

    owner: str = ""
    nameless: bool = False
    """Whether "namespace/model" is not its name either, so that nobody can ask for the model."""


class ModelNames:
    """The owners of all model names that some pools declare."""

    def __init__(self, claims: Iterable[Claim], rules: NameRules | None = None) -> None:
        self._rules = rules or {}
        self._fleets: dict[tuple[str, str], Claim] = {}
        self._owners: dict[str, Claim] = {}
        for claim in sorted(claims, key=lambda one: one.age):
            self._fleets.setdefault((claim.namespace, claim.model), claim)
            if self._allowed(claim):
                self._owners.setdefault(claim.model, claim)

    def resolve(self, asked: str) -> tuple[str, str] | None:
        """Namespace and model that a name means, qualified or not; None where it means none."""
        owner = self.owner(asked)
        return None if owner is None else (owner.namespace, owner.model)

    def shown(self, namespace: str, model: str) -> str:
        """The shortest name by which a namespace's model is asked for."""
        return model if self.conflict(namespace, model) is None else f"{namespace}/{model}"

    def conflict(self, namespace: str, model: str) -> NameConflict | None:
        """Why a namespace's model is not asked for by its name alone; None where it is."""
        if self.resolve(model) == (namespace, model):
            return None
        owner, nameless = self.owner(model), self.resolve(f"{namespace}/{model}") != (namespace, model)
        return NameConflict(owner.pool if owner else "", nameless)

    def owner(self, asked: str) -> Claim | None:
        """The claim that a name means: of who declares it and whose model is qualified by it, whom its own rule names,
        else the older.
        """
        either = [claim for claim in (self._owners.get(asked), self._qualified(asked)) if claim is not None]
        named = self._rules.get(asked)
        allowed = (claim for claim in either if named is None or claim.namespace in named)
        return min(allowed, key=lambda one: one.age, default=None)

    def _qualified(self, asked: str) -> Claim | None:
        namespace, slash, model = asked.partition("/")
        return self._fleets.get((namespace, model)) if slash else None

    def _allowed(self, claim: Claim) -> bool:
        named = self._rules.get(claim.model, self._rules.get(OTHERS))
        return named is None or claim.namespace in named


def claim_of(pool: PrefixCachePool, place: int = 0) -> Claim:
    """The claim of a pool to the name of its model."""
    return Claim(
        namespace=pool.metadata.namespace,
        model=pool.spec.model.name,
        pool=pool.key,
        first_ready=(pool.status.first_ready_time if pool.status else None) or "",
        created=pool.metadata.creation_timestamp,
        place=place,
    )


def adapter_claims(pool: PrefixCachePool, place: int = 0) -> list[Claim]:
    """The claims of a pool to the names of its model's adapters."""
    own = claim_of(pool, place)
    return [replace(own, model=adapter.name) for adapter in pool.spec.model.adapters]


def alias_claims(pool: PrefixCachePool, place: int = 0) -> list[Claim]:
    """The claims of a pool to its model's aliases, patterns by their text; none of a pool that takes no requests."""
    own, model = claim_of(pool, place), pool.spec.model
    return [replace(own, model=alias) for alias in model.aliases] if model.alias_weight else []


def claim_in(document: Mapping[str, Any]) -> Claim | None:
    """The claim of a pool whose manifest may be unreadable otherwise; None where it has no names."""
    metadata, model = _mapping(document.get("metadata")), _mapping(_mapping(document.get("spec")).get("model"))
    namespace, pool, name = _text(metadata, "namespace"), _text(metadata, "name"), _text(model, "name")
    if not (namespace and pool and re.fullmatch(MODEL_NAME, name)):
        return None
    first_ready = claim_status(document).get("firstReadyTime", "")
    return Claim(namespace, name, f"{namespace}/{pool}", first_ready, _text(metadata, "creationTimestamp"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(mapping: Mapping[str, Any], name: str) -> str:
    value = mapping.get(name)
    return value if isinstance(value, str) else ""


def rivals(one: Claim, other: Claim) -> bool:
    """Whether the claims of two pools bear on each other: also where one's name is how the other is qualified."""
    names = {one.model, f"{one.namespace}/{one.model}"}, {other.model, f"{other.namespace}/{other.model}"}
    return bool(names[0] & names[1])


def claim_status(document: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a pool's status that a claim rests on; the rest may be of another version of the program."""
    status = document.get("status")
    time = status.get("firstReadyTime") if isinstance(status, Mapping) else None
    return {"firstReadyTime": time} if isinstance(time, str) and _TIME.fullmatch(time) else {}


def parse_rules(text: str) -> dict[str, tuple[str, ...]]:
    """Rules from JSON such as ``{"qwen": ["team-a"], "*": ["platform"]}``; none from "". ValueError."""
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(given, dict) or not all(map(_namespaces, given.values())):
        words = PATTERN_WORDS[DNS_LABEL]
        raise ValueError(f'must be a mapping of model names to lists of namespaces ({words}), {{"qwen": ["team-a"]}}')
    return {name: tuple(namespaces) for name, namespaces in given.items()}


def _namespaces(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and re.fullmatch(DNS_LABEL, one) for one in value)
