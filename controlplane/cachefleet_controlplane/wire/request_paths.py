"""Paths of requests: as they are meant, and which one a client missed by its base URL. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH, ApiError

VERSION: Final = "/v1"
MAX_SHOWN: Final = 200
"""Characters of a path that an error repeats, and that are compared."""
UNKNOWN_URL: Final = "unknown_url"
"""OpenAI's code for a path that is not there."""


def plain_path(path: str) -> str:
    """Return a path without doubled and trailing slashes, as clients make them of a base URL that ends with one."""
    if "//" not in path and not (path.endswith("/") and len(path) > 1):
        return path  # as nearly all
    return "/" + "/".join(part for part in path.split("/") if part)


def meant_path(path: str, known: Iterable[str]) -> str:
    """Return the longest of the paths ``known`` whose end, ``/v1`` apart, ends ``path``, too; "" for none."""
    asked = path[-MAX_SHOWN:]
    near = [one for one in known if asked.endswith(one.removeprefix(VERSION))]
    return max(near, key=len, default="")


def no_such_path(path: str, meant: str) -> ApiError:
    """Return the ApiError 404 for a path; ``meant`` is the one to use, "" where none is like it."""
    message = f"There is no {path[:MAX_SHOWN]} here."
    if meant.startswith(ANTHROPIC_PATH):
        message += f" Use {meant}: set the base URL to this gateway's address without `{VERSION}`, which clients add."
    elif meant:
        message += f" Use {meant}: set the base URL to this gateway's address with `{VERSION}`, once (`.../v1`)."
    return ApiError(404, message, code=UNKNOWN_URL)
