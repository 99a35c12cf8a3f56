"""``cachefleet capacity``: what other budgets and numbers of workers would serve, and advice that is simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from cachefleet_local.cli.answers import Show, ask
from cachefleet_local.cli.commands.simulate import LAST, SECONDS, telling
from cachefleet_local.cli.listing import Column, Item, Output, listing
from cachefleet_local.cli.options import PoolName, showing
from cachefleet_local.cli.output.columns import share
from cachefleet_local.cli.typed_answers import capacity_of

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.capacity_facts import CapacityFacts, SizeFacts

_NO_POOLS: Final = "no pools: see cachefleet pools"
_TABLES: Final = {Output.TABLE, Output.WIDE}

Confirm = Annotated[
    bool, typer.Option("--confirm", help="Simulate the pool's first advice with its latest requests, beside the curve.")
]
Last = Annotated[int, typer.Option(min=1, max=20_000, metavar="N", help="With --confirm: with the last N requests.")]


class SizeRow(NamedTuple):
    """A pool at one size, as a row of the table."""

    pool: str
    facts: SizeFacts
    today: bool
    tenants: str
    """Each tenant's hit ratio there."""


SIZES: Final = (
    Column("POOL", lambda row: row.pool, name=True),
    Column("WORKERS", lambda row: row.facts.workers, right=True),
    Column("BUDGET MIB", lambda row: f"{row.facts.budget_mib:,}" if row.facts.budget_mib else None, right=True),
    Column("SIZE", lambda row: "today" if row.today else None),
    Column("HIT RATIO", lambda row: share(row.facts.hit_ratio), right=True),
    Column("COMPUTED/S", lambda row: f"{row.facts.computed_tokens_per_second:,.0f}", right=True),
    Column("TENANTS", lambda row: row.tenants, wide=True),
)


@showing
def capacity(show: Show, *, pool: PoolName = None, confirm: Confirm = False, last: Last = LAST) -> None:
    """What other budgets and numbers of workers would serve of the latest requests, and what is worth doing by it.

    `-o wide` has each tenant's hit ratio, too.
    """
    items = [_confirmed(show, pool, last)] if confirm else _known(show, pool)
    if show.output not in _TABLES:
        typer.echo(listing(items, (Column("POOL", lambda item: item["pool"]),), show.output))
        return
    found = [capacity_of(item) for item in items]
    if rows := [row for one in found for row in sizes(one)]:
        typer.echo(listing(rows, SIZES, show.output) + "\n")
    for line in (line for one in found for line in words(one)):
        typer.echo(line)
    if not found:
        typer.echo(_NO_POOLS, err=True)


def sizes(one: CapacityFacts) -> Iterator[SizeRow]:
    """Rows of a pool whose curve is known: numbers of workers, then budgets where there is one."""
    by_tenant = [(each.tenant, each.by_workers, each.by_budget) for each in one.by_tenant]
    workers = [(tenant, ratios) for tenant, ratios, _ in by_tenant]
    yield from _rows(one, one.by_workers, workers)
    if one.now is not None and one.now.budget_mib:
        yield from (
            row for row in _rows(one, one.by_budget, [(name, own) for name, _, own in by_tenant]) if not row.today
        )


def words(one: CapacityFacts) -> Iterator[str]:
    """The verdict, what could be done, and what a simulation gave."""
    error = f" (the curve's error: {100 * one.error:+.1f} points)" if one.error is not None else ""
    yield f"{one.pool}: {one.words}{error}"
    for advice in one.advice:
        yield f"  {'worth it' if advice.worth else 'not worth it'}: {advice.words}"
        if advice.confirmed:
            yield f"    {advice.confirmed.words}"


def _rows(
    one: CapacityFacts, told: Sequence[SizeFacts], tenants: Sequence[tuple[str, Sequence[float]]]
) -> Iterator[SizeRow]:
    for place, facts in enumerate(told):
        ratios = ", ".join(f"{tenant or 'none'} {own[place]:.2f}" for tenant, own in tenants)
        yield SizeRow(one.pool, facts, facts == one.now, ratios)


def _known(show: Show, pool: str | None) -> list[Item]:
    found: list[Item] = ask(show.where, lambda client: client.get("capacity", {"pool": pool} if pool else {}))["items"]
    return found


def _confirmed(show: Show, pool: str | None, last: int) -> Item:
    body = {"requests": last} | ({"pool": pool} if pool else {})
    with telling():
        told: Item = ask(show.where, lambda client: client.post("capacity/confirm", body), seconds=SECONDS)
    return told
