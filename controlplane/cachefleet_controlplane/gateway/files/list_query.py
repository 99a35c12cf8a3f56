"""What a client asks of one of OpenAI's lists: `after`, `limit`, `order`; and the list's own form. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import Struct

from cachefleet_controlplane.gateway.files.file_object import is_object_id
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import Scope

MAX_QUERY: Final = 1024
"""Bytes of a query that are read."""
ORDERS: Final = ("asc", "desc")


class ListQuery(Struct, frozen=True):
    """One page of a list by time of making: newest first unless ``oldest_first``."""

    after: str
    """Id of the item before the page; "" for the first page."""
    limit: int
    oldest_first: bool
    given: Mapping[str, str]
    """All that the query has."""


def list_query(scope: Scope, *, page: int, most: int) -> ListQuery:
    """Return what a request asks for; ``page`` items unless it says how many, ``most`` of them. ApiError 400."""
    found = parse_qs(scope.get("query_string", b"")[:MAX_QUERY].decode("latin-1"))
    given = {name: values[-1] for name, values in found.items()}
    order = given.get("order", "desc")
    if order not in ORDERS:
        raise ApiError(400, "`order` must be `asc` or `desc`.", param="order")
    after = given.get("after", "")
    if after and not is_object_id(after):
        raise ApiError(400, "`after` must be the id of an item of the list.", param="after")
    return ListQuery(after, _limit(given.get("limit", str(page)), most), order == "asc", given)


def _limit(given: str, most: int) -> int:
    limit = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(most)) else 0
    if not 1 <= limit <= most:
        raise ApiError(400, f"`limit` must be a number from 1 to {most}.", param="limit")
    return limit


def listed(items: Sequence[Mapping[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return OpenAI's list of objects that have an id."""
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return {"object": "list", "data": list(items), "has_more": more} | ends
