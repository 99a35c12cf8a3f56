"""``cachefleet tenants keys``: API keys of a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import quote

import typer

from cachefleet_core.fleet_status.tenant_limits import BUDGET, SPEND, Limit
from cachefleet_local.cli.answers import Asker, Show
from cachefleet_local.cli.command_table import EPILOG
from cachefleet_local.cli.completion import names
from cachefleet_local.cli.listing import Item, single
from cachefleet_local.cli.options import TIMES, group, showing, time_of, watching
from cachefleet_local.cli.output.columns import KEYS, NEW_KEYS
from cachefleet_local.cli_errors import FailureError

_UNSTORED: Final = (
    "the replica that answered refuses the key; its store takes no writes, and is told once it does: see /readyz, and "
    "restart nothing until then"
)
_ONCE: Final = "keep the key: it is shown this once"
_FIRST: Final = (
    "this is the first key: from now on every request is asked for one, and those without are refused (401); give "
    "each client a key of its tenant. That rests on the control plane's store: CACHEFLEET_API_KEYS=required (in the "
    "chart controlPlane.apiKeys) holds though the store is lost"
)

app = typer.Typer(
    no_args_is_help=True,
    help="API keys of a tenant.",
    epilog=EPILOG,
    callback=group(),
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(metavar="TENANT", help="Name of the tenant.", autocompletion=names("tenants", "name")),
]
Expires = Annotated[
    datetime | None,
    typer.Option(formats=TIMES, metavar="TIME", help="2027-01-31, 2027-01-31T12:00:00 (UTC), or with +01:00."),
]

Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="A model that it may use, or a pattern: qwen3-*; may be repeated."),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help="Of its own, in a day or month of UTC: requests, tokens, uncached-tokens, cached-tokens or output-tokens, "
        "each -per-day or -per-month, to 10^15; spend-per-day, spend-per-month, to 1000000; 0 is no limit. May be "
        "repeated.",
    ),
]


@app.command("list", epilog=EPILOG)
@watching
def list_keys(show: Show, name: Name) -> None:
    """List a tenant's keys, oldest first: the first characters of each, and until when it is taken."""
    empty = f"no keys: make one with: cachefleet tenants keys create {name}"
    show.items(lambda client: client.get(path_of(name, "keys")), KEYS, empty=empty)


@app.command("create", epilog=EPILOG)
@showing
def create_key(
    show: Show, name: Name, *, expires: Expires = None, models: Models = None, limits: Limits = None
) -> None:
    """Make a key, for all models or those named. It is shown this once."""
    body = {"expires": time_of(expires), **_models(models), **limits_of(limits or (), KEY_LIMITS)}
    _make(show, path_of(name, "keys"), body)


@app.command("rotate", epilog=EPILOG)
@showing
def rotate_keys(
    show: Show,
    name: Name,
    *,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long the other keys are taken beside the new one.")
    ] = 0.0,
    expires: Expires = None,
    models: Models = None,
    limits: Limits = None,
) -> None:
    """Make a key, which is shown this once, and let the tenant's others end. It may use the models of the newest one,
    or those named, and so with its limits.
    """
    given = {**_models(models), **limits_of(limits or (), KEY_LIMITS)}
    body = {"graceSeconds": grace, "expires": time_of(expires), **given}
    _make(show, path_of(name, "keys", "rotate"), body)


@app.command("revoke", epilog=EPILOG)
@showing
def revoke_key(
    show: Show, name: Name, key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as it is listed.")]
) -> None:
    """Refuse a key from now on."""
    revoked = show.item(lambda client: client.delete(path_of(name, "keys", key_id)), KEYS)
    if not revoked["stored"]:
        typer.echo(_UNSTORED, err=True)


def _models(named: list[str] | None) -> Item:
    return {"models": named} if named else {}


def _make(show: Show, path: str, body: Item) -> None:
    """Make a key, show it, and say where that closes the gateway for everybody else."""
    asker = Asker(show.where)
    before = access_of(asker)
    typer.echo(single(asker(lambda client: client.post(path, body)), NEW_KEYS, show.output))
    typer.echo(_ONCE, err=True)
    after = access_of(asker)
    if before and after and before["open"] and not after["open"]:
        typer.echo(_FIRST, err=True)


def access_of(asker: Asker) -> Item | None:
    """Who is served without a key; None where that may not be asked."""
    try:
        found: Item = asker(lambda client: client.get("access"))
    except FailureError:
        return None
    return found


def path_of(*parts: str) -> str:
    """Of a tenant, below the admin API."""
    return "/".join(("tenants", *(quote(part, safe="") for part in parts)))


LIMITS: Final = {limit.option: limit for limit in Limit}
"""All limits, as ``--limit`` names them."""
KEY_LIMITS: Final = tuple(limit.option for limit in BUDGET)
"""Those that a key may have of its own."""


def limits_of(given: Iterable[str], names: Sequence[str] = tuple(LIMITS)) -> Item:
    """Limits by their fields, of those ``names``; one of 0 becomes null, no limit. BadParameter for one that is none,
    or out of range.
    """
    found: dict[str, float | None] = {}
    for one in given:
        name, _, value = one.partition("=")
        if name not in names:
            raise typer.BadParameter(f"{one!r}: NAME is one of {', '.join(names)}", param_hint="--limit")
        found[LIMITS[name].field] = _number(one, LIMITS[name], value) or None
    return found


def _number(given: str, limit: Limit, value: str) -> float:
    """What a limit is set to. BadParameter out of its range."""
    money = limit in SPEND
    try:
        number = float(value) if money else int(value)
    except ValueError:
        number = -1
    if not 0 <= number <= limit.most:
        words = "number" if money else "whole number"
        raise typer.BadParameter(f"{given!r}: a {words} from 0 (no limit) to {limit.most}", param_hint="--limit")
    return number
