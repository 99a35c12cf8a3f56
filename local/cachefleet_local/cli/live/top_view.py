"""The tables of ``cachefleet top``: pools, then workers, with bars of what they hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cachefleet_local.cli.listing import Column, Item, Output, listing
from cachefleet_local.cli.output.columns import worker_load, worker_state

BAR: Final = 20
MIB: Final = 1 << 20
_WHOLE: Final = 10
"""MiB from which on no tenths are shown."""
_FULL, _HELD, _FREE = "#", "=", "."
Order = Callable[[Item], object]

ORDERS: Final[Mapping[str, tuple[str, Order]]] = {
    "n": ("name", lambda item: str(item["id"])),
    "r": ("running", lambda item: -_of_load(item, "running")),
    "w": ("waiting", lambda item: -_of_load(item, "waiting")),
    "b": ("held blocks", lambda item: -int(item["heldBlocks"])),
    "h": ("hit ratio", lambda item: -(_hits(item) or 0.0)),
    "a": ("age of the report", lambda item: -(item["reportAgeSeconds"] or 0.0)),
}
"""By the key that is pressed: the words for an order of workers, and the order."""


def _of_load(item: Item, name: str) -> int:
    return int((item["load"] or {}).get(name) or 0)


def _hits(item: Item) -> float | None:
    """Of the tokens that its engine has looked up since it started."""
    queries = _of_load(item, "prefixQueries")
    return _of_load(item, "prefixHits") / queries if queries else None


def _ratio(item: Item) -> str | None:
    found = _hits(item)
    return None if found is None else f"{found:.2f}"


def blocks_bar(item: Item, length: int = BAR) -> str:
    """A worker's blocks: # in use by running requests, = idle and cached, . free."""
    load = item["load"]
    if not load or not load["blocksTotal"]:
        return ""
    idle = min(load["blocksIdle"] or 0, load["blocksFree"])
    used, total = load["blocksTotal"] - load["blocksFree"], load["blocksTotal"]
    first, second = round(length * used / total), round(length * (used + idle) / total)
    return f"[{_FULL * first}{_HELD * (second - first)}{_FREE * (length - second)}]"


def _idle(item: Item) -> int | None:
    """Bytes of a device that a worker's idle cached blocks take; None where its engine does not tell."""
    blocks = (item["load"] or {}).get("blocksIdle")
    return blocks * item["blockBytes"] if blocks is not None and item.get("blockBytes") else None


def _of_budget(item: Item) -> str | None:
    """What idle cached blocks take, against the admitted budget; both in MiB."""
    idle, budget = item["idle"], item["budget"]
    return f"{'?' if idle is None else _mib(idle)}/{budget:,} MiB" if budget else None


def _mib(size: int) -> str:
    return f"{size / MIB:,.{0 if size >= _WHOLE * MIB else 1}f}"


def _freshness(item: Item) -> str:
    if item["reportAgeSeconds"] is None:
        return "never"
    return f"{item['reportAgeSeconds']:.1f} s" + (" stale" if item["stale"] else "")


def _objective(item: Item) -> str:
    ratio, objective = item["hitRatio"]["value"], item["hitRatio"]["objective"]
    shown = "-" if ratio is None else f"{ratio:.2f}"
    return shown if objective is None else f"{shown}/{objective:.2f}"


_POOLS: Final = (
    Column("POOL", lambda item: item["key"]),
    Column("MODEL", lambda item: item["model"]),
    Column("READY", lambda item: f"{item['workers']['ready']}/{item['workers']['total']}", right=True),
    Column("RUNNING", lambda item: item["running"], right=True),
    Column("WAITING", lambda item: item["waiting"], right=True),
    Column("HELD", lambda item: item["held"], right=True),
    Column("IDLE/BUDGET", _of_budget, right=True),
    Column("HIT RATIO/OBJECTIVE", _objective, right=True),
)
_WORKERS: Final = (
    Column("WORKER", lambda item: item["id"]),
    Column("STATE", worker_state),
    Column("RUNNING", worker_load("running"), right=True),
    Column("WAITING", worker_load("waiting"), right=True),
    Column("BLOCKS", blocks_bar),
    Column("HELD", lambda item: item["heldBlocks"], right=True),
    Column("IDLE/BUDGET", _of_budget, right=True),
    Column("HITS", _ratio, right=True),
    Column("REPORT", _freshness, right=True),
)


def screen(pools: Sequence[Item], workers: Sequence[Item], key: str = "n") -> str:
    """Pools, and workers in the order of a key."""
    budgets = {pool["key"]: pool.get("budgetMiB", 0) for pool in pools}
    told = [one | {"idle": _idle(one), "budget": budgets.get(one["pool"], 0)} for one in map(dict, workers)]
    ordered = sorted(told, key=lambda item: (ORDERS[key][1](item), str(item["id"])))
    summed = [pool | _sums([one for one in told if one["pool"] == pool["key"]]) for pool in map(dict, pools)]
    return "\n".join(
        (
            listing(summed, _POOLS, Output.TABLE) if pools else "no pools",
            "",
            listing(ordered, _WORKERS, Output.TABLE) if workers else "no workers",
        )
    )


def _sums(workers: Sequence[Item]) -> dict[str, int | None]:
    loads = {name: sum(_of_load(one, name) for one in workers) for name in ("running", "waiting")}
    listed = [one for one in workers if one["listed"]]
    idle = [one["idle"] for one in listed if one["idle"] is not None]
    return {
        **loads,
        "held": sum(int(one["heldBlocks"]) for one in workers),
        "idle": sum(idle) if idle else None,
        "budget": sum(one["budget"] for one in listed),
    }
