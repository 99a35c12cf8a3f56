"""Steps that bring an engine's adapters (LoRA) to the declared ones: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Unload an adapter."""

    name: str


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Load an adapter from a path."""

    name: str
    path: str


Step = UnloadAdapter | LoadAdapter
Placed = Mapping[str, tuple[str, str]]
"""By name what was asked for when an adapter was loaded, and from where the engine says that it was: a folder fetched
for a hub id, say."""


def steps(wanted: Mapping[str, str], served: Mapping[str, str], placed: Placed) -> Iterator[Step]:
    """Steps from the declared adapters (name to path) and the served ones (name to place).

    What is no longer wanted goes first. A name that means another path is unloaded before it is loaded anew, not loaded
    in place: requests that have begun would end with the new weights, and their blocks be kept as those of the old.
    """
    yield from (UnloadAdapter(name) for name in served if name not in wanted)
    for name, path in wanted.items():
        if name in served:
            if served[name] == path or placed.get(name) == (path, served[name]):
                continue
            yield UnloadAdapter(name)
        yield LoadAdapter(name, path)
