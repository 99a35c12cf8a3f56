"""Names for the shell's completion, asked of the control plane; none where it does not answer at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from cachefleet_local.cli.answers import ask
from cachefleet_local.cli.contexts.access import Where
from cachefleet_local.cli.contexts.context_file import context_path, read_contexts
from cachefleet_local.cli_errors import FailureError

ASK_SECONDS: Final = 1.0

Names = Callable[[typer.Context, str], list[str]]
_WHERE: Final = ("url", "token_file", "data_dir", "context")


def names(path: str, field: str) -> Names:
    """Completes to a field of the items at ``path`` of the admin API."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        given = Where(**{name: ctx.params.get(name) for name in _WHERE})
        try:
            items = ask(given.or_else(ctx.obj), lambda client: client.get(path), seconds=ASK_SECONDS)["items"]
        except FailureError:
            return []
        return sorted({str(item[field]) for item in items if str(item[field]).startswith(incomplete)})

    return complete


def context_names(incomplete: str) -> list[str]:
    """Completes to the name of a context."""
    try:
        return [name for name in read_contexts(context_path()).items if name.startswith(incomplete)]
    except FailureError:
        return []
