"""Command-line options that commands share: which control plane is asked, and how its answer is shown."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cachefleet_local.cli.answers import INTERVAL_SECONDS, Show
from cachefleet_local.cli.completion import context_names, names
from cachefleet_local.cli.contexts.access import CONTEXT_VARIABLE, TOKEN_FILE_VARIABLE, URL_VARIABLE, Where
from cachefleet_local.cli.listing import Output
from cachefleet_local.cli_errors import Exit, FailureError

DATA_DIR_HELP: Final = "Folder of the local fleet: secrets, logs, database."

TIMES: Final = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
"""How a time is written."""

STDIN: Final = "-"
"""In place of a file's name."""

Command = Callable[..., None]


def pool_key(given: str | None) -> str | None:
    """A pool's name, as it is given. BadParameter for one without its namespace, which would find nothing."""
    if given is not None and "/" not in given:
        raise typer.BadParameter(f"got '{given}', allowed: NAMESPACE/NAME, as `cachefleet pools` lists it")
    return given


Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help=f"Internal address of the control plane. Default: ${URL_VARIABLE}."),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"Admin token. Default: ${TOKEN_FILE_VARIABLE}, else the fleet's.")
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help=f"{DATA_DIR_HELP} Default: .cachefleet.", show_default=False)
]
ContextName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"See `cachefleet contexts`. Default: ${CONTEXT_VARIABLE}, else the one in use.",
        autocompletion=context_names,
    ),
]
PoolName = Annotated[
    str | None,
    typer.Option(
        metavar="NAMESPACE/NAME", help="Of this pool only.", autocompletion=names("pools", "key"), callback=pool_key
    ),
]
TenantName = Annotated[str | None, typer.Option(help="Of this tenant only.", autocompletion=names("tenants", "name"))]
Format = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]
GroupFormat = Annotated[
    Output | None, typer.Option("--output", "-o", help="How to print the list. Default: table.", show_default=False)
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on, and show what changes, until Ctrl-C.")]
Interval = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="With --watch: how often to look.")]


def _option(name: str, annotation: Any, default: object = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_TYPER: Final = _option("ctx", typer.Context, Parameter.empty)
_WHERE: Final = (
    _option("context", ContextName),
    _option("url", Url),
    _option("token_file", TokenFile),
    _option("data_dir", DataDir),
)
_OUTPUT: Final = (_option("output", Format, Output.TABLE),)
_WATCH: Final = (_option("watch", Watch, default=False), _option("interval", Interval, INTERVAL_SECONDS))


def asking(command: Command) -> Command:
    """A command with the options for a control plane, which it gets as its first argument, a ``Where``."""
    return _with(command, _WHERE, where)


def showing(command: Command) -> Command:
    """As ``asking``, with --output; its first argument is a ``Show``."""
    return _with(command, (*_OUTPUT, *_WHERE), _show)


def watching(command: Command) -> Command:
    """As ``showing``, with --watch."""
    return _with(command, (*_OUTPUT, *_WATCH, *_WHERE), _show)


def group(listed: Callable[[Show], None] | None = None, version: Callable[[bool], None] | None = None) -> Command:
    """Callback of a command group: options given before the command's name apply to the command.

    Without a command's name ``listed`` is called, in the form of --output, and with --version ``version``.
    """

    def run(ctx: typer.Context, **given: Any) -> None:
        given.pop("version", None)
        output = listing_output(ctx, given.pop("output", None))
        ctx.obj = where(ctx, **given)
        if listed is not None and output is not None:
            listed(Show(ctx.obj, output))

    own = [] if version is None else [_version(version)]
    listing = [] if listed is None else [_option("output", GroupFormat)]
    return _signed(run, [_TYPER, *listing, *_WHERE, *own], run)


def listing_output(ctx: typer.Context, given: Output | None) -> Output | None:
    """How a group called without a command's name prints; None with one. BadParameter for an --output before a name."""
    if ctx.invoked_subcommand is None:
        return given or Output.TABLE
    if given is not None:
        raise typer.BadParameter("must stand after the name of the command", ctx, param_hint="'--output'")
    return None


def _version(callback: Callable[[bool], None]) -> Parameter:
    shown = typer.Option("--version", help="Print the version.", callback=callback, is_eager=True)
    return _option("version", Annotated[bool, shown], default=False)


def where(ctx: typer.Context, **given: Any) -> Where:
    """What this command's options, and those before it, say of the control plane."""
    return Where(**given).or_else(ctx.obj)


def time_of(given: datetime | None) -> str | None:
    """A time as the admin API takes it; in UTC where no zone is given."""
    if given is None:
        return None
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).isoformat()


def body_of(file: str) -> bytes:
    """What a file or standard input has: the body of a request. FailureError."""
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise FailureError([f"cannot read {file}: {error.strerror}"], Exit.BAD_INPUT) from error


def _show(ctx: typer.Context, *, output: Output, watch: bool = False, interval: float = 0, **given: Any) -> Show:
    return Show(where(ctx, **given), output, interval if watch else None)


def _with(command: Command, options: Sequence[Parameter], made: Callable[..., object]) -> Command:
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(ctx: typer.Context, **given: Any) -> None:
        first = made(ctx, **{option.name: given.pop(option.name) for option in options})
        command(first, **given)

    return _signed(run, [_TYPER, *own, *options], command)


def _signed(run: Command, parameters: Sequence[Parameter], command: Command) -> Command:
    """Typer reads the signature and the annotations of a function, and its docstring."""
    placed = sorted(parameters, key=lambda one: one.kind)
    run.__signature__ = Signature(placed)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in placed}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run
