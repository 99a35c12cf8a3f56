"""``cachefleet simulate``: what another policy, budget or number of workers would have given, beside what happened."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cachefleet_local.cli.answers import Show, ask
from cachefleet_local.cli.listing import Column, Item, Output, listing, single
from cachefleet_local.cli.options import showing
from cachefleet_local.cli_errors import Exit, FailureError

SECONDS: Final = 660.0
"""Longer than any control plane lets one take."""
EVERY_SECONDS: Final = 3.0
LAST: Final = 1000
_PLACE: Final = re.compile(r"^.*body\.source\.trace\.(\d+)\.")
_TRACED: Final = ("timestamp", "input_length", "output_length", "hash_ids")


class Policy(StrEnum):
    """Routing policies."""

    CACHE_AWARE = "cacheAware"
    LEAST_LOADED = "leastLoaded"
    ROUND_ROBIN = "roundRobin"


Budget = Annotated[int | None, typer.Option(min=0, metavar="MIB", help="Bound on idle cached blocks, of each device.")]
Workers = Annotated[int | None, typer.Option(min=1, max=256, metavar="N", help="How many workers.")]
ByPolicy = Annotated[Policy | None, typer.Option(help="What decides.")]
Pool = Annotated[
    str | None, typer.Option(metavar="NAMESPACE/NAME", help="Of this pool; needed where there are several.")
]
Last = Annotated[
    int, typer.Option(min=1, max=20_000, metavar="N", help="With the last N requests, or the trace's first N.")
]
Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With a trace, as JSON lines of Mooncake's form; not what happened.")
]
BlockTokens = Annotated[
    int, typer.Option(min=1, max=65536, metavar="TOKENS", help="With --trace: tokens of one of its blocks.")
]


@showing
def simulate(
    show: Show,
    *,
    budget: Budget = None,
    workers: Workers = None,
    policy: ByPolicy = None,
    pool: Pool = None,
    last: Last = LAST,
    trace: Trace = None,
    block_tokens: BlockTokens = 512,
) -> None:
    """What another policy, budget or number of workers would have given, beside what happened.

    The same requests go through the real decisions over modelled engines, as the fleet is today and as it would be.
    """
    changes = {"policy": policy and policy.value, "budgetMib": budget, "workers": workers}
    lines = {} if trace is None else traced(trace, last)
    source = {"trace": list(lines.values()), "blockTokens": block_tokens} if lines else {"recorded": last}
    changed = {name: value for name, value in changes.items() if value is not None}
    body = {"source": source, "changes": changed} | ({"pool": pool} if pool else {})
    with telling(), _by_line(trace, list(lines)):
        told: Item = ask(show.where, lambda client: client.post("simulate", body), seconds=SECONDS)
    if show.output in {Output.JSON, Output.YAML}:
        typer.echo(single(told, (), show.output))
    else:
        typer.echo(table(told))
        for line in notes(told, wanted=None if lines else last):
            typer.echo(f"note: {line}", err=True)


def traced(path: Path, most: int) -> dict[int, dict[str, Any]]:
    """The first requests of a trace file, by line. FailureError."""
    found: dict[int, dict[str, Any]] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if len(found) == most:
                    break
                if line.strip():
                    found[number] = _request(line, f"{path}, line {number}")
    except OSError as error:
        raise FailureError([f"cannot read {path}: {error.strerror}"], Exit.BAD_INPUT) from error
    except UnicodeDecodeError as error:
        raise FailureError([f"{path}: is not text in UTF-8"], Exit.BAD_INPUT) from error
    if not found:
        raise FailureError([f"{path}: has no requests"], Exit.BAD_INPUT)
    return found


def table(told: Item) -> str:
    """A column for each: what happened, today's fleet and the changed one; without a newline at the end."""
    sides = {"HAPPENED": "happened", "TODAY, SIMULATED": "today", "CHANGED, SIMULATED": "changed"}
    shown = [(title, told[name]) for title, name in sides.items() if told[name] is not None]
    columns = [Column("", lambda row: row["name"])]
    columns += [Column(title, _value(place), right=True) for place, (title, _) in enumerate(shown)]
    rows = [{"name": name, "values": [say(side) for _, side in shown]} for name, say in ROWS]
    lines = listing(rows, columns, Output.TABLE)
    return f"{lines}\n{_sentence(told)}"


