"""``cachefleet flush``: evicts idle cached blocks of workers, after saying what would go."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from cachefleet_local.cli.answers import Show, agreed, ask
from cachefleet_local.cli.completion import names
from cachefleet_local.cli.contexts.access import Where
from cachefleet_local.cli.listing import Column, Item, Output, listing, single
from cachefleet_local.cli.options import body_of, showing
from cachefleet_local.cli_errors import Exit, FailureError

SECONDS: Final = 45.0
"""Longer than the control plane gives its workers."""

Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of this model, or adapter: its name, or NAMESPACE/NAME.",
        autocompletion=names("pools", "model"),
    ),
]
Pool = Annotated[
    str | None, typer.Option(metavar="NAMESPACE/NAME", help="Of this pool.", autocompletion=names("pools", "key"))
]
Worker = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of this worker.", autocompletion=names("workers", "name"))
]
Tenant = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="What was computed for this tenant.", autocompletion=names("tenants", "name")),
]
Prompt = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="What begins with the prompt of this request; - reads standard input."),
]
Text = Annotated[str | None, typer.Option(help="What begins with this text.")]
Everything = Annotated[bool, typer.Option("--all", help="Everything; goes with none of those above.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and flush nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@showing
def flush(
    show: Show,
    *,
    model: Model = None,
    pool: Pool = None,
    worker: Worker = None,
    tenant: Tenant = None,
    prompt: Prompt = None,
    text: Text = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Evict idle cached blocks; all that is named holds at once. On a terminal it first shows what would go, and asks.

    Blocks that running requests use stay, and are counted as busy.
    """
    named = {"model": model, "pool": pool, "worker": worker, "tenant": tenant}
    scope = scope_of(named, prompt=_read(prompt, text), everything=everything)
    if not (dry_run or yes or sys.stdin.isatty()):
        raise FailureError(["nobody can be asked here: say --yes to flush, or --dry-run"], Exit.BAD_INPUT)
    if not (dry_run or yes):
        _consent(_flush(show.where, scope, dry_run=True))
    told = _flush(show.where, scope, dry_run=dry_run)
    typer.echo(single(told, WORKERS, show.output) if show.output in {Output.JSON, Output.YAML} else table(told))
    if any(one["error"] for one in told["workers"]):
        raise typer.Exit(Exit.FAILED)


def scope_of(named: Mapping[str, str | None], *, prompt: dict[str, Any] | None, everything: bool) -> dict[str, Any]:
    """The admin API's scope; the model is the prompt's where none is named. FailureError where nothing is."""
    scope: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if prompt is not None:
        model = prompt.get("model")
        scope = ({"model": model} if isinstance(model, str) else {}) | scope | {"prompt": prompt}
    if everything:
        scope["all"] = True
    if not scope:
        said = "say what to flush: --model, --pool, --worker, --tenant, --prompt or --text, or --all"
        raise FailureError([said], Exit.BAD_INPUT)
    return scope


def table(told: Item) -> str:
    """Each worker and the sum, as lines of text, without a newline at the end."""
    if not told["workers"]:
        return "no worker has anything of this"
    return f"{listing(told['workers'], WORKERS, Output.TABLE)}\n{sentence(told)}"


def sentence(told: Item) -> str:
    """The sum in words."""
    done = "would go" if told["dryRun"] else "are gone"
    stay = f"; {told['busy']:,} are in use and stay" if told["busy"] else ""
    return f"{told['blocks']:,} blocks ({told['tokens']:,} tokens) {done}{stay}"


WORKERS: Final = (
    Column("WORKER", lambda item: item["worker"]),
    Column("POOL", lambda item: item["pool"]),
    Column("BLOCKS", lambda item: item["blocks"], right=True),
    Column("TOKENS", lambda item: item["tokens"], right=True),
    Column("BUSY", lambda item: item["busy"], right=True),
    Column("ERROR", lambda item: item["error"]),
)


def _consent(foreseen: Item) -> None:
    """Ask whether to flush what a dry run found. Exits where there is nothing, or the answer is no."""
    typer.echo(table(foreseen), err=True)
    if not foreseen["blocks"]:
        raise typer.Exit(Exit.FAILED if any(one["error"] for one in foreseen["workers"]) else Exit.DONE)
    if not agreed("Flush them?"):
        typer.echo("nothing was flushed", err=True)
        raise typer.Exit(Exit.FAILED)


def _flush(where: Where, scope: Mapping[str, Any], *, dry_run: bool) -> Item:
    body = {"scope": scope, "dryRun": dry_run}
    told: Item = ask(where, lambda client: client.post("flush", body), seconds=SECONDS)
    return told


def _read(file: str | None, text: str | None) -> dict[str, Any] | None:
    """The prompt of a request's body, or a text. FailureError."""
    if file is not None and text is not None:
        raise FailureError(["give --prompt or --text: one of them"], Exit.BAD_INPUT)
    if file is None:
        return None if text is None else {"prompt": text}
    try:
        body = json.loads(body_of(file))
    except ValueError as error:
        raise FailureError([f"{file}: not JSON: {error}"], Exit.BAD_INPUT) from error
    if not isinstance(body, dict):
        raise FailureError([f"{file}: must be an object: the body of a chat or completion"], Exit.BAD_INPUT)
    return body
