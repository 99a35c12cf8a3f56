"""The command line ``cachefleet``. Exit statuses: 0 done, 1 failed, 2 bad input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from cachefleet_local.cli.command_table import EPILOG, Commands, print_version
from cachefleet_local.cli.options import group
from cachefleet_local.cli_errors import FailureError

app = typer.Typer(
    name="cachefleet",
    cls=Commands,
    callback=group(version=print_version),
    help="The prefix caches of a fleet of vLLM workers as one managed resource.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: runs a command; prints a failure's lines to standard error and exits with its status."""
    ended(app)


def kubectl_main() -> None:
    """Entry point of ``kubectl cachefleet``: the same commands, for a control plane in kubectl's cluster."""
    from cachefleet_local.cli.commands.kubectl_plugin import run  # noqa: PLC0415 - argparse costs the others 10 ms

    ended(lambda: run(app, sys.argv[1:]))


def ended(run: Callable[[], Any]) -> None:
    """Run commands, and exit with the status of a failure."""
    try:
        run()
    except FailureError as error:
        for line in error.lines:
            typer.echo(line, err=True)
        sys.exit(error.status)


if __name__ == "__main__":
    main()
