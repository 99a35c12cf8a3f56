"""Which pools this control plane serves: those that name it (``spec.controlPlane``). Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cachefleet_controlplane.pools.source import PoolView


@dataclass(frozen=True, slots=True)
class ControlPlaneShare:
    """All pools that a source lists, divided."""

    own: tuple[PoolView, ...]
    """Served here: their workers, their blocks, their models."""
    others: tuple[PoolView, ...] = ()
    """Of other control planes: only their models' names count here."""
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pools of others whose control plane is not known here, by its name."""

    @property
    def problem(self) -> str:
        """What is wrong with the names, as a sentence; "" where nothing is."""
        told = (f"{name} ({', '.join(pools)})" for name, pools in self.unknown.items())
        return f"pools name control planes that this one does not know: {'; '.join(told)}" if self.unknown else ""


def share_of(name: str, views: Sequence[PoolView], known: Collection[str]) -> ControlPlaneShare:
    """Divide pools for the control plane of a name, which knows how others of the names ``known`` are reached."""
    others = tuple(view for view in views if view.pool.spec.control_plane != name)
    unknown: dict[str, tuple[str, ...]] = {}
    for view in others:
        named = view.pool.spec.control_plane
        if named not in known:
            unknown[named] = (*unknown.get(named, ()), view.key)
    return ControlPlaneShare(tuple(view for view in views if view.pool.spec.control_plane == name), others, unknown)
