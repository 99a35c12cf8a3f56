"""``/console/docs/{name}``: a page of the documentation."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import Response

from cachefleet_controlplane.console.visit import Visit


async def doc_page(visit: Visit) -> Response:
    """The page, as this version has it."""
    name = visit.request.path_params["name"]
    sections = visit.parts.docs.sections(name)
    if not sections:
        raise HTTPException(404, "There is no such page of the documentation here.")
    return visit.page("doc.html", title=sections[0].title, sections=sections)
