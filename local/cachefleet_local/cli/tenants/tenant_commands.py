"""``cachefleet tenants``: tenants, and what they used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Final, Literal

import typer

from cachefleet_core.fleet_status.tenant_limits import MAX_NUMBER
from cachefleet_local.cli.answers import Asker, Show, agreed
from cachefleet_local.cli.command_table import EPILOG
from cachefleet_local.cli.contexts.access import Where
from cachefleet_local.cli.listing import Item, Output, single
from cachefleet_local.cli.options import TIMES, Command, PoolName, TenantName, asking, group, showing, time_of, watching
from cachefleet_local.cli.output.columns import ACCESS, CONTRACTS, DAILY_USAGE, IDLE, KEYS, TENANTS, USAGE
from cachefleet_local.cli.tenants import key_commands
from cachefleet_local.cli.tenants.key_commands import Name, access_of, limits_of, path_of
from cachefleet_local.cli_errors import Exit, FailureError

_NONE: Final = "no tenants: every request is of the tenant default; make one with: cachefleet tenants create NAME"
_NO_KEY: Final = "it can do nothing until it has a key; make one with: cachefleet tenants keys create {name}"
_NO_USAGE: Final = "no usage in this time"
_NO_CONTRACT: Final = "no pool has a cache contract (tenancy.contracts)"
_NO_IDLE: Final = "no tenant has blocks in the idle caches"


def _list(show: Show) -> None:
    show.items(lambda client: client.get("tenants"), TENANTS, empty=_NONE)


app = typer.Typer(
    help="Tenants, their API keys, and what they used. Without a command: the list of tenants.",
    epilog=EPILOG,
    callback=group(_list),
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(key_commands.app, name="keys")

Priority = Annotated[int | None, typer.Option(min=0, max=100, help="0 gets its turn first, 100 last.")]
Weight = Annotated[int | None, typer.Option(min=1, max=10_000, help="Of its share while others wait, too (100).")]
SaltVersion = Annotated[int | None, typer.Option(min=1, help="A new one cuts it off from all that is cached for it.")]
AtOnce = Annotated[
    int | None, typer.Option(min=0, max=MAX_NUMBER, help="As --limit requests-at-once: on each replica; 0 is no limit.")
]
PerMinute = Annotated[
    int | None,
    typer.Option(min=0, max=MAX_NUMBER, help="As --limit tokens-per-minute: computed and generated; 0 is no limit."),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help="requests-at-once, or a unit and a time: requests, tokens (computed and generated), uncached-tokens, "
        "cached-tokens, output-tokens or spend, each -per-minute, -per-day or -per-month (of UTC). At once and a "
        "minute to 2147483647, a day or month to 10^15, money to 1000000; 0 is no limit. May be repeated.",
    ),
]
Disabled = Annotated[bool | None, typer.Option("--disabled/--enabled", help="Whether its requests are refused.")]
Trusted = Annotated[
    bool | None,
    typer.Option("--trusted/--untrusted", help="Whether its requests may tell engines priority, ids and sessions."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list", epilog=EPILOG)
@watching
def list_tenants(show: Show) -> None:
    """List tenants: priority, limits, version of the salt."""
    _list(show)


def _with_settings(command: Callable[[Show, str, Item], None]) -> Command:
    """A command with the options of a tenant's settings; it gets those given, as the admin API takes them."""

    def run(
        show: Show,
        name: Name,
        *,
        priority: Priority = None,
        weight: Weight = None,
        requests_at_once: AtOnce = None,
        tokens_per_minute: PerMinute = None,
        limits: Limits = None,
        salt_version: SaltVersion = None,
        disabled: Disabled = None,
        trusted: Trusted = None,
    ) -> None:
        settings = _settings(
            priority=priority,
            weight=weight,
            requestsAtOnce=requests_at_once,
            tokensPerMinute=tokens_per_minute,
            saltVersion=salt_version,
            disabled=disabled,
            trusted=trusted,
        )
        command(show, name, {**settings, **limits_of(limits or ())})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


@app.command(epilog=EPILOG)
@showing
@_with_settings
def create(show: Show, name: str, settings: Item) -> None:
    """Make a tenant; it can do nothing until it has a key."""
    note = _NO_KEY.format(name=name)
    show.item(lambda client: client.post("tenants", {"name": name, **settings}), TENANTS, note=note)


