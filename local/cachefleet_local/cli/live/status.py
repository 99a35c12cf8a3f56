"""``cachefleet status``: one screen that says that all is well, or what is wrong and what to do."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from cachefleet_local.cli.admin_client import AbsentError, AdminClient
from cachefleet_local.cli.answers import Asker, Show
from cachefleet_local.cli.doctor.fleet_checks import INFO, REPLICAS, findings, replica_findings, replicas_of
from cachefleet_local.cli.listing import Item, Output, listing, single
from cachefleet_local.cli.options import showing
from cachefleet_local.cli.output.columns import POOLS
from cachefleet_local.cli.typed_answers import capacity_of, pool_of
from cachefleet_local.cli_errors import Exit

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.capacity_facts import CapacityFacts

WIDTH: Final = 100
_OLDER: Final = "unknown: the control plane is older than this command and tells no findings; see its workers yourself"
_COLOURS: Final = {"critical": "red", "warning": "yellow", "info": "blue"}
_INDENT: Final = " " * 10


@showing
def status(show: Show) -> None:
    """Print that the fleet is healthy, or its faults and remedies. Exit status 1 where there are faults."""
    asker = Asker(show.where)
    found = asker(findings)
    pools = list(asker(lambda client: client.get("pools"))["items"])
    capacities = asker(_capacities)
    replicas = replicas_of(show.where)
    if found is not None:
        found += replica_findings(replicas)
    healthy = None if found is None else all(item["severity"] == INFO for item in found)
    if show.output in {Output.TABLE, Output.WIDE}:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if terminal else WIDTH
        colour = terminal and not os.environ.get("NO_COLOR")
        if replicas:
            typer.echo(f"{listing(replicas, REPLICAS, Output.TABLE)}\n")
        typer.echo("\n".join([*lines(found, pools, width=width, colour=colour), *advice(capacities, width=width)]))
    else:
        told: dict[str, Any] = {"healthy": healthy, "findings": found or [], "pools": pools, "capacity": capacities}
        told |= {"replicas": replicas} if replicas else {}
        typer.echo(_NAMES[healthy] if show.output is Output.NAME else single(told, (), show.output))
    if not healthy:
        raise typer.Exit(Exit.FAILED)


def _capacities(client: AdminClient) -> list[Item]:
    """What caches of another size would serve; nothing where the control plane is older than that."""
    try:
        return list(client.get("capacity")["items"])
    except AbsentError:
        return []


_NAMES: Final = {True: "healthy", False: "unhealthy", None: "unknown"}


def lines(found: Sequence[Item] | None, pools: Sequence[Item], *, width: int, colour: bool) -> Iterator[str]:
    """The screen; ``found`` is None where the control plane tells no findings."""
    if pools:
        yield from [*listing(pools, POOLS, Output.TABLE).splitlines(), ""]
    workers = [pool_of(pool).workers for pool in pools]
    ready, total = sum(each.ready for each in workers), sum(each.total for each in workers)
    counts = f"{len(pools)} pool{'s'[: len(pools) != 1]}, {ready} of {total} workers ready"
    serious = [item for item in found or () if item["severity"] != INFO]
    if found is None:
        yield f"{_OLDER} ({counts})"
    else:
        yield _styled("healthy", "green", colour) + f": {counts}" if not serious else _summary(serious, counts, colour)
    for item in found or ():
        yield ""
        yield from _finding(item, width, colour)


def advice(capacities: Sequence[Item], *, width: int) -> Iterator[str]:
    """What is worth doing to each pool, how far off advice was, and which worker would go first."""
    if capacities:
        yield ""
    for one in map(capacity_of, capacities):
        error = f" (the curve's error: {100 * one.error:+.1f} points)" if one.error is not None else ""
        goes = f". Scaled in, {one.scale_in.words}" if one.scale_in and one.scale_in.words else ""
        yield from textwrap.wrap(
            f"{'ADVICE':<10}pool {one.pool}: {one.words}{error}{goes}{_came(one)}",
            max(50, width),
            subsequent_indent=_INDENT,
        )


def _came(one: CapacityFacts) -> str:
    """What came of the last change of size, and how often the load fitted the desired workers."""
    change = f". Last change, {one.changes[0].words}" if one.changes else ""
    fit = one.desired_fit
    if fit is None or fit.fitted is None:
        return change
    return f"{change}. The load fitted the desired workers in {fit.fitted:.0%} of {fit.minutes} min"


def _summary(serious: Sequence[Item], counts: str, colour: bool) -> str:  # noqa: FBT001 - of this module alone
    severities = [item["severity"] for item in serious]
    told = ", ".join(f"{severities.count(one)} {one}" for one in _COLOURS if one in severities)
    return f"{_styled('not healthy', 'red', colour)}: {told}; {counts}"


def _finding(item: Item, width: int, colour: bool) -> Iterator[str]:  # noqa: FBT001
    severity = item["severity"]
    first, *rest = textwrap.wrap(f"{item['subject']}: {item['message']} ({item['reason']})", max(40, width - 10))
    yield _styled(f"{severity.upper():<10}", _COLOURS.get(severity, "white"), colour) + first
    yield from (_INDENT + line for line in rest)
    yield from textwrap.wrap(
        f"do: {item['action']}", max(50, width), initial_indent=_INDENT, subsequent_indent=_INDENT + "    "
    )
    yield f"{_INDENT}see: {item['docs']}"


def _styled(text: str, fg: str, colour: bool) -> str:  # noqa: FBT001
    return typer.style(text, fg=fg, bold=True) if colour else text
