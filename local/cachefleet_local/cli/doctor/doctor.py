"""``cachefleet doctor``: checks of a running fleet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from cachefleet_local.cli.answers import Show, ask
from cachefleet_local.cli.command_table import EPILOG
from cachefleet_local.cli.completion import names
from cachefleet_local.cli.contexts.access import local_gateway
from cachefleet_local.cli.doctor import fleet_checks
from cachefleet_local.cli.listing import Output, listing
from cachefleet_local.cli.options import Format, group, showing, watching
from cachefleet_local.cli.output.columns import CERTIFICATES
from cachefleet_local.cli_errors import FailureError

GATEWAY: Final = "http://127.0.0.1:8080"
EXAMINATION_SECONDS: Final = 900.0
"""How long an examination may take in all."""

app = typer.Typer(
    help="Examine a running fleet. Without a command: look for every fault that can be seen from here.",
    epilog=EPILOG,
    callback=group(fleet_checks.examine),
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)

Model = Annotated[str | None, typer.Option(help="A served model, or NAMESPACE/NAME. Default: all.")]
Pool = Annotated[
    str | None,
    typer.Option(metavar="NAMESPACE/NAME", help="The model of this pool.", autocompletion=names("pools", "key")),
]


@app.command(epilog=EPILOG, short_help="Look for every fault that can be seen from here.")
@showing
def fleet(show: Show) -> None:
    """Look for faults of control plane, pools and workers: contracts, engines, reports, keys, plugin, renderers.

    Exit status 1 where there is one.
    """
    fleet_checks.examine(show)


@app.command(epilog=EPILOG, short_help="Certify render profiles.")
@showing
def certify(
    show: Show,
    *,
    model: Model = None,
    pool: Pool = None,
    chats: Annotated[int, typer.Option(min=1, max=200, help="Random conversations for each profile.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="What they are made from.")] = 1,
) -> None:
    """Examine whether workers render conversations so that a turn can be continued by its handle.

    Exit status 1 where a profile is refused, or there is none to examine.
    """
    wanted = {"chats": chats, "seed": seed} | ({"model": model} if model else {}) | ({"pool": pool} if pool else {})
    found = ask(show.where, lambda client: client.post("certify", wanted), seconds=EXAMINATION_SECONDS)["items"]
    show.rows(found, CERTIFICATES)
    refused = [f"{item['model']}: {item['reason']}" for item in found if not item["certified"]]
    if refused or not found:
        raise FailureError(refused or ["no ready worker has announced its render profile"])


@app.command(epilog=EPILOG, short_help="List certificates.")
@watching
def certificates(show: Show) -> None:
    """List render profiles that were examined: certified or refused, when, and why."""
    empty = "no certificates: examine the render profiles with: cachefleet doctor certify"
    show.items(lambda client: client.get("certificates"), CERTIFICATES, empty=empty)


@app.command(epilog=EPILOG, short_help="See that a conversation's next turn is a hit.")
def hit(
    ctx: typer.Context,
    *,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help=f"The gateway's address. Default: the local fleet's, else {GATEWAY}."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Trust these certificates (PEM) of an https gateway, and no others."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A served model. Default: the first that chats.")] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="The variable that holds the API key, where keys are needed.")
    ] = "CACHEFLEET_API_KEY",
    wait: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to wait for a model to be served.")] = 60.0,
    output: Format = Output.TABLE,
) -> None:
    """Send a new chat and its next turn, for which the worker must report cached tokens.

    Exit status 1 where no model is served in time, a request fails, or the second turn is no hit.
    """
    # The one command here that needs aiohttp.
    from cachefleet_local.cli.doctor import hit_probe  # noqa: PLC0415
    from cachefleet_local.cli.gateway_client import gateway_access  # noqa: PLC0415

    gateway = gateway or local_gateway(ctx.obj) or GATEWAY
    access = gateway_access(gateway, os.environ.get(api_key_env, ""), certificate)
    turns = hit_probe.probed(access, model=model, wait_seconds=wait)
    typer.echo(listing(turns, hit_probe.HITS, output))
    if lacking := hit_probe.shortcomings(turns):
        raise FailureError(lacking)
