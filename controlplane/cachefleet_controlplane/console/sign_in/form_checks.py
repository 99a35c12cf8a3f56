"""Forms: their fields, and whether a request was sent by a page of this console (against forged requests)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_FIELDS: Final = 50
TOKEN_FIELD: Final = "csrf"  # noqa: S105 - the name of a field
_FORM: Final = "application/x-www-form-urlencoded"


def from_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page of the same origin sent this request.

    Browsers give every POST an Origin; it is compared with the address that was asked for.
    """
    scheme, _, origin = headers.get("origin", "").partition("://")
    return bool(scheme and origin) and origin.lower() == headers.get("host", "").lower()


async def form_of(request: Request, csrf: str | None) -> dict[str, str]:
    """The fields of a POST that a page of this console sent, with the session's ``csrf`` token unless that is None.

    HTTPException 403 where another page sent it, 400 where it is no form.
    """
    if not from_own_page(request.headers):
        raise HTTPException(403, "Only forms of this console are taken: open it by the address it was sent from.")
    fields = await _fields(request)
    if csrf is not None and not hmac.compare_digest(fields.get(TOKEN_FIELD, "").encode(), csrf.encode()):
        raise HTTPException(403, "The form is not of this session: reload the page and send it again.")
    return fields


async def _fields(request: Request) -> dict[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(400, f"A form is sent as {_FORM}.")
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
