"""``cachefleet top``: pools and workers, live, as top and htop show processes."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cachefleet_local.cli.admin_client import AdminClient, RefusedError, UnreachableError
from cachefleet_local.cli.answers import Asker
from cachefleet_local.cli.contexts.access import Where
from cachefleet_local.cli.live.top_view import ORDERS, screen
from cachefleet_local.cli.options import asking
from cachefleet_local.cli.output.watch import INTERRUPTED
from cachefleet_local.cli.typed_answers import pools_of, workers_of

if TYPE_CHECKING:
    from rich.text import Text

    from cachefleet_core.fleet_status.pool_facts import PoolFacts
    from cachefleet_core.fleet_status.worker_facts import WorkerFacts

INTERVAL_SECONDS: Final = 1.0
LAST_KEY: Final = "q"
_LEGEND: Final = "blocks: # in use  = cached, idle  . free;  keys: q ends; order by "

Found = tuple[Sequence["PoolFacts"], Sequence["WorkerFacts"]]


@asking
def top(
    where: Where,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print once, and end; so it does where there is no terminal.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = INTERVAL_SECONDS,
) -> None:
    """Show pools and workers live: running, waiting, blocks in use, cached and free, hits, age of the last report.

    Keys: q ends; n, r, w, b, h, a order workers by name, running, waiting, held blocks, hit ratio, age.
    """
    asker = Asker(where)
    found = asker(_read_fleet)
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        typer.echo(screen(*found))
        return
    try:
        _live(asker, found, interval)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _read_fleet(client: AdminClient) -> Found:
    return pools_of(client.get("pools")), workers_of(client.get("workers"))


def _live(asker: Asker, found: Found, interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 - once and on pipes it is not needed

    from cachefleet_local.cli.live.keyboard import pressed, single_keys  # noqa: PLC0415 - has to have a terminal

    signal.signal(signal.SIGTERM, _ended)
    order, problem = "n", ""
    with Live(screen=True, auto_refresh=False) as live, single_keys():
        while True:
            live.update(_page(found, order, problem), refresh=True)
            key = pressed(interval)
            if key == LAST_KEY:
                return
            order = key if key in ORDERS else order
            if not key:
                found, problem = _next(asker, found)


def _ended(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)  # by which the terminal is as it was before


def _next(asker: Asker, found: Found) -> tuple[Found, str]:
    """What is there now, and "", or what was there and why nothing newer is known."""
    try:
        return asker(_read_fleet), ""
    except (UnreachableError, RefusedError) as error:
        return found, error.lines[0]


def _page(found: Found, order: str, problem: str) -> Text:
    from rich.text import Text  # noqa: PLC0415 - as above

    size = shutil.get_terminal_size()
    orders = "  ".join(f"{key} {words}{'*' if key == order else ''}" for key, (words, _) in ORDERS.items())
    head = f"{time.strftime('%H:%M:%S')}  {problem or 'cachefleet top'}"
    body = screen(*found, key=order).splitlines()[: size.lines - 3]
    text = "\n".join([head, "", *body])
    return Text(f"{text}\n{_LEGEND}{orders}", no_wrap=True, overflow="crop")
