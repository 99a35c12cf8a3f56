"""``cachefleet doctor``: checks of a running fleet."""

from __future__ import annotations

import asyncio
import os
from random import SystemRandom
from typing import Annotated, Any, Final

import typer

from cachefleet_local.cli.admin_client import AdminAccess, admin_client, find_access
from cachefleet_local.cli.answers import show_list
from cachefleet_local.cli.hit_probe import HITS, gateway_access, probe, shortcomings
from cachefleet_local.cli.listing import Column, Item, Output, listing
from cachefleet_local.cli.options import EPILOG, DataDir, Format, TokenFile, Url
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR

EXAMINATION_SECONDS: Final = 900.0
"""How long an examination may take in all."""

app = typer.Typer(help="Examine a running fleet.", no_args_is_help=True, rich_markup_mode=None)

Model = Annotated[str | None, typer.Option(help="A served model, or NAMESPACE/NAME. Default: all.")]
Pool = Annotated[str | None, typer.Option(metavar="NAMESPACE/NAME", help="The model of this pool.")]


@app.command(epilog=EPILOG, short_help="Certify render profiles.")
def certify(
    *,
    model: Model = None,
    pool: Pool = None,
    chats: Annotated[int, typer.Option(min=1, max=200, help="Random conversations for each profile.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="What they are made from.")] = 1,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Examine whether workers render conversations so that a turn can be continued by its handle.

    Exit status 1 where a profile is refused, or there is none to examine.
    """
    wanted = {"chats": chats, "seed": seed} | ({"model": model} if model else {}) | ({"pool": pool} if pool else {})
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    found = asyncio.run(_certify(access, wanted))
    typer.echo(listing(found, CERTIFICATES, output))
    refused = [f"{item['model']}: {item['reason']}" for item in found if not item["certified"]]
    if refused or not found:
        raise FailureError(refused or ["no ready worker has announced its render profile"])


@app.command(epilog=EPILOG, short_help="List certificates.")
def certificates(
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List render profiles that were examined: certified or refused, when, and why."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_list(access, lambda client: client.get("certificates"), CERTIFICATES, output)


@app.command(epilog=EPILOG, short_help="See that a conversation's next turn is a hit.")
def hit(
    *,
    gateway: Annotated[str, typer.Option(metavar="URL", help="The gateway's address.")] = "http://127.0.0.1:8080",
    model: Annotated[str | None, typer.Option(help="A served model. Default: the first that chats.")] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="The variable that holds the API key, where keys are needed.")
    ] = "CACHEFLEET_API_KEY",
    wait: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to wait for a model to be served.")] = 60.0,
    output: Format = Output.TABLE,
) -> None:
    """Send a chat that nobody sent before and its next turn, of which the worker must have cached tokens.

    Exit status 1 where no model is served in time, a request fails, or the second turn is no hit.
    """
    access = gateway_access(gateway, os.environ.get(api_key_env, ""))
    turns = asyncio.run(probe(access, model=model, wait_seconds=wait, random=SystemRandom()))
    typer.echo(listing(turns, HITS, output))
    if lacking := shortcomings(turns):
        raise FailureError(lacking)


def _counts(item: Item) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in item["counts"].items())


CERTIFICATES: Final = (
    Column("MODEL", lambda item: item["model"]),
    Column("PROFILE", lambda item: item["profile"][:19]),
    Column("CERTIFIED", lambda item: "yes" if item["certified"] else "no"),
    Column("AT", lambda item: item["at"][:19].replace("T", " ")),
    Column("COUNTS", _counts),
    Column("REASON", lambda item: item["reason"]),
)


async def _certify(access: AdminAccess, wanted: dict[str, Any]) -> list[Item]:
    async with admin_client(access, seconds=EXAMINATION_SECONDS) as client:
        return list((await client.post("certify", wanted))["items"])