def notes(told: Item, *, wanted: int | None) -> Iterator[str]:
    """What the figures do not say of themselves; ``wanted`` are the recorded requests that were asked for."""
    changed, happened = told["changed"], told["happened"]
    room, bound, budget = changed["blocks"], changed.get("budgetBlocks"), changed["budgetMib"]
    if bound is not None and budget and bound > room:
        yield (
            f"a budget of {budget:,} MiB is {bound:,} blocks, and a worker's whole cache has {room:,} "
            f"({budget * room // bound:,} MiB): it bounds nothing, more is cached only with more device memory or "
            "workers"
        )
    if wanted is not None and happened and happened["requests"] < wanted:
        yield (
            f"these are all {happened['requests']:,} requests of the {wanted:,} asked for that can be replayed: block "
            "keys are kept in memory, for answers since the control plane started, and are not among stored decisions"
        )


def _value(place: int) -> Callable[[Item], object]:
    return lambda row: row["values"][place]


def _number(name: str) -> Callable[[Item], str]:
    return lambda side: "-" if side.get(name) is None else f"{side[name]:,}"


def _seconds(name: str) -> Callable[[Item], str]:
    return lambda side: "-" if side.get(name) is None else f"{side[name]:.3g} s"


def _ratio(side: Item) -> str:
    return "-" if side["hitRatio"] is None else f"{side['hitRatio']:.1%}"


ROWS: Final[tuple[tuple[str, Callable[[Item], str]], ...]] = (
    ("policy", lambda side: str(side.get("policy", "-"))),
    ("workers", _number("workers")),
    ("budget, MiB", _number("budgetMib")),
    ("requests", _number("requests")),
    ("hit ratio", _ratio),
    ("prompt tokens", _number("promptTokens")),
    ("recomputed tokens", _number("recomputedTokens")),
    ("queue p50", _seconds("queueP50Seconds")),
    ("queue p99", _seconds("queueP99Seconds")),
    ("first token p50", _seconds("ttftP50Seconds")),
    ("first token p95", _seconds("ttftP95Seconds")),
    ("refused", _number("refused")),
    ("preemptions", _number("preemptions")),
)


def _sentence(told: Mapping[str, Any]) -> str:
    today, changed = told["today"]["hitRatio"], told["changed"]["hitRatio"]
    happened = (told["happened"] or {}).get("hitRatio")
    said = f"{told['pool']}, simulated in {told['seconds']:.1f} s"
    if today is not None and changed is not None:
        said += f": hit ratio {100 * (changed - today):+.1f} points"
    if today is not None and happened is not None:
        said += f"; the simulation is off by {100 * (today - happened):+.1f} points"
    return said


def _request(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise FailureError([f"{where}: not JSON: {error}"], Exit.BAD_INPUT) from error
    if not isinstance(record, dict) or not set(_TRACED[:3]) <= set(record):
        raise FailureError([f"{where}: needs {', '.join(_TRACED[:3])}, and hash_ids"], Exit.BAD_INPUT)
    return {name: record[name] for name in _TRACED if name in record}


@contextmanager
def _by_line(path: Path | None, numbers: Sequence[int]) -> Iterator[None]:
    """Have refusals name the lines of a trace file, which they know by place."""
    try:
        yield
    except FailureError as error:
        named = [_PLACE.sub(lambda found: f"{path}, line {numbers[int(found[1])]}: ", line) for line in error.lines]
        raise FailureError(named, error.status) from error


@contextmanager
def telling() -> Iterator[None]:
    """A line on standard error every few seconds."""
    over = threading.Event()

    def report_progress() -> None:
        seconds = 0.0
        while not over.wait(EVERY_SECONDS):
            seconds += EVERY_SECONDS
            print(f"simulating, {seconds:.0f} s", file=sys.stderr, flush=True)  # noqa: T201

    thread = threading.Thread(target=report_progress, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
