"""The commands of ``cachefleet``: each one's module is imported when it is run, or completed."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

from cachefleet_local.cli.quick_values import quick_parameters, quickened

EPILOG: Final = "Exit status: 0 done, 1 failed, 2 bad input."
_ROOM: Final = "cachefleet_local.cli"


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: the module with the function, or group, of its name, and its line of help.

    ``function`` is the function's name where it is not the command's.
    """

    module: str
    help: str
    function: str = ""

    def load(self, name: str) -> Any:
        """The command, as typer makes it."""
        module = importlib.import_module(f"{_ROOM}.{self.module}")
        if not hasattr(module, "app"):
            return _command(name, getattr(module, self.function or name), self.help)
        group: Any = typer.main.get_command(module.app)
        group.name = name
        return quickened(group)


def _command(name: str, function: Callable[..., None], line: str) -> Any:
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(name, epilog=EPILOG, short_help=line)(function)
    return quickened(typer.main.get_command(made))


def version() -> None:
    """Print the version of cachefleet."""
    typer.echo(importlib.metadata.version("cachefleet"))


def print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    """``--version``: print it, and end."""
    if asked:
        version()
        raise typer.Exit


TABLE: Final = {
    "up": Entry("commands.up_command", "Run a pool file's fleet on this machine."),
    "check": Entry("commands.check", "Check a pool file."),
    "import": Entry("commands.import_pools", "Make pools of other projects' manifests.", "import_pools"),
    "status": Entry("live.status", "What is wrong, and what to do."),
    "top": Entry("live.top", "Pools and workers, live."),
    "pools": Entry("commands.fleet_commands", "List pools."),
    "workers": Entry("commands.fleet_commands", "List workers."),
    "decisions": Entry("commands.fleet_commands", "List the latest decisions."),
    "explain": Entry("explanation.explain", "Explain a decision."),
    "lint": Entry("commands.lint", "What of a prompt will not be cached."),
    "tenants": Entry("tenants.tenant_commands", "Tenants, their API keys, and what they used."),
    "flush": Entry("commands.flush", "Evict idle cached blocks."),
    "capacity": Entry("commands.capacity", "What other budgets and numbers of workers would serve."),
    "simulate": Entry("commands.simulate", "Try another policy, budget or number of workers."),
    "console": Entry("commands.console_link", "Print a link to the console."),
    "doctor": Entry("doctor.doctor", "Examine a running fleet."),
    "contexts": Entry("commands.context_commands", "Control planes by name."),
    "version": Entry("command_table", "Print the version."),
}
"""In the order in which help lists them."""


class _Loaded(Mapping[str, Any]):
    """The table's commands, each made when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return TABLE[name].load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(TABLE)

    def __len__(self) -> int:
        return len(TABLE)


class Commands(TyperGroup):
    """The group of all commands; to list them imports none."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = cast("Any", _Loaded())

    def get_params(self, ctx: Any) -> list[Any]:
        """Options of all commands."""
        return quick_parameters(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, None where there is none."""
        del ctx
        return TABLE[cmd_name].load(cmd_name) if cmd_name in TABLE else None

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        del ctx
        return list(TABLE)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands' part of the help."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in TABLE.items()])
