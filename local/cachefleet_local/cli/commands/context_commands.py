"""``cachefleet contexts``: control planes by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cachefleet_local.cli.answers import Show
from cachefleet_local.cli.command_table import EPILOG
from cachefleet_local.cli.completion import context_names
from cachefleet_local.cli.contexts.access import Where
from cachefleet_local.cli.contexts.cluster_access import Cluster
from cachefleet_local.cli.contexts.context_file import (
    Context,
    Contexts,
    context_path,
    read_contexts,
    shown_context,
    write_contexts,
)
from cachefleet_local.cli.listing import Column, Item, Output
from cachefleet_local.cli.options import Format, GroupFormat, listing_output
from cachefleet_local.cli_errors import Exit, FailureError

_NONE: Final = "no contexts: the fleet of ./.cachefleet is meant; make one with: cachefleet contexts set NAME --help"

app = typer.Typer(
    help="Control planes by name, for --context. Without a command: the list.",
    epilog=EPILOG,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=context_names)]
_CONTEXTS: Final = (
    Column("", lambda item: "*" if item["current"] else " "),
    Column("NAME", lambda item: item["name"], name=True),
    Column("CONTROL PLANE", lambda item: item["where"]),
    Column("TOKEN", lambda item: item.get("tokenFile"), wide=True),
    Column("CA", lambda item: item.get("caFile"), wide=True),
)


@app.callback()
def contexts(ctx: typer.Context, *, output: GroupFormat = None) -> None:
    """Control planes by name, for --context. Without a command: the list."""
    form = listing_output(ctx, output)
    if form is not None:
        _list(form)


@app.command("list", epilog=EPILOG)
def list_contexts(*, output: Format = Output.TABLE) -> None:
    """List contexts; * is the one in use."""
    _list(output)


@app.command("set", epilog=EPILOG)
def set_context(
    name: Name,
    *,
    data_dir: Annotated[Path | None, typer.Option(help="A local fleet's data folder.")] = None,
    url: Annotated[str | None, typer.Option(help="Internal address of a control plane.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="Admin token; with --url.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates that verify it; with --url.")] = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="In the cluster of kubectl.")] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="With --cluster: kubectl's file.")] = None,
    kube_context: Annotated[str, typer.Option(help="With --cluster: kubectl's context.")] = "",
    namespace: Annotated[str, typer.Option(help="With --cluster: the control plane's; else looked for.")] = "",
    service_account: Annotated[
        str, typer.Option(metavar="NAMESPACE/NAME", help="With --cluster: whose token is taken.")
    ] = "",
) -> None:
    """Make a context, or replace it: a local fleet, a URL, or a cluster. The first one made is in use."""
    if [data_dir is not None, url is not None, cluster].count(True) != 1:
        raise FailureError(["give --data-dir, --url or --cluster: one of them"], Exit.BAD_INPUT)
    if url is not None and token_file is None:
        raise FailureError(["--url needs --token-file: the admin API asks for a token"], Exit.BAD_INPUT)
    file = "" if kubeconfig is None else str(kubeconfig.absolute())
    made = Context(
        data_dir=data_dir and data_dir.absolute(),
        url=url,
        token_file=token_file and token_file.absolute(),
        ca_file=ca_file and ca_file.absolute(),
        cluster=Cluster(file, kube_context, namespace, service_account) if cluster else None,
    )
    known = read_contexts(context_path())
    write_contexts(context_path(), Contexts({**known.items, name: made}, known.current or name))
    typer.echo(f"{name}: {_where(made)}")


@app.command(epilog=EPILOG)
def use(name: Annotated[str, typer.Argument(metavar="NAME", help="- for none.", autocompletion=context_names)]) -> None:
    """Make a context the default of all commands."""
    known = read_contexts(context_path())
    if name != "-":
        _require(known, name)
    write_contexts(context_path(), replace(known, current="" if name == "-" else name))
    typer.echo("no context is in use" if name == "-" else f"{name}: in use")


@app.command(epilog=EPILOG)
def remove(name: Name) -> None:
    """Forget a context; the control plane is not touched."""
    known = read_contexts(context_path())
    _require(known, name)
    left = {other: one for other, one in known.items.items() if other != name}
    write_contexts(context_path(), Contexts(left, "" if known.current == name else known.current))
    typer.echo(f"{name}: removed" + (", and none is in use" if known.current == name else ""))


def _require(known: Contexts, name: str) -> None:
    if name not in known.items:
        names = ", ".join(sorted(known.items)) or "none"
        raise FailureError([f"there is no context {name} (known: {names})"], Exit.BAD_INPUT)


def _list(output: Output) -> None:
    known = read_contexts(context_path())
    items = [_item(name, one, current=name == known.current) for name, one in sorted(known.items.items())]
    Show(Where(), output).rows(items, _CONTEXTS, empty=_NONE)


def _item(name: str, context: Context, *, current: bool) -> Item:
    told: dict[str, Any] = {"name": name, "current": current, "where": _where(context)}
    return told | shown_context(context)


def _where(context: Context) -> str:
    if context.cluster is not None:
        given = [context.cluster.context, context.cluster.namespace]
        return f"cluster {'/'.join(part for part in given if part) or 'of kubectl'}"
    return str(context.url or f"fleet of {context.data_dir}")
