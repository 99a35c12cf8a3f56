"""``/console/requests``: finding requests, and one request with its decision as a picture."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from cachefleet_controlplane.console.admin_calls import AdminAnswer
from cachefleet_controlplane.console.figures.candidate_bars import candidate_bars
from cachefleet_controlplane.console.figures.request_legs import time_line
from cachefleet_controlplane.console.figures.token_split import from_cache, token_split
from cachefleet_controlplane.console.visit import Visit
from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.store.decision_filter import RequestOutcome

PAGE: Final = 50
FILTERS: Final = ("requestId", "model", "tenant", "pool", "worker", "outcome", "shortfall")
OUTCOMES: Final = tuple(RequestOutcome)
SHORTFALLS: Final = ("any", *Cause)
_ID: Final = re.compile(r"[\w-]{1,64}")
_OTHERS: Final = frozenset({"stream", "export"})


async def requests_page(visit: Visit) -> Response:
    """The latest requests, those that a search names; a decision's id leads to its page at once."""
    wanted = {name: value.strip() for name, value in visit.request.query_params.items() if value.strip()}
    if (found := wanted.get("id", "")) and await _is_decision(visit, found):
        return _to(visit, f"/console/requests/{quote(found, safe='')}")
    query: dict[str, str] = {name: wanted[name] for name in (*FILTERS, "before") if name in wanted}
    if found:  # it may be the client's own id
        query["requestId"] = found
    answer = await visit.ask("GET", "/decisions", {"limit": str(PAGE), **query})
    data = answer.data if answer.ok else {}
    return visit.page(
        "requests.html",
        items=answer.items,
        from_cache=from_cache,
        problem=answer.problem or data.get("storeProblem") or "",
        wanted=wanted,
        older=_older(wanted, data.get("next")),
        outcomes=OUTCOMES,
        shortfalls=SHORTFALLS,
        searched=bool(query),
    )


async def request_page(visit: Visit) -> Response:
    """One request: what became of its prompt's tokens, the candidates' costs, its legs."""
    name = visit.request.path_params["id"]
    answer = await _decision(visit, name)
    if not answer.ok:
        raise HTTPException(answer.status, answer.problem)
    item: dict[str, Any] = answer.data
    return visit.page(
        "request.html",
        item=item,
        split=token_split(item),
        candidates=candidate_bars(item["candidates"]),
        line=time_line(item),
    )


def _to(visit: Visit, where: str) -> Response:
    """Go there; a script that asked for a part of a page is told to load another one."""
    if "hx-request" in visit.request.headers:
        return Response(status_code=204, headers={"hx-redirect": where})
    return RedirectResponse(where, status_code=303)


async def _is_decision(visit: Visit, name: str) -> bool:
    return (await _decision(visit, name)).ok


async def _decision(visit: Visit, name: str) -> AdminAnswer:
    """The decision of that id; what the admin API has otherwise below its list is none."""
    if not _ID.fullmatch(name) or name in _OTHERS:
        return AdminAnswer(404, {"detail": "no such decision"})
    return await visit.ask("GET", f"/decisions/{name}")


def _older(wanted: dict[str, str], following: str | None) -> str:
    """The address of the page of older ones, "" where there are none."""
    return f"/console/requests?{urlencode({**wanted, 'before': following})}" if following else ""
