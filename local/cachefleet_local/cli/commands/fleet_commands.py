"""``cachefleet pools``, ``workers`` and ``decisions``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import typer

from cachefleet_local.cli.admin_client import AdminClient
from cachefleet_local.cli.answers import Show
from cachefleet_local.cli.completion import names
from cachefleet_local.cli.listing import Item
from cachefleet_local.cli.options import TIMES, PoolName, TenantName, time_of, watching
from cachefleet_local.cli.output.columns import DECISIONS, POOLS, WORKERS
from cachefleet_local.cli_errors import FailureError

MAX_NAMED: Final = 20
"""Names that are told where the one that was asked for is not among them."""
_NO_POOLS: Final = "no pools: kubectl apply -f POOL.yaml (on one machine: cachefleet up POOL.yaml)"
_NO_WORKERS: Final = "no workers: their pools want none, or have just been made; see cachefleet pools"
_NO_DECISIONS: Final = "no decisions: no request has come yet; try one with: cachefleet doctor hit"

PoolKey = Annotated[
    str | None,
    typer.Argument(
        metavar="NAMESPACE/NAME", help="This pool alone; its name is enough.", autocompletion=names("pools", "key")
    ),
]
WorkerId = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME", help="This worker alone, by its name or id.", autocompletion=names("workers", "name")
    ),
]
ModelName = Annotated[str | None, typer.Option(help="For this model only.", autocompletion=names("pools", "model"))]


@watching
def pools(show: Show, name: PoolKey = None) -> None:
    """List pools: model, workers that are ready, hit ratio, contract."""
    show.items(lambda client: _named(client.get("pools"), name, "pool", ("key", "name")), POOLS, empty=_NO_POOLS)


@watching
def workers(show: Show, name: WorkerId = None, *, pool: PoolName = None) -> None:
    """List workers: state, load, the blocks they hold, the age of their last report."""
    parameters = {"pool": pool} if pool else {}
    empty = f"no workers of {pool}; see cachefleet pools" if pool else _NO_WORKERS

    def asked(client: AdminClient) -> Item:
        return _named(client.get("workers", parameters), name, "worker", ("name", "id"))

    show.items(asked, WORKERS, empty=empty)


def _named(answer: Item, name: str | None, kind: str, fields: Sequence[str]) -> Item:
    """The answer with those items alone of which one of the fields is ``name``. FailureError where none is."""
    if name is None:
        return answer
    found = [item for item in answer["items"] if name in {item[field] for field in fields}]
    if not found:
        known = sorted({str(item[fields[0]]) for item in answer["items"]})
        shown = ", ".join(known[:MAX_NAMED]) + (", ..." if len(known) > MAX_NAMED else "")
        raise FailureError([f"no {kind} is named {name}; there are: {shown or 'none'}"])
    return {**answer, "items": found}


@watching
def decisions(
    show: Show,
    *,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 20,
    model: ModelName = None,
    pool: PoolName = None,
    worker: Annotated[
        str | None, typer.Option(help="Of this worker only.", autocompletion=names("workers", "name"))
    ] = None,
    tenant: TenantName = None,
    request_id: Annotated[str | None, typer.Option(metavar="ID", help="The client's x-request-id.")] = None,
    outcome: Annotated[str | None, typer.Option(help="answered, refused, gone, failed, stopped or broken.")] = None,
    shortfall: Annotated[
        str | None, typer.Option(metavar="CAUSE", help="With a shortfall of this cause, or any.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(formats=TIMES, metavar="TIME", help="Made then or later.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=TIMES, metavar="TIME", help="Made before.")] = None,
) -> None:
    """List the latest decisions, last first: which worker, why, what was predicted and what was cached."""
    conditions = {
        "model": model,
        "pool": pool,
        "worker": worker,
        "tenant": tenant,
        "requestId": request_id,
        "outcome": outcome,
        "shortfall": shortfall,
        "since": time_of(since),
        "until": time_of(until),
    }
    given = {name: value for name, value in conditions.items() if value is not None}
    parameters = {"limit": str(limit)} | given
    empty = f"no decisions with {', '.join(given)} as asked" if given else _NO_DECISIONS
    show.items(lambda client: client.get("decisions", parameters), DECISIONS, empty=empty, newest_first=True)