@app.command("show", epilog=EPILOG)
@showing
def show_tenant(show: Show, name: Name) -> None:
    """Show a tenant with its keys: the first characters of each, and until when it is taken."""
    asker = Asker(show.where)
    tenant: Item = asker(lambda client: client.get(path_of(name)))
    keys: list[Item] = asker(lambda client: client.get(path_of(name, "keys")))["items"]
    typer.echo(single({**tenant, "keys": keys}, TENANTS, show.output))
    if show.output in {Output.TABLE, Output.WIDE}:
        typer.echo("")
        show.rows(keys, KEYS, empty=f"no keys: make one with: cachefleet tenants keys create {name}")


@app.command("set", epilog=EPILOG)
@showing
@_with_settings
def change(show: Show, name: str, settings: Item) -> None:
    """Change a tenant; what is not named stays."""
    show.item(lambda client: client.patch(path_of(name), settings), TENANTS)


@app.command(epilog=EPILOG)
@asking
def delete(where: Where, name: Name, *, yes: Yes = False) -> None:
    """Delete a tenant and all its keys, after asking. What it used stays in the account."""
    asker = Asker(where)
    if not yes:
        keys = asker(lambda client: client.get(path_of(name, "keys")))["items"]
        confirmed(f"delete tenant {name} and its {len(keys)} keys?")
    before = access_of(asker)
    asker(lambda client: client.delete(path_of(name)))
    typer.echo(f"{name}: deleted")
    after = access_of(asker)
    if before and after and before["reason"] != after["reason"]:
        typer.echo(_CHANGED[bool(after["open"])], err=True)


_CHANGED: Final = {
    True: "no key is left: requests without a key are served now",
    False: "no key is left: all requests are refused until there is one (`cachefleet tenants create NAME`, then "
    "`cachefleet tenants keys create NAME`), or until `cachefleet tenants open` serves everybody",
}


def confirmed(question: str) -> None:
    """Ask on a terminal whether to go on. FailureError where the answer is no, or nobody can be asked."""
    if not sys.stdin.isatty():
        raise FailureError([f"{question} Nobody can be asked here: say --yes"], Exit.BAD_INPUT)
    if not agreed(question):
        raise FailureError(["nothing was changed"])


@app.command(epilog=EPILOG)
@watching
def usage(
    show: Show,
    *,
    tenant: TenantName = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--from", formats=TIMES, metavar="TIME", help="Hours from then; default: a day before --to, by day 30."
        ),
    ] = None,
    to: Annotated[
        datetime | None, typer.Option(formats=TIMES, metavar="TIME", help="Hours that begin before; default: now.")
    ] = None,
    by: Annotated[Literal["hour", "day"], typer.Option(help="Sums of each hour, or of each day of UTC.")] = "hour",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many rows at most.")] = 10_000,
) -> None:
    """What tenants used, by the hour or day: requests, prompt tokens cached and computed, tokens generated, and what
    that cost and saved where pools have prices.
    """
    given = {"tenant": tenant, "from": time_of(since), "to": time_of(to), "limit": str(limit), "by": by}
    asked = {name: value for name, value in given.items() if value is not None}
    columns = USAGE if by == "hour" else DAILY_USAGE
    found = show.items(lambda client: client.get("usage", asked), columns, empty=_NO_USAGE)
    if found["truncated"]:
        typer.echo(f"there is more; these are the first {limit} rows", err=True)


@app.command(epilog=EPILOG)
@watching
def cache(show: Show, *, pool: PoolName = None) -> None:
    """What tenants have of the idle caches now, and their shares of the budget."""
    parameters = {} if pool is None else {"pool": pool}
    show.items(lambda client: client.get("idle-cache", parameters), IDLE, empty=_NO_IDLE)


@app.command(epilog=EPILOG)
@watching
def contracts(show: Show, *, pool: PoolName = None) -> None:
    """Whether tenants' cache contracts are met now, for how much of the last hour, day and month, and why not."""
    parameters = {} if pool is None else {"pool": pool}
    show.items(lambda client: client.get("contracts", parameters), CONTRACTS, empty=_NO_CONTRACT)


@app.command(epilog=EPILOG)
@showing
def access(show: Show) -> None:
    """Tell whether requests without an API key are served, and why."""
    show.item(lambda client: client.get("access"), ACCESS)


@app.command("open", epilog=EPILOG)
@showing
def admit_all(show: Show) -> None:
    """Serve requests without an API key again, after all keys were deleted or lost."""
    show.item(lambda client: client.post("access/open", {}), ACCESS)


def _settings(**given: int | bool | None) -> Item:
    """The fields that were given; a limit of 0 becomes null, no limit."""
    limits = {"requestsAtOnce", "tokensPerMinute"}
    return {name: value or None if name in limits else value for name, value in given.items() if value is not None}
