"""``cachefleet console``: a link that signs in to the console once, as the bearer of the admin token."""

from __future__ import annotations

import asyncio
import webbrowser
from typing import Annotated, Final

import aiohttp
import typer

from cachefleet_local.cli.admin_client import AdminAccess, find_access
from cachefleet_local.cli.options import DataDir, TokenFile, Url
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR
from cachefleet_runtime.tls import client_context

TIMEOUT_SECONDS: Final = 10.0
_WORDS: Final = {
    401: "the admin token is not accepted",
    403: "the admin token may not list pools, which the console needs",
    404: "this control plane has no console",
}

Browse = Annotated[bool, typer.Option("--open", help="Open it in the browser as well.")]


def console(
    *,
    browse: Browse = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Print a link to the console that signs in once, within ten minutes."""
    link = asyncio.run(console_link(find_access(url=url, token_file=token_file, data_dir=data_dir)))
    typer.echo(link)
    if browse:
        webbrowser.open(link)


async def console_link(access: AdminAccess) -> str:
    """A link that signs in once. FailureError where the control plane makes none."""
    trusted = client_context(access.authorities) if access.authorities else True
    headers = {"Authorization": f"Bearer {access.token}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_SECONDS)) as http,
            http.post(f"{access.url}/console/sign-in-links", headers=headers, ssl=trusted) as answer,
        ):
            if answer.status != 201:
                told = _WORDS.get(answer.status, f"status {answer.status}")
                raise FailureError([f"no link to the console at {access.url}: {told}"])
            return access.url + str((await answer.json())["path"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        raise FailureError(
            [f"cannot reach the control plane at {access.url}: {str(error) or 'no answer in time'}"]
        ) from error
