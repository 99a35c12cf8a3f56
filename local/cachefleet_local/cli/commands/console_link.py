"""``cachefleet console``: a link that signs in to the console once, as the bearer of the admin token."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from cachefleet_local.cli.admin_client import AbsentError, AdminClient
from cachefleet_local.cli.contexts import cluster_access
from cachefleet_local.cli.contexts.access import AdminAccess, Where, find_access
from cachefleet_local.cli.options import asking
from cachefleet_local.cli_errors import FailureError

Browse = Annotated[bool, typer.Option("--open", help="Open it in the browser as well.")]


@asking
def console(where: Where, *, browse: Browse = False) -> None:
    """Print a link to the console that signs in once, within ten minutes; stay where it leads through kubectl."""
    link = console_link(find_access(where))
    typer.echo(link)
    if browse:
        webbrowser.open(link)
    if cluster_access.forwarding():
        typer.echo("the link leads there until Ctrl-C", err=True)
        cluster_access.wait_for_forwards()


def console_link(access: AdminAccess) -> str:
    """A link that signs in once. FailureError where the control plane makes none."""
    try:
        return access.url + str(AdminClient(access).sign_in_link()["path"])
    except AbsentError as error:
        raise FailureError([f"the control plane at {access.url} has no console"]) from error
