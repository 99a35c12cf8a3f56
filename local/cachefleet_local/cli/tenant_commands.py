"""``cachefleet tenants``: tenants, their API keys, and what they used."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import quote

import typer

from cachefleet_local.cli.admin_client import find_access
from cachefleet_local.cli.answers import ask, show_list, show_one
from cachefleet_local.cli.listing import (
    ACCESS,
    IDLE,
    KEYS,
    NEW_KEYS,
    TENANTS,
    USAGE,
    Output,
)
from cachefleet_local.cli.options import EPILOG, DataDir, Format, TokenFile, Url
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR

_TIMES: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
_UNSTORED: Final = (
    "the replica that answered refuses the key; its store takes no writes, and is told once it does: see /readyz, and "
    "restart nothing until then"
)
_ONCE: Final = "keep the key: it is shown this once"

app = typer.Typer(no_args_is_help=True, help="Tenants, their API keys, and what they used.", epilog=EPILOG)
keys = typer.Typer(no_args_is_help=True, help="API keys of a tenant.", epilog=EPILOG)
app.add_typer(keys, name="keys")

Name = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
Priority = Annotated[int | None, typer.Option(min=0, max=100, help="0 gets its turn first, 100 last.")]
SaltVersion = Annotated[int | None, typer.Option(min=1, help="A new one cuts it off from all that is cached for it.")]
AtOnce = Annotated[int | None, typer.Option(min=0, help="Requests at once on each replica; 0 is no limit.")]
PerMinute = Annotated[
    int | None, typer.Option(min=0, help="Computed prompt tokens and generated ones on each replica; 0 is no limit.")
]
Disabled = Annotated[bool | None, typer.Option("--disabled/--enabled", help="Whether its requests are refused.")]
Trusted = Annotated[
    bool | None,
    typer.Option("--trusted/--untrusted", help="Whether its requests may tell engines priority, ids and sessions."),
]
Expires = Annotated[
    datetime | None,
    typer.Option(formats=_TIMES, metavar="TIME", help="2027-01-31, 2027-01-31T12:00:00 (UTC), or with +01:00."),
]


@app.command("list", epilog=EPILOG)
def list_tenants(
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List tenants: priority, limits, version of the salt."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_list(access, lambda client: client.get("tenants"), TENANTS, output)


@app.command(epilog=EPILOG)
def create(
    name: Name,
    *,
    priority: Priority = None,
    requests_at_once: AtOnce = None,
    tokens_per_minute: PerMinute = None,
    salt_version: SaltVersion = None,
    disabled: Disabled = None,
    trusted: Trusted = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a tenant; it can do nothing until it has a key."""
    body = _settings(
        priority=priority,
        requestsAtOnce=requests_at_once,
        tokensPerMinute=tokens_per_minute,
        saltVersion=salt_version,
        disabled=disabled,
        trusted=trusted,
    )
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_one(access, lambda client: client.post("tenants", {"name": name} | body), TENANTS, output)


@app.command("set", epilog=EPILOG)
def change(
    name: Name,
    *,
    priority: Priority = None,
    requests_at_once: AtOnce = None,
    tokens_per_minute: PerMinute = None,
    salt_version: SaltVersion = None,
    disabled: Disabled = None,
    trusted: Trusted = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Change a tenant; what is not named stays."""
    body = _settings(
        priority=priority,
        requestsAtOnce=requests_at_once,
        tokensPerMinute=tokens_per_minute,
        saltVersion=salt_version,
        disabled=disabled,
        trusted=trusted,
    )
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_one(access, lambda client: client.patch(_path(name), body), TENANTS, output)


@app.command(epilog=EPILOG)
def delete(name: Name, *, url: Url = None, token_file: TokenFile = None, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Delete a tenant and all its keys. What it used stays in the account."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    ask(access, lambda client: client.delete(_path(name)))
    typer.echo(f"{name}: deleted")


@app.command(epilog=EPILOG)
def usage(
    *,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option("--from", formats=_TIMES, metavar="TIME", help="Hours from then; default: a day before --to."),
    ] = None,
    to: Annotated[
        datetime | None, typer.Option(formats=_TIMES, metavar="TIME", help="Hours that begin before; default: now.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many rows at most.")] = 10_000,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """What tenants used, by the hour: requests, prompt tokens cached and computed, tokens generated."""
    given = {"tenant": tenant, "from": _time(since), "to": _time(to), "limit": str(limit)}
    asked = {name: value for name, value in given.items() if value is not None}
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    found = show_list(access, lambda client: client.get("usage", asked), USAGE, output)
    if found["truncated"]:
        typer.echo(f"there is more; these are the first {limit} rows", err=True)


@app.command(epilog=EPILOG)
def cache(
    *,
    pool: Annotated[str | None, typer.Option(metavar="NAMESPACE/NAME", help="Of this pool only.")] = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """What tenants have of the idle caches now, and their shares of the budget."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_list(access, lambda client: client.get("idle-cache", {} if pool is None else {"pool": pool}), IDLE, output)


@app.command(epilog=EPILOG)
def access(
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Tell whether requests without an API key are served, and why."""
    found = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_one(found, lambda client: client.get("access"), ACCESS, output)


@app.command("open", epilog=EPILOG)
def admit_all(
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Serve requests without an API key again, after all keys were deleted or lost."""
    found = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_one(found, lambda client: client.post("access/open", {}), ACCESS, output)


@keys.command("list", epilog=EPILOG)
def list_keys(
    name: Name,
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List a tenant's keys, oldest first: the first characters of each, and until when it is taken."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    show_list(access, lambda client: client.get(_path(name, "keys")), KEYS, output)


@keys.command("create", epilog=EPILOG)
def create_key(
    name: Name,
    *,
    expires: Expires = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a key. It is shown this once."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    body = {"expires": _time(expires)}
    show_one(access, lambda client: client.post(_path(name, "keys"), body), NEW_KEYS, output, note=_ONCE)


@keys.command("rotate", epilog=EPILOG)
def rotate_keys(
    name: Name,
    *,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long the other keys are taken beside the new one.")
    ] = 0.0,
    expires: Expires = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Make a key, which is shown this once, and let the tenant's others end."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    body = {"graceSeconds": grace, "expires": _time(expires)}
    show_one(access, lambda client: client.post(_path(name, "keys", "rotate"), body), NEW_KEYS, output, note=_ONCE)


@keys.command("revoke", epilog=EPILOG)
def revoke_key(
    name: Name,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as it is listed.")],
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Refuse a key from now on."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    revoked = show_one(access, lambda client: client.delete(_path(name, "keys", key_id)), KEYS, output)
    if not revoked["stored"]:
        typer.echo(_UNSTORED, err=True)


def _settings(**given: int | bool | None) -> dict[str, int | bool | None]:
    """The fields that were given; a limit of 0 becomes null, no limit."""
    limits = {"requestsAtOnce", "tokensPerMinute"}
    return {name: value or None if name in limits else value for name, value in given.items() if value is not None}


def _path(*parts: str) -> str:
    return "/".join(("tenants", *(quote(part, safe="") for part in parts)))


def _time(given: datetime | None) -> str | None:
    if given is None:
        return None
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).isoformat()
