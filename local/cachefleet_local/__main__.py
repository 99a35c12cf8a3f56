"""The command line ``cachefleet``. Exit statuses: 0 done, 1 failed, 2 bad input."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_local.cli import doctor, tenant_commands
from cachefleet_local.cli.admin_client import AdminAccess, find_access
from cachefleet_local.cli.answers import show_list
from cachefleet_local.cli.console_link import console
from cachefleet_local.cli.explain import explain
from cachefleet_local.cli.listing import DECISIONS, POOLS, WORKERS, Column, Output
from cachefleet_local.cli.options import DATA_DIR_HELP, EPILOG, DataDir, Format, TokenFile, Url
from cachefleet_local.cli.up import problem_lines, read_pools
from cachefleet_local.cli.up import up as run_up
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR
from cachefleet_local.fleet.local_fleet import Options

app = typer.Typer(
    name="cachefleet",
    help="The prefix caches of a fleet of vLLM workers as one managed resource.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(tenant_commands.app, name="tenants")
app.add_typer(doctor.app, name="doctor")

PoolFile = Annotated[Path, typer.Argument(metavar="POOL.yaml", help="Pool file; may hold several pools.")]


@app.command(epilog=EPILOG, short_help="Run a pool file's fleet on this machine.")
def up(
    pool_file: PoolFile,
    *,
    data_dir: Annotated[Path, typer.Option(help=DATA_DIR_HELP)] = DEFAULT_DATA_DIR,
    gateway_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the OpenAI API; 0 takes a free one.")
    ] = 8080,
    internal_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of admin API, reports and metrics; 0 takes a free one.")
    ] = 8081,
    policy: Annotated[
        RoutingPolicy, typer.Option(help="How requests are routed; can be changed while it runs.")
    ] = RoutingPolicy.CACHE_AWARE,
    wait_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds in which all has to be ready, else everything is stopped again.")
    ] = 600.0,
    engine_python: Annotated[
        str, typer.Option(metavar="PATH", show_default="this one", help="Python interpreter that has vLLM.")
    ] = sys.executable,
    browse: Annotated[bool, typer.Option("--open", help="Open the console in the browser once all is ready.")] = False,
) -> None:
    """Run the pools of a file on this machine: control plane, and per replica vLLM and its agent. Ctrl-C stops all."""
    options = Options(
        data_dir=data_dir,
        gateway_port=gateway_port,
        internal_port=internal_port,
        policy=policy.value,
        wait_seconds=wait_timeout,
        engine_python=engine_python,
        browse=browse,
    )
    run_up(pool_file, options, Console())


@app.command(epilog=EPILOG, short_help="Check a pool file.")
def check(pool_file: PoolFile) -> None:
    """Check a pool file without starting anything: fields, values, ranges and the memory budget."""
    for pool in read_pools(pool_file):
        typer.echo(f"{pool.key}: sound")


@app.command(epilog=EPILOG, short_help="List pools.")
def pools(
    *,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List pools: model, workers that are ready, hit ratio, contract."""
    _list("pools", POOLS, output, find_access(url=url, token_file=token_file, data_dir=data_dir))


@app.command(epilog=EPILOG, short_help="List workers.")
def workers(
    *,
    pool: Annotated[str | None, typer.Option(metavar="NAMESPACE/NAME", help="Of this pool only.")] = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List workers: state, load, the blocks they hold, the age of their last report."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    _list("workers", WORKERS, output, access, parameters={"pool": pool} if pool else {})


@app.command(epilog=EPILOG, short_help="List the latest decisions.")
def decisions(
    *,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 20,
    model: Annotated[str | None, typer.Option(help="For this model only.")] = None,
    output: Format = Output.TABLE,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the latest decisions, last first: which worker, why, what was predicted and what was cached."""
    access = find_access(url=url, token_file=token_file, data_dir=data_dir)
    parameters = {"limit": str(limit)} | ({"model": model} if model else {})
    _list("decisions", DECISIONS, output, access, parameters=parameters)


app.command("console", epilog=EPILOG, short_help="Print a link to the console.")(console)
app.command("explain", epilog=EPILOG, short_help="Explain a decision.")(explain)


def _list(
    path: str,
    columns: Sequence[Column],
    output: Output,
    access: AdminAccess,
    parameters: Mapping[str, str] | None = None,
) -> None:
    show_list(access, lambda client: client.get(path, parameters), columns, output)


@app.command(epilog=EPILOG, short_help="Print the version.")
def version() -> None:
    """Print the version of cachefleet."""
    typer.echo(importlib.metadata.version("cachefleet"))


def main() -> None:
    """Entry point: runs a command; prints a failure's lines to standard error and exits with its status."""
    try:
        app()
    except FailureError as error:
        problem_lines(error.lines, Console(stderr=True))
        sys.exit(error.status)


if __name__ == "__main__":
    main()
