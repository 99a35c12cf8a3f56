"""A pool that is being written, and what became of each field that was read for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cachefleet_core.pool.section import MAX_POOL_NAME, MODEL_NAME
from cachefleet_core.pool.validation_problems import PoolError, Problem, preview
from cachefleet_core.pool.worker_spec import Role

ENGINE: Final = "engine"
"""Name of vLLM's container in a worker's pod."""
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


class Outcome(StrEnum):
    """What became of a field."""

    BECAME = "became"
    NOT_NEEDED = "not needed"
    NO_COUNTERPART = "no counterpart"


@dataclass(frozen=True, slots=True)
class Note:
    """What became of one field; ``text`` names fields of the pool or says why, and never shows a value."""

    source: str
    outcome: Outcome
    text: str


@dataclass(slots=True)
class PoolDraft:
    """One pool: where it comes from, its fields so far by their paths, notes on what was read."""

    origin: str
    name: str = ""
    namespace: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    variables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    utilization: float | None = None
    """Share of a device's memory that the engine may take."""
    devices: int | None = None
    """Devices that one worker asks for."""

    def put(self, path: str, value: Any) -> None:
        """Set a field of the spec by its path, such as ``engine.image``."""
        node = self.spec
        *parents, last = path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value

    def get(self, path: str) -> Any:
        """A field of the spec by its path; None where it is not set."""
        node: Any = self.spec
        for name in path.split("."):
            node = node.get(name) if isinstance(node, Mapping) else None
        return node

    def container(self) -> dict[str, Any]:
        """The engine's container in ``podTemplate``, made at its first use."""
        containers = self.spec.setdefault("podTemplate", {}).setdefault("spec", {}).setdefault("containers", [])
        ours = next((one for one in containers if one["name"] == ENGINE), None)
        if ours is None:
            ours = {"name": ENGINE}
            containers.insert(0, ours)
        return ours

    def append(self, path: str, values: list[Any]) -> None:
        """Add to a list of the spec."""
        self.put(path, [*(self.get(path) or []), *values])

    def note(self, source: str, outcome: Outcome, text: str) -> None:
        """Record what became of a field."""
        self.notes.append(Note(source.removeprefix("."), outcome, text))

    def became(self, source: str, text: str) -> None:
        """Record which field of the pool a field became."""
        self.note(source, Outcome.BECAME, text)

    def lacks(self, source: str, text: str) -> None:
        """Record that a field has no counterpart, and what to do instead."""
        self.note(source, Outcome.NO_COUNTERPART, text)

    def spares(self, source: str, text: str) -> None:
        """Record why a field is not needed."""
        self.note(source, Outcome.NOT_NEEDED, text)

    def lacking(self) -> list[Note]:
        """The notes on what has no counterpart."""
        return [note for note in self.notes if note.outcome == Outcome.NO_COUNTERPART]

    def is_role(self, role: Role) -> None:
        """Give the pool a role other than the default."""
        self.put("role", str(role))


def refused(source: str, value: Any, allowed: str, *, hidden: bool = False) -> PoolError:
    """The error for a field whose value cannot be read."""
    return PoolError([Problem(source.removeprefix("."), preview(value, hidden=hidden), allowed)])


def whole(source: str, value: Any, *, least: int = 0) -> int:
    """A whole number, which charts also write as text. PoolError where it is none or is too small."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise refused(source, value, f"must be a whole number from {least} to 999999999")
    return int(text)


def share(source: str, value: Any) -> float:
    """A number above 0 and up to 1, also as text. PoolError."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else 0.0
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise refused(source, value, "must be a number above 0 and up to 1")
    return number


def text(source: str, value: Any) -> str:
    """Text that is not empty. PoolError."""
    if not isinstance(value, str) or not value:
        raise refused(source, value, "must be text")
    return value


def truth(source: str, value: Any) -> bool:
    """True or false, also as text. PoolError."""
    known = {"true": True, "false": False, "1": True, "0": False}
    found = known.get(str(value).lower())
    if found is None:
        raise refused(source, value, "must be true or false")
    return found


def pool_name(wanted: str) -> str:
    """The name of a pool after another name: lowercase letters, digits and '-', beginning with a letter."""
    name = _NOT_IN_NAMES.sub("-", wanted.lower()).strip("-")
    name = name if name[:1].isalpha() else f"pool-{name}"
    return name[:MAX_POOL_NAME].rstrip("-")


def model_name(source: str) -> str:
    """The name that clients ask for where only the weights' source is told: itself, or a path's last part."""
    return source if re.fullmatch(MODEL_NAME, source) else source.rstrip("/").rpartition("/")[2] or source
